"""A line of a launch's checklist, and the table of all checks: name, title, order and section of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import Advice, advice_text

Severity = Literal["green", "amber", "red"]


@dataclass(frozen=True)
class CheckSpec:
    """A row of the checklist. It contains the lines of one check for all hosts."""

    name: str
    """The name in `Check.name` and in the events of `run --json`."""
    title: str
    anchor: str
    """The page and section in docs/ that describe the check."""


CHECKLIST = (
    CheckSpec("topology", "Topology", "launch.md#the-checklist"),
    CheckSpec("host", "Hosts connected, agent installed", "launch.md#check-host"),
    CheckSpec("looking", "Hosts checked", "launch.md#the-checklist"),
    CheckSpec("python", "Python", "launch.md#check-python"),
    CheckSpec("torch", "torch", "launch.md#check-torch"),
    CheckSpec("optuna", "Optuna for the sweep", "launch.md#check-optuna"),
    CheckSpec("cuda", "CUDA", "launch.md#check-cuda"),
    CheckSpec("driver", "NVIDIA driver", "launch.md#check-driver"),
    CheckSpec("disk", "Disk space", "launch.md#check-disk"),
    CheckSpec("folder", "Working folder", "launch.md#check-folder"),
    CheckSpec("strategy", "Program takes part in the strategy", "launch.md#check-strategy"),
    CheckSpec("booking", "GPUs free, and not booked by others", "launch.md#check-booking"),
    CheckSpec("clock", "Clocks agree", "launch.md#check-clock"),
    CheckSpec("limits", "Limits for open files and locked memory", "launch.md#check-limits"),
    CheckSpec("shm", "Shared memory", "launch.md#check-shm"),
    CheckSpec("gpu", "GPUs healthy and unused", "launch.md#check-gpu"),
    CheckSpec("leftovers", "No leftovers of earlier runs", "launch.md#check-leftovers"),
    CheckSpec("bandwidth", "Bandwidth between hosts", "launch.md#check-bandwidth"),
    CheckSpec("resume", "Checkpoint to resume from", "launch.md#check-resume"),
    CheckSpec("network", "Hosts reach each other", "launch.md#check-network"),
    CheckSpec("sending", "Code sent", "launch.md#sending-code"),
    CheckSpec("preparing", "GPUs locked, ports reserved", "launch.md#the-checklist"),
    CheckSpec("starting", "Started", "launch.md#the-checklist"),
    CheckSpec("history", "Noted on this computer", "launch.md#the-checklist"),
)
"""All rows in the order of display. A row is a step of the launch if its section in docs/ is not named `check-…`."""


@dataclass(frozen=True)
class Check:
    """A line of the checklist, about one host or all hosts.

    `ok` is false if the line prevents the launch, and true for a success or a warning.
    """

    name: str
    """The name of the row in `CHECKLIST`."""
    host: str
    """The host that the line is about; empty for all hosts."""
    ok: bool
    message: str
    advice: Advice = ""
    warning: bool = False
    code: str = ""
    """The code of the error that caused the line; otherwise empty. The window uses it to select a remedy."""

    def to_event(self) -> dict[str, Any]:
        """Returns the line as an event of `run --json`."""
        message = TorchyardError(self.message, hint=self.advice).sentence() if self.advice else self.message
        event = {"event": "check", "name": self.name, "host": self.host, "ok": self.ok, "message": message}
        return {**event, "warning": True} if self.warning else event

    @property
    def hint(self) -> str:
        """The advice as text for the command line."""
        return advice_text(self.advice)

    @property
    def severity(self) -> Severity:
        """The severity of the line: `red` prevents the launch, `amber` is a warning, `green` is a success."""
        return "red" if not self.ok else "amber" if self.warning else "green"


def failed(checks: Sequence[Check]) -> list[Check]:
    """Returns the lines that prevent the launch."""
    return [check for check in checks if not check.ok]
