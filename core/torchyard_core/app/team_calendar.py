"""The use cases "test, join, create and leave the team's calendar"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torchyard_core.app.change_settings import ChangeSettings
from torchyard_core.app.desktop import calendar_of
from torchyard_core.booking.errors import BadRole, BadUrl, DatabaseLoginRefused, StoreUnavailable
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
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_core.user_settings import read_user_settings

SCHEME = "postgresql+psycopg://"


@dataclass(frozen=True)
class CalendarFound:
    """The result of opening a calendar: its location, the user's role in the database, and the number of bookings.

    `person` is the name of the role. `is_admin` is True if the role is an admin's.
    """

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
    """Returns the URL of a calendar for a role.

    `address` is a full URL, or a short form such as `db.example.org/gpus` or `db:5433/gpus?sslmode=require`. If `role`
    is not empty, it replaces the role in the address. Raises BadUrl if the address is invalid.
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
        raise BadRole("no role is given", hint="Write the name of your role in the database.")
    if re.search(r"[\s@:/]", role):
        raise BadRole(f"`{role}` is not the name of a role", hint="Use letters, digits, `_`, `.` and `-`.")
    url = parsed(f"{scheme}://{role}@{server}/{database}")
    if url.get_backend_name() == "sqlite":
        raise BadUrl("a team needs a PostgreSQL database, not a file", hint="Write HOST/DATABASE.")
    return url.render_as_string()


class TeamCalendar:
    """Connects this desktop to a team's calendar. Its methods may block for seconds; call them on a worker thread."""

    def __init__(self, home: Home):
        self._home = home
        self._settings = ChangeSettings(home)

    def test(self, url: str, password: str = "") -> CalendarFound:
        """Opens a calendar as a member without changing anything.

        Raises BadUrl, StoreUnavailable, StoreTooNew or PermissionDenied if the calendar cannot be used.
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
        """Configures this desktop to use a calendar: tests it, stores the password, and writes the settings.

        Args:
            copy: Whether to copy the bookings of the current calendar into the new one, which requires an admin role.

        Raises the errors of `test`, and TorchyardError if the password, the bookings or the setting cannot be stored.
        After an error the settings are unchanged.
        """
        found = self.test(url, password)
        new_text = self._settings.edited("bookings_url", url)
        if password:
            keep_password(parsed(url), password)
        copied = self._copy_to(url, password) if copy else 0
        self._settings.write(new_text)
        return Joined(found, copied)

    def leave(self) -> None:
        """Switches back to the private calendar on this computer. The team's calendar is unchanged."""
        self._settings.change("bookings_url", "")

    def test_server(self, url: str, password: str = "") -> ServerFound:
        """Tests whether a role can create a calendar in a database. The database may already contain one.

        Raises the errors of `test`.
        """
        try:
            return find_server(url, password)
        except StoreUnavailable as error:
            raise _explained(error) from None

    def create(self, url: str, password: str, admins: Iterable[str], members: Iterable[str]) -> TeamSetup:
        """Creates the calendar in a database, adds members to it, or upgrades it. Raises the errors of `setup_team`."""
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


def _explained(error: StoreUnavailable) -> StoreUnavailable:
    """Returns the error with other advice, which tells the user what to check in the form."""
    is_login = isinstance(error, DatabaseLoginRefused)
    return StoreUnavailable(error.message, hint="Check role and password." if is_login else "Check the address.")
