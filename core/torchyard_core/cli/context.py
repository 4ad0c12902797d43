"""The context of a command: the user's files, the fleet, the calendar and confirmations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.login_prompts import terminal_questions
from torchyard_core.cli.output import remark
from torchyard_core.errors import FileProblem, UsageError
from torchyard_core.fleet.host_facts_cache import load_facts, planner_hosts
from torchyard_core.fleet.inventory import Host, Inventory, read_fleet
from torchyard_core.home import Home
from torchyard_core.next_steps import AddHost
from torchyard_core.text_sanitizer import printable
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.user_settings import UserSettings, read_user_settings
from torchyard_core.yaml_io.file_reader import path_exists

if TYPE_CHECKING:
    from torchyard_core.app.desktop import Desktop
    from torchyard_core.booking.sync.cached_calendar import Calendar
    from torchyard_core.fleet.fleet import Fleet


@dataclass(frozen=True)
class CommandContext:
    """The options that precede the command name, and the objects that they select."""

    home: Home
    fleet_file: Path
    yes: bool
    fleet_is_named: bool = False
    """Whether the fleet file was given as an option, in which case it must exist."""
    opened: list[Calendar] = field(default_factory=list)
    """The calendar as the only element; empty if the command has not used the calendar yet."""

    @property
    def facts_file(self) -> Path:
        """The file of host facts, next to the fleet file."""
        return self.fleet_file.with_name("facts.json")

    def user_settings(self) -> UserSettings:
        """Reads the user settings (`settings.yaml`). Raises FileProblem or UsageError if they are invalid."""
        return read_user_settings(self.home.settings_file)

    def calendar(self) -> Calendar:
        """Returns the calendar, which is shared by the whole command. The calendar opens its database at first use."""
        from torchyard_core.app.desktop import calendar_of

        if not self.opened:
            self.opened.append(calendar_of(self.home, self.user_settings()))
        return self.opened[0]

    def close(self) -> None:
        """Updates the local copy of the bookings, prints unreadable rows, and closes the database.

        Called at the end of a command.
        """
        for calendar in self.opened:
            calendar.keep()
            for what in sorted(calendar.unreadable):
                remark(f"torchyard: {what} cannot be read, and was left out. An admin of the team removes it.")
            calendar.close()

    def zone(self, named: str | None = None) -> str:
        """Returns the time zone of times that the user enters.

        The zone is that of `--zone`, otherwise that in the settings, otherwise this computer's.

        Raises Refused for an unknown zone.
        """
        from torchyard_core.app.desktop import zone_for
        from torchyard_core.booking.time_parser import zone_of

        return zone_of(named).key if named else zone_for(self.user_settings())

    def inventory(self) -> Inventory:
        """Reads the fleet file.

        Raises FileProblem if the file cannot be read, or was given as an option and does not exist. Raises
        TorchyardError with all problems if the file has errors.
        """
        if self.fleet_is_named and not path_exists(self.fleet_file):
            raise FileProblem(
                f"{self.fleet_file}: there is no such file.", code="no_file", hint=("Is the name right?", AddHost())
            )
        return read_fleet(self.fleet_file).usable()

    def known(self, inventory: Inventory) -> tuple[HostFacts, ...]:
        """Returns the cached facts of the fleet's hosts. Contacts no host."""
        return planner_hosts(inventory.hosts, load_facts(self.facts_file))

    def fleet(self, hosts: Iterable[Host]) -> Fleet:
        """Creates a fleet of the hosts without connecting to them."""
        from torchyard_core.engines.registry import open_fleet  # This import loads paramiko, which takes 0.25 s.

        clusters = self.inventory().clusters
        return open_fleet(hosts, clusters, self.home.known_hosts, self.facts_file, terminal_questions(), remark)

    def desktop(self, fleet: Fleet) -> Desktop:
        """Returns the files, hosts and calendar for the use cases.

        Raises FileProblem, UsageError or Refused for invalid user settings.
        """
        from torchyard_core.app.desktop import Desktop

        return Desktop(self.home, fleet, self.calendar(), self.zone())

    def confirm(self, question: str) -> bool:
        """Returns the user's answer, or true with `-y`. Raises UsageError if stdin is not a terminal."""
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError(
                f"{question} There is no terminal to answer on.", code="no_terminal", hint="Add -y to answer with yes."
            )
        return typer.confirm(printable(question), err=True)

    def confirm_or_exit(self, question: str, otherwise: str = "Nothing was changed.") -> None:
        """Asks a question. Unless the answer is yes, prints `otherwise` and ends the command with exit code 1."""
        if not self.confirm(question):
            remark(otherwise)
            raise typer.Exit(1)


Yes = Annotated[bool, typer.Option("-y", "--yes", help="Answer every question with yes.")]


def command_context(context: typer.Context, *, yes: bool = False) -> CommandContext:
    """Returns the context that the root command has created. `yes` is the `-y` option of the command itself."""
    found = context.find_object(CommandContext)
    assert found is not None
    return replace(found, yes=found.yes or yes)
