"""Check of one host for `hosts check` and the window's Fleet page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchyard_core.errors import AgentRefused, HostError, TorchyardError, agent_problem

if TYPE_CHECKING:
    from torchyard_core.fleet.fleet import Fleet, Progress

READY = "ready"
DEGRADED = "degraded"


@dataclass(frozen=True)
class Enforcement:
    """How an agent enforces the calendar, and the result of its last scan."""

    level: str
    """`off`, `observe`, `warn` or `stop`, from the team's rules."""
    dry_run: bool
    of_all: bool
    """Whether the agent acts on the processes of all users, which requires root, or only on those of its own user."""
    is_fresh: bool
    """Whether the agent's copy of the calendar is recent enough for enforcement."""
    found: int
    """Number of processes on GPUs booked by other users, at the agent's last scan. A process counts once per GPU."""
    violations: tuple[str, ...] = ()
    """Processes on booked GPUs that only an admin can end, such as `python (PID 4711) of root, from …`."""


def origin_text(report: Mapping[str, Any]) -> str:
    """Formats the origin of a process in an agent's report: `of root, in container 4d1f, from a login of ann`."""
    origin = report.get("origin")
    if not isinstance(origin, dict):
        return f"of {report.get('user')}"
    words = ["of root" if origin.get("as_root") else f"of {report.get('user')}"]
    if origin.get("container"):
        words.append(f"in container {str(origin['container'])[:12]}")
    if origin.get("as_root"):
        session = f" (session {origin['session']})" if origin.get("session") else ""
        user = origin.get("user")
        source = "sudo says from" if origin.get("known_by") == "claim" else "from"
        words.append(f"{source} a login of {user}{session}" if user else "from a login that is not known")
    return ", ".join(words)


@dataclass(frozen=True)
class HostCheck:
    """The result of checking a host. Unknown values are None or empty."""

    name: str
    state: str
    """`ready`, `degraded` (the host answers but has problems), or the `state` of the HostError that ended the check."""
    agent: dict[str, Any] | None = None
    """`version`, `sha256` and `pid` of the agent."""
    python: str | None = None
    """The interpreter for programs, such as `3.11.9 at /usr/bin/python3`."""
    torch: str | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    gpus: list[dict[str, Any]] = field(default_factory=list)
    """The GPUs, each with `index`, `uuid`, `name` and `memory_mb`."""
    bookings: dict[str, Any] | None = None
    """The agent's state of calendar and enforcement (`bookings.status`). None if the agent is too old to report it."""
    problems: list[TorchyardError] = field(default_factory=list)
    error: TorchyardError | None = None
    """The error that prevented the check."""

    @property
    def enforcement(self) -> Enforcement | None:
        """The agent's enforcement state; None if unknown."""
        if self.bookings is None:
            return None
        rules, acts_on = self.bookings["enforcement"], self.bookings["capabilities"]["acts_on"]
        found = sum(one["verdict"] == "others" for one in self.bookings["findings"])
        reported = (one for one in self.bookings["findings"] if one["verdict"] in ("root", "unknown"))
        # The agent reports a process once for each GPU that the process uses, so duplicates are removed.
        violations = tuple(dict.fromkeys(f"{one['program']} (PID {one['pid']}) {origin_text(one)}" for one in reported))
        return Enforcement(
            rules["level"], rules["dry_run"], acts_on == "all", self.bookings["fresh"], found, violations
        )

    @property
    def exit_code(self) -> int:
        return {READY: 0, DEGRADED: 1}.get(self.state, 3)

    def to_json(self) -> dict[str, Any]:
        shown = {name: value for name, value in self.__dict__.items() if name != "error"}
        return {**shown, "problems": [problem.to_json() for problem in self.problems]}


def check_host(
    fleet: Fleet,
    name: str,
    *,
    install: bool = True,
    replace_same_version: bool = False,
    progress: Progress = lambda host, done, total: None,
    looking: Callable[[], None] = lambda: None,
) -> HostCheck:
    """Connects to a host and reads its facts. Errors are part of the result.

    Args:
        install: Whether to install an agent on a host without one.
        replace_same_version: Whether to replace an agent of the same version that has other sources.
        progress: Called with (host, bytes sent, total bytes) while the agent is sent.
        looking: Called after the agent has answered and before the facts are read.
    """
    try:
        link = fleet.link(name, install=install, replace_same_version=replace_same_version, progress=progress)
        looking()
        return check_of(name, link.hello, fleet.look(name, None))
    except HostError as error:
        return failed_check(name, error.state, error)
    except AgentRefused as refusal:
        return failed_check(name, DEGRADED, refusal)


def check_of(name: str, hello: dict[str, Any], facts: dict[str, Any]) -> HostCheck:
    """Returns the result of checking a host that answers, from its agent's `hello` and `host.facts`."""
    python = facts.get("python") or {}
    problems = [agent_problem(name, problem) for problem in facts.get("problems", [])]
    return HostCheck(
        name,
        DEGRADED if problems else READY,
        agent={key: hello[key] for key in ("version", "sha256", "pid")},
        python=f"{python['version']} at {python['path']}" if python.get("version") else None,
        torch=facts.get("torch"),
        cpus=facts.get("cpus"),
        memory_gb=facts.get("memory_gb"),
        gpus=[{key: gpu[key] for key in ("index", "uuid", "name", "memory_mb")} for gpu in facts.get("gpus", [])],
        bookings=facts.get("bookings"),
        problems=problems,
    )


def failed_check(name: str, state: str, error: TorchyardError) -> HostCheck:
    """Returns the result of checking a host that could not be used."""
    return HostCheck(name, state, problems=[error], error=error)


def gpu_summary(names: Sequence[str]) -> str:
    """Formats GPUs as `8 × NVIDIA H100`, or `none`."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).items()) or "none"
