"""Next steps: values that describe actions which the user can take after an error.

The command line prints a step as a command, and the window shows a button.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, eq=False, repr=False)
class NextStep:
    """An action that the user can take.

    `template` is the action's command line after the word `torchyard`, with field names in braces.

    Subclasses inherit `__eq__`, `__hash__` and `__repr__`, because generating these methods for each subclass would
    add 8 ms to each start of the program.
    """

    template: ClassVar[str]
    words: ClassVar[str] = "Run {command}."
    """A format string for `sentence`. It may contain `{command}`, the command line, and names of fields in braces."""

    def __eq__(self, other: object) -> bool:
        return other.__class__ is self.__class__ and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.__class__, *vars(self).values()))

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def command_line(self) -> str:
        """Returns the command line with shell quoting. Words in capitals and `…` stand for the user's input."""
        values = {one.name: _quoted(getattr(self, one.name)) for one in fields(self)}
        return " ".join(f"torchyard {self.template.format(**values)}".split())

    def sentence(self) -> str:
        """Returns the sentence that describes the step on the command line."""
        return self.words.format(command=f"`{self.command_line()}`", **asdict(self))


Advice: TypeAlias = str | NextStep | tuple[str | NextStep, ...]
"""Advice about an error: sentences and next steps in the order in which they are shown."""


def steps_of(advice: Advice) -> tuple[NextStep, ...]:
    return tuple(part for part in parts_of(advice) if isinstance(part, NextStep))


def advice_text(advice: Advice) -> str:
    """Returns the advice as text for the command line."""
    return " ".join(part if isinstance(part, str) else part.sentence() for part in parts_of(advice))


def joined(*advice: Advice) -> Advice:
    """Combines several items of advice."""
    return tuple(part for one in advice for part in parts_of(one))


def parts_of(advice: Advice) -> tuple[str | NextStep, ...]:
    """Returns the sentences and next steps of the advice. Empty strings are omitted."""
    return tuple(part for part in (advice if isinstance(advice, tuple) else (advice,)) if part)


def _quoted(value: str | tuple[str, ...]) -> str:
    return shlex.quote(value) if isinstance(value, str) else shlex.join(value)


@dataclass(frozen=True, eq=False, repr=False)
class DeployAgent(NextStep):
    host: str
    template = "deploy {host}"


@dataclass(frozen=True, eq=False, repr=False)
class TrustKey(NextStep):
    """Shows the host's key, and records it after confirmation by the user."""

    host: str
    template = "hosts trust {host}"


@dataclass(frozen=True, eq=False, repr=False)
class CheckHosts(NextStep):
    """Checks the named hosts, by default all hosts."""

    hosts: tuple[str, ...] = ()
    template = "hosts check {hosts}"
    words = "{command} finds what each host has now."


@dataclass(frozen=True, eq=False, repr=False)
class AddHost(NextStep):
    host: str = "NAME"
    template = "hosts add {host} --address …"
    words = "{command} adds a host."


@dataclass(frozen=True, eq=False, repr=False)
class RemoveHost(NextStep):
    host: str
    template = "hosts remove {host}"
    words = "{command} removes {host} from the fleet."


@dataclass(frozen=True, eq=False, repr=False)
class SetHostField(NextStep):
    """Sets a field of a host in the fleet file. No command sets it: the user edits the file, then checks the host."""

    host: str
    field: str
    template = "hosts check {host}"
    words = "Set `{field}` of {host} in the fleet file, then run {command}."


@dataclass(frozen=True, eq=False, repr=False)
class ShowHosts(NextStep):
    template = "status"
    words = "See {command}."


@dataclass(frozen=True, eq=False, repr=False)
class LaunchTopology(NextStep):
    template = "run FILE"
    words = "Launch its topology file: {command}."


@dataclass(frozen=True, eq=False, repr=False)
class LaunchAt(NextStep):
    """Launches the topology later, with a booking for that time. `arguments` identify the topology."""

    arguments: tuple[str, ...]
    start: str
    length: str
    verb: str = "run"
    template = "{verb} {arguments} --at {start} --book {length}"
    words = "{command} books that and starts then."


@dataclass(frozen=True, eq=False, repr=False)
class LaunchWithBooking(NextStep):
    arguments: tuple[str, ...]
    length: str
    verb: str = "run"
    template = "{verb} {arguments} --book {length}"
    words = "{command} (or another length) books them with the launch."


@dataclass(frozen=True, eq=False, repr=False)
class AnswerYes(NextStep):
    """Repeats the command with `-y`, which answers its questions with yes."""

    template = "run FILE -y"
    words = "Add -y to answer yes."


@dataclass(frozen=True, eq=False, repr=False)
class ValidateTopology(NextStep):
    file: str
    template = "validate {file}"
    words = "{command} lists all problems."


@dataclass(frozen=True, eq=False, repr=False)
class ValidateSweep(NextStep):
    """Checks a search file together with the topology whose arguments use the search parameters."""

    topology: str
    search: str
    template = "validate {topology} {search}"
    words = "{command} checks both."


@dataclass(frozen=True, eq=False, repr=False)
class ProfileScript(NextStep):
    file: str
    template = "profile {file}"
    words = "Measure it first: {command}."


@dataclass(frozen=True, eq=False, repr=False)
class ImportDocument(NextStep):
    format: str
    file: str
    template = "import {format} {file}"
    words = "{command} reads it."


@dataclass(frozen=True, eq=False, repr=False)
class SetField(NextStep):
    """Sets a field of the topology. `path` has the syntax of `run --set`."""

    path: str
    template = "run FILE --set {path}=…"
    words = "The field is `{path}`; {command} sets it for one run."


@dataclass(frozen=True, eq=False, repr=False)
class ListRuns(NextStep):
    template = "runs list"
    words = "{command} shows all runs."


@dataclass(frozen=True, eq=False, repr=False)
class StopRun(NextStep):
    run_id: str
    options: tuple[str, ...] = ()
    template = "runs stop {run_id} {options}"
    words = "{command} ends it."


@dataclass(frozen=True, eq=False, repr=False)
class ShowSweep(NextStep):
    run_id: str
    template = "sweeps show {run_id}"
    words = "{command} shows its trials."


@dataclass(frozen=True, eq=False, repr=False)
class StopSweep(NextStep):
    run_id: str
    template = "sweeps stop {run_id}"
    words = "{command} ends it, if it is not wanted any more."


@dataclass(frozen=True, eq=False, repr=False)
class ResumeSweep(NextStep):
    run_id: str
    template = "sweeps resume {run_id}"
    words = "{command} continues it."


@dataclass(frozen=True, eq=False, repr=False)
class WriteTrial(NextStep):
    """Writes the topology of a trial, by default of the best one, to a file."""

    run_id: str
    options: tuple[str, ...] = ()
    template = "sweeps best {run_id} {options} -o FILE"
    words = "{command} writes its topology, with its parameters in the arguments."


@dataclass(frozen=True, eq=False, repr=False)
class ShowLogs(NextStep):
    run_id: str
    template = "runs logs {run_id}"
    words = "{command} shows their output."


@dataclass(frozen=True, eq=False, repr=False)
class SendSecrets(NextStep):
    """Restarts a run that another computer launched. `options` name the secrets to send."""

    run_id: str
    options: tuple[str, ...]
    template = "runs restart {run_id} {options}"
    words = "Name what to send: {command}."


@dataclass(frozen=True, eq=False, repr=False)
class BookGpus(NextStep):
    gpus: str
    length: str
    template = "book {gpus} --to +{length}"
    words = "Book them first: {command}."


@dataclass(frozen=True, eq=False, repr=False)
class BookNodes(NextStep):
    cluster: str
    template = "book {cluster}:NODE --to +8h"
    words = "Book nodes with {command}."


@dataclass(frozen=True, eq=False, repr=False)
class ChangeBooking(NextStep):
    booking_id: str
    template = "bookings change {booking_id} --gpus …"
    words = "Change the booking: {command}."


@dataclass(frozen=True, eq=False, repr=False)
class ListBookings(NextStep):
    option: str = "--all"
    template = "bookings list {option}"
    words = "See {command}."


@dataclass(frozen=True, eq=False, repr=False)
class ShowRules(NextStep):
    template = "bookings rules"
    words = "See {command}."


@dataclass(frozen=True, eq=False, repr=False)
class JoinWaitlist(NextStep):
    count: str
    length: str
    template = "bookings wait {count} --for {length}"
    words = "{command} joins the waitlist."


@dataclass(frozen=True, eq=False, repr=False)
class SetUpTeam(NextStep):
    """Creates or upgrades a team's calendar in a database, or adds a member. Requires the database role of an admin."""

    options: tuple[str, ...] = ()
    template = "bookings setup-team URL {options}"
    words = "An admin of the database runs {command}."
