"""`torchyard bookings rules | logins | setup-team | join | leave | move-to`: administration of a team's calendar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torchyard_core.booking.model import Login
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.cli.context import Yes, command_context
from torchyard_core.cli.file_or_stdin import text_of
from torchyard_core.cli.output import Json, print_json, remark, say, table
from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.identity import login_name
from torchyard_core.next_steps import ShowRules
from torchyard_core.problems import did_you_mean
from torchyard_core.yaml_io.document import parse_document
from torchyard_core.yaml_io.writer import dump_yaml

_ADMIN = "postgresql+psycopg://ADMIN@HOST/DB"


def rules(
    context: typer.Context,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="RULE=VALUE in YAML, like longest_h=48 or quotas={lee: 200}; repeatable."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="All rules from a YAML file (- reads stdin); what is left out is default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the team's rules, or change them with --set or --file (admins only).

    Example: torchyard bookings rules --set longest_h=48 --set quota_gpu_hours=200
    """
    chosen = command_context(context)
    store = chosen.calendar().store()
    if file is not None or set_:
        data = _read(file) if file is not None else store.rules().to_json()
        for setting in set_ or ():
            name, equals, text = setting.partition("=")
            if not equals or name.strip() not in Rules().to_json():
                near = did_you_mean(name.strip(), Rules().to_json())
                hint = "" if near else f"There are: {', '.join(Rules().to_json())}."
                raise UsageError(
                    f"--set {setting}: there is no rule `{name.strip()}`{near}", code="unknown_rule", hint=hint
                )
            data[name.strip()] = parse_document(f"value: {text}\n", f"--set {setting}").data["value"]
        store.set_rules(_rules(data))
        remark(f"The rules of {store.place} are changed.")
    found = store.rules().to_json()
    if as_json:
        print_json(found)
    else:
        say(dump_yaml(json.loads(json.dumps(found))).rstrip())


def _read(file: Path) -> dict[str, Any]:
    text, source = text_of(file)
    data = parse_document(text, source).data
    if not isinstance(data, dict):
        raise UsageError(
            f"{source} holds no rules.", code="bad_rules", hint="Write one rule per line: `longest_h: 48`."
        )
    return data


def _rules(data: dict[str, Any]) -> Rules:
    try:
        return Rules.from_json(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"the rules make no sense: {error}", code="bad_rules", hint=ShowRules()) from None


def logins(
    context: typer.Context,
    add: Annotated[
        list[str] | None, typer.Option(metavar="HOSTS:USER=PERSON", help="Like 'gpu-*:ubuntu=kim'; repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="HOSTS:USER=PERSON", help="Take one out; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the persons behind UNIX logins on hosts, or change them (admins only). A shared login has several persons.

    Example: torchyard bookings logins --add 'gpu-*:ubuntu=kim' --add 'gpu-*:ubuntu=lee'
    """
    store = command_context(context).calendar().store()
    found = set(store.logins())
    if add or remove:
        for text in remove or ():
            gone = _login(text)
            if gone not in found:
                raise UsageError(f"there is no entry `{text}`.", code="no_such_login", hint="See `bookings logins`.")
            found.discard(gone)
        found |= {_login(text) for text in add or ()}
        store.set_logins(found)
    rows = sorted((one.host_pattern, one.user, one.person) for one in found)
    if as_json:
        print_json([{"hosts": host, "user": user, "person": person} for host, user, person in rows])
    elif rows:
        table(("HOSTS", "USER", "PERSON"), rows)
    else:
        say("No logins are listed: a UNIX user counts as the person of the same name.")


def _login(text: str) -> Login:
    hosts, colon, rest = text.partition(":")
    user, equals, person = rest.partition("=")
    if not (colon and equals and hosts and user and person):
        raise UsageError(f"`{text}` is not HOSTS:USER=PERSON.", code="bad_login", hint="Like 'gpu-*:ubuntu=kim'.")
    return Login(hosts.strip(), user.strip(), person.strip())


def set_up(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help=_ADMIN, show_default=False)],
    member: Annotated[list[str] | None, typer.Option(help="A member's role; made where it is missing.")] = None,
    admin: Annotated[list[str] | None, typer.Option(help="An admin's role; sets the rules. Repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Set up the team's calendar in a PostgreSQL database, add members, or upgrade the schema.

    The role in URL needs the right to create roles and a schema. Prints the line for each member's settings.yaml, and
    the passwords of new roles, which are not stored and cannot be printed again.

    Example: torchyard bookings setup-team postgresql+psycopg://postgres@db/gpus --admin ada --member kim --member lee
    """
    from torchyard_core.app.team_calendar import TeamCalendar

    made = TeamCalendar(command_context(context).home).create(url, "", admin or [], member or [])
    if as_json:
        members = [
            {
                "name": one.name,
                "is_admin": one.is_admin,
                "bookings_url": one.url,
                "password": one.password,
                "keyring": one.keyring_name,
            }
            for one in made.members
        ]
        print_json({"place": made.place, "members": members, "studies": made.has_studies})
        return
    say(f"{made.place} holds the team's calendar.")
    for line in made.lines():
        say(line)
    if not made.members:
        remark("It has no members yet: add --admin and --member.")


def join(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="postgresql+psycopg://ROLE@HOST/DB, or HOST/DB.", show_default=False)
    ],
    role: Annotated[str, typer.Option(help="Your role in the database; by default that of URL.")] = "",
    ask_password: Annotated[
        bool, typer.Option("--password", help="Ask for the password, and keep it in the keyring.")
    ] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the bookings of the current calendar (admins).")] = False,
    as_json: Json = False,
) -> None:
    """Join the team's calendar: test it, and write `bookings_url` into settings.yaml.

    Example: torchyard bookings join db.example.org/gpus --role kim --password
    """
    from torchyard_core.app.team_calendar import TeamCalendar, team_url

    chosen = command_context(context)
    address = team_url(url, role)
    password = typer.prompt("Password", hide_input=True, err=True) if ask_password else ""
    joined = TeamCalendar(chosen.home).join(address, password, copy=copy)
    found = joined.calendar
    if as_json:
        print_json({**found.__dict__, "copied": joined.copied})
        return
    say(f"You use {found.place} now, as {found.person}{' (admin)' if found.is_admin else ''}.")
    if copy:
        say(f"{joined.copied} {'booking was' if joined.copied == 1 else 'bookings were'} copied into it.")


def leave(context: typer.Context, as_json: Json = False) -> None:
    """Leave the team's calendar, and use the private one on this computer again. The team's is not changed.

    Example: torchyard bookings leave
    """
    from torchyard_core.app.team_calendar import TeamCalendar

    chosen = command_context(context)
    TeamCalendar(chosen.home).leave()
    if as_json:
        print_json({"place": str(chosen.home.bookings_file)})
    else:
        say("You use the private calendar on this computer now.")


def move_to(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where to: sqlite:///FILE or a team's.", show_default=False)
    ],
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="A person's name there; repeatable.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Copy the calendar, except the history of changes, to another database: all of it, or nothing.

    This calendar is not changed. In a copy of a private calendar, your own name is replaced by your role in the other
    database. Afterwards, set `bookings_url` in settings.yaml to its URL.

    Example: torchyard bookings move-to postgresql+psycopg://ada@db/gpus --rename lee=lee_k
    """
    from torchyard_core.booking.store import open_store, transfer_all

    chosen = command_context(context, yes=yes)
    own = chosen.user_settings()
    source = chosen.calendar().store()
    target = open_store(url, own.person or login_name())
    try:
        persons = {source.person: target.person} if source.is_private else {}
        for text in rename or ():
            old, equals, new = text.partition("=")
            if not (old and equals and new):
                raise UsageError(f"`{text}` is not OLD=NEW.", code="bad_rename", hint="Like --rename lee=lee_k.")
            persons[old] = new
        chosen.confirm_or_exit(f"Copy {counted(source.count(), 'booking')} from {source.place} to {target.place}?")
        moved = transfer_all(source, target, persons)
    finally:
        target.close()
    if as_json:
        print_json({"from": source.place, "to": target.place, "counts": moved})
    else:
        count = moved.get("bookings", 0)
        say(f"{counted(count, 'booking')} copied from {source.place} to {target.place}.")
        say(f"To use it, write into {chosen.home.settings_file}: bookings_url: {url}")


def add_to(app: typer.Typer) -> None:
    """Registers this module's commands with the command group `app`."""
    app.command("rules")(rules)
    app.command("logins")(logins)
    app.command("setup-team")(set_up)
    app.command("join")(join)
    app.command("leave")(leave)
    app.command("move-to")(move_to)
