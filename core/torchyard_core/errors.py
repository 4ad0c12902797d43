"""The exceptions of Torchyard, as one tree. Each has a code, a message for the user, and advice: the next steps.

TorchyardError
├── UsageError          wrong usage, an unreadable or unparsable file (exit code 2)
│   └── FileProblem     a file that is missing, not readable, not YAML
├── HostError           a host could not be reached or used (exit code 3)
│   ├── Unreachable     no answer, name not found, connection refused
│   ├── KeyUnknown      the host's key was never seen
│   ├── KeyChanged      the host's key is not the one we know
│   ├── LoginRefused    wrong user, key or password
│   ├── NoPython        no Python ≥ 3.9 on the host
│   └── AgentFailed     the agent could not be installed, started or spoken to
│       └── AgentMissing  no agent is installed, and none was to be installed
├── AgentRefused        an agent answered a request with an error (exit code 1)
│   └── AgentTooOld     the agent does not know the method
└── RunFailed           the run, or a check before it, failed (exit code 1)
"""

from __future__ import annotations

from collections.abc import Mapping

from torchyard_core.next_steps import (
    Advice,
    DeployAgent,
    ListRuns,
    NextStep,
    SetHostField,
    StopRun,
    TrustKey,
    advice_text,
    steps_of,
)


class TorchyardError(Exception):
    """Base of all errors with an explanation: `message` says what and where, `advice` what to do."""

    exit_code = 1

    def __init__(self, message: str, *, code: str = "failed", hint: Advice = ""):
        super().__init__(message)
        self.message = message
        self.code = code
        self.advice = hint

    @property
    def next(self) -> tuple[NextStep, ...]:
        """The steps of the advice."""
        return steps_of(self.advice)

    @property
    def hint(self) -> str:
        """The advice as text for the command line."""
        return advice_text(self.advice)

    def sentence(self) -> str:
        """Message and hint as one paragraph."""
        message = self.message if self.message.endswith((".", "!", "?", ":", "\n")) else f"{self.message}."
        return f"{message} {self.hint}".strip()

    def to_json(self) -> dict[str, str]:
        """Code, message and hint, for machine-readable output."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(TorchyardError):
    """Raised for wrong usage of a command."""

    exit_code = 2


class FileProblem(UsageError):
    """Raised when a document cannot be read at all, or its YAML does not parse."""


class HostError(TorchyardError):
    """Raised when a host cannot be reached or used. `host` is its name in the fleet, `state` the one that `hosts check`
    shows."""

    exit_code = 3
    state = "unreachable"

    def __init__(self, host: str, message: str, *, code: str = "", hint: Advice = ""):
        super().__init__(message, code=code or self.state.replace(" ", "_"), hint=hint)
        self.host = host


class Unreachable(HostError):
    """Raised when the host does not answer, its name is unknown, or the port refuses the connection."""


class KeyUnknown(HostError):
    """Raised when the host's key is not on record: strict checking refuses until the user trusts it."""

    state = "key unknown"

    def __init__(self, host: str, message: str, *, fingerprint: str, hint: Advice = ""):
        super().__init__(host, message, hint=hint)
        self.fingerprint = fingerprint


class KeyChanged(HostError):
    """Raised when the host shows another key than the one on record."""

    state = "key changed"

    def __init__(self, host: str, message: str, *, fingerprint: str, on_record: str = "", hint: Advice = ""):
        warning = "The host was reinstalled, or the connection is intercepted: trust the key if its owner confirms it."
        super().__init__(host, message, hint=hint or (warning, TrustKey(host)))
        self.fingerprint = fingerprint
        self.on_record = on_record


class LoginRefused(HostError):
    """Raised when the host accepts none of the user's keys, or not this user."""

    state = "login refused"


class NoPython(HostError):
    """Raised when no interpreter ≥ 3.9 is found on the host."""

    state = "no python"


class AgentFailed(HostError):
    """Raised when the agent cannot be installed, started or spoken to."""

    state = "agent missing"


class AgentMissing(AgentFailed):
    """Raised when a host has no agent, and none was to be installed."""


class AgentRefused(TorchyardError):
    """Raised when the agent of `host` answers a request with an error; the message is the agent's."""

    def __init__(self, host: str, message: str, *, code: str, hint: Advice = ""):
        super().__init__(f"{host}: {message}", code=code, hint=hint)
        self.host = host


PYTHON_PROBLEMS = ("python_missing", "python_too_old", "python_broken", "no_torch")
"""Codes of an agent's problems with the interpreter for programs."""


def agent_advice(host: str, code: str, hint: str, run_id: str = "") -> Advice:
    """The advice for an agent's error or problem: its text, and the steps that belong to its code."""
    elsewhere = SetHostField(host, "agent_dir")
    steps: dict[str, tuple[NextStep, ...]] = {
        "run_alive": (StopRun(run_id) if run_id else ListRuns(),),
        "no_run": (ListRuns(),),
        "disk_nearly_full": (ListRuns(), elsewhere),
        "disk_full": (elsewhere,),
        **dict.fromkeys(PYTHON_PROBLEMS, (SetHostField(host, "python"),)),
    }
    return (hint, *steps.get(code, ()))


def agent_problem(host: str, problem: Mapping[str, str]) -> TorchyardError:
    """A problem of `host.facts`."""
    code = problem.get("code", "")
    return TorchyardError(problem["message"], code=code, hint=agent_advice(host, code, problem.get("hint", "")))


class AgentTooOld(AgentRefused):
    """Raised when an agent of another version does not know the requested `method`."""

    def __init__(self, host: str, version: str, method: str, *, is_newer: bool = False):
        hint: Advice = "Upgrade Torchyard here." if is_newer else DeployAgent(host)
        super().__init__(host, "", code="unknown_method", hint=hint)
        self.message = f"{host}'s agent {version} does not know {method}."


class RunFailed(TorchyardError):
    """Raised when a check before a run, or the run itself, failed."""
