"""The use cases "test, join, create and leave the team's calendar"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torchyard_core.app.desktop import calendar_of
from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.errors import BadUrl, StoreUnavailable
from torchyard_core.booking.store import (
    ServerFound,
    TeamSetup,
    find_server,
    keep_password,
    open_store,
    parsed,
    setup_team,
    transfer_all,
)
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_core.user_settings import UserSettings, parse_user_settings, read_user_settings
from torchyard_core.yaml_io.writer import dump_flow
from torchyard_core.yaml_io.yaml_file import path_exists, read_text

SCHEME = "postgresql+psycopg://"
_SETTING = re.compile(r"^bookings_url[ \t]*:.*(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True)
class CalendarFound:
    """The answer of a calendar to a member."""

    place: str
    person: str
    is_admin: bool
    bookings: int


@dataclass(frozen=True)
class Joined:
    """The result of joining: the calendar, and how many bookings were copied into it."""

    calendar: CalendarFound
    copied: int = 0


def team_url(address: str, role: str) -> str:
    """The URL of a calendar for a role, from `db.example.org/gpus`, `db:5433/gpus?sslmode=require` or a URL.

    Raises BadUrl. A role in the address gives way to `role`, if that is given.
    """
    address = address.strip()
    if not address:
        raise BadUrl("the calendar has no address", hint="Write HOST/DATABASE, such as db.example.org/gpus.")
    if "://" not in address:
        address = SCHEME + address
    scheme, _, rest = address.partition("://")
    place, slash, database = rest.partition("/")
    login, _, server = place.rpartition("@")
    if ":" in login:
        raise BadUrl("the address must not hold a password", hint="Write it into its own field.")
    if not slash or not database.partition("?")[0]:
        raise BadUrl("the address names no database", hint="Write HOST/DATABASE, such as db.example.org/gpus.")
    role = role.strip() or login
    if not role:
        raise BadUrl("no role is given", hint="Write the name of your role in the database.")
    if re.search(r"[\s@:/]", role):
        raise BadUrl(f"`{role}` is not the name of a role", hint="Use letters, digits, `_`, `.` and `-`.")
    url = parsed(f"{scheme}://{role}@{server}/{database}")
    if url.get_backend_name() == "sqlite":
        raise BadUrl("a team needs a PostgreSQL database, not a file", hint="Write HOST/DATABASE.")
    return url.render_as_string()


class TeamCalendar:
    """Connects this desktop to a team's calendar. Methods block for up to a few seconds; call them on a thread."""

    def __init__(self, home: Home):
        self._home = home

    def test(self, url: str, password: str = "") -> CalendarFound:
        """Opens a calendar as a member, and changes nothing.

        Raises BadUrl, StoreUnavailable, StoreTooNew, PermissionDenied.
        """
        try:
            store = open_store(url, "", password=password)
        except StoreUnavailable as error:
            raise _explained(error) from None
        try:
            return CalendarFound(store.place, store.person, store.is_admin, store.count())
        finally:
            store.close()

    def join(self, url: str, password: str = "", *, copy: bool = False) -> Joined:
        """Makes a calendar the one of this desktop: tests it, keeps the password, and writes the settings.

        Args:
            copy: Copy the bookings of the current calendar into it, for which the role must be an admin's.

        Raises what `test` raises, and TorchyardError if the password, the bookings or the setting cannot be stored;
        the settings are unchanged then.
        """
        found = self.test(url, password)
        new_text = self._settings_with(url)
        if password:
            keep_password(parsed(url), password)
        copied = self._copy_to(url, password) if copy else 0
        self._write(new_text)
        return Joined(found, copied)

    def leave(self) -> None:
        """Returns to the private calendar on this computer. The team's calendar is unchanged."""
        self._write(self._settings_with(None))

    def test_server(self, url: str, password: str = "") -> ServerFound:
        """Whether a role can create a calendar in a database, and whether there is one. Raises as `test`."""
        try:
            return find_server(url, password)
        except StoreUnavailable as error:
            raise _explained(error) from None

    def create(self, url: str, password: str, admins: Iterable[str], members: Iterable[str]) -> TeamSetup:
        """Creates the calendar in a database, adds members to it, or upgrades it. Raises as `setup_team`."""
        try:
            return setup_team(url, members, admins, password=password)
        except StoreUnavailable as error:
            raise _explained(error) from None

    def _copy_to(self, url: str, password: str) -> int:
        calendar = calendar_of(self._home, read_user_settings(self._home.settings_file))
        target = open_store(url, login_name(), password=password)
        try:
            source = calendar.store()
            persons = {source.person: target.person} if source.is_private else {}
            return transfer_all(source, target, persons).get("bookings", 0)
        finally:
            target.close()
            calendar.close()

    def _settings_with(self, url: str | None) -> str:
        """The text of the settings file with another calendar; comments and other settings stay as they are."""
        path = self._home.settings_file
        before = read_text(path) if path_exists(path) else ""
        settings = parse_user_settings(before, path)
        line = f"bookings_url: {dump_flow(url)}\n" if url else ""
        if _SETTING.search(before):
            after = _SETTING.sub(lambda _: line, before, count=1)
        else:
            after = before + ("\n" if before and not before.endswith("\n") else "") + line
        wanted = settings.model_copy(update={"bookings_url": url})
        if _parsed_or_none(after, self._home) != wanted:
            raise UsageError(
                f"`bookings_url` in {path} cannot be changed: its lines are not understood.",
                code="settings_problems",
                hint=f"Write `bookings_url: {url}` into it by hand." if url else "Remove `bookings_url` by hand.",
            )
        return after

    def _write(self, text: str) -> None:
        write_atomically(self._home.settings_file, text)


def _parsed_or_none(text: str, home: Home) -> UserSettings | None:
    try:
        return parse_user_settings(text, home.settings_file)
    except TorchyardError:
        return None


def _explained(error: StoreUnavailable) -> StoreUnavailable:
    """The same error with advice for a form, in which nothing is retried."""
    is_login = "does not let" in error.message
    return StoreUnavailable(error.message, hint="Check role and password." if is_login else "Check the address.")
