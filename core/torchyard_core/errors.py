"""The general exceptions of Torchyard. Each has a code, a message for the user, and advice: sentences and next steps.

TorchyardError
├── UsageError          wrong arguments, settings or files (exit code 2)
│   └── FileProblem     a file that cannot be read or written, or is not valid YAML
├── HostError           a host could not be reached or used (exit code 3)
│   ├── Unreachable     no usable connection to the host
│   ├── KeyUnknown      the host's key is not recorded
│   ├── KeyChanged      the host's key differs from the recorded key
│   ├── LoginRefused    the host accepted none of the user's credentials
│   ├── NoPython        no Python ≥ 3.9 on the host
│   └── AgentFailed     the agent could not be installed, started or contacted
│       └── AgentMissing  no agent is installed, and the caller did not request an installation
├── AgentRefused        an agent answered a request with an error (exit code 1)
│   └── AgentTooOld     the agent does not support the method
└── RunFailed           the run, or a check before the run, failed (exit code 1)
    └── InvalidFile     files of a launch have errors
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
    """Base class of Torchyard's errors. `message` describes the problem, `advice` the remedy."""

    exit_code = 1

    def __init__(self, message: str, *, code: str = "failed", hint: Advice = ""):
        super().__init__(message)
        self.message = message
        self.code = code
        self.advice = hint
        self.topology_problem = ""
        """The message without file name and line number, if the error is in a topology file; otherwise ""."""

    @property
    def next(self) -> tuple[NextStep, ...]:
        """The next steps contained in the advice."""
        return steps_of(self.advice)

    @property
    def hint(self) -> str:
        """The advice as text for the command line."""
        return advice_text(self.advice)

    def sentence(self) -> str:
        """Returns the message, followed by the hint."""
        message = self.message if self.message.endswith((".", "!", "?", ":", "\n")) else f"{self.message}."
        gap = "\n" if "\n" in self.message.rstrip() else " "  # The message may end with the output of a program.
        return f"{message}{gap}{self.hint}".strip()

    def to_json(self) -> dict[str, str]:
        """Returns the code, the message and the hint for machine-readable output."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(TorchyardError):
    """Raised when the arguments of a command, the user's settings or a file are wrong."""

    exit_code = 2


class FileProblem(UsageError):
    """Raised when a file cannot be read or written, or its YAML is invalid."""


class HostError(TorchyardError):
    """Raised when a host cannot be reached or used.

    `host` is the host's name in the fleet; `state` is the state that `hosts check` shows for the host.
    """

    exit_code = 3
    state = "unreachable"

    def __init__(self, host: str, message: str, *, code: str = "", hint: Advice = ""):
        super().__init__(message, code=code or self.state.replace(" ", "_"), hint=hint)
        self.host = host


class Unreachable(HostError):
    """Raised when there is no usable connection to the host.

    Examples are a host that does not answer, an unknown address, a refused or lost connection, and a host that is not
    in the fleet file.
    """


class KeyUnknown(HostError):
    """Raised when the host's key is not recorded. Torchyard does not use the host until the user trusts the key."""

    state = "key unknown"

    def __init__(self, host: str, message: str, *, fingerprint: str, hint: Advice = ""):
        super().__init__(host, message, hint=hint)
        self.fingerprint = fingerprint


class KeyChanged(HostError):
    """Raised when the host presents a key other than the recorded one."""

    state = "key changed"

    def __init__(self, host: str, message: str, *, fingerprint: str, on_record: str = "", hint: Advice = ""):
        warning = "The host was reinstalled, or the connection is intercepted: trust the key if its owner confirms it."
        super().__init__(host, message, hint=hint or (warning, TrustKey(host)))
        self.fingerprint = fingerprint
        self.on_record = on_record


class LoginRefused(HostError):
    """Raised when the user cannot log in to the host with any of the available keys or with the password."""

    state = "login refused"


class NoPython(HostError):
    """Raised when the host has no Python interpreter of version 3.9 or later."""

    state = "no python"


class AgentFailed(HostError):
    """Raised when the agent cannot be installed, started or contacted."""

    state = "agent missing"


class AgentMissing(AgentFailed):
    """Raised when a host has no agent and the caller did not request an installation."""


class AgentRefused(TorchyardError):
    """Raised when the agent of `host` answers a request with an error. The message begins with the host's name."""

    def __init__(self, host: str, message: str, *, code: str, hint: Advice = ""):
        super().__init__(f"{host}: {message}", code=code, hint=hint)
        self.host = host


PYTHON_PROBLEMS = ("python_missing", "python_too_old", "python_broken", "no_torch")
"""Codes under which agents report problems with the Python interpreter for training programs."""


def agent_advice(host: str, code: str, hint: str, run_id: str = "") -> Advice:
    """Returns the advice for an error that an agent has reported: its `hint`, and the next steps for its `code`."""
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
    """Returns an error for a problem that an agent reports in its answer to `host.facts`."""
    code = problem.get("code", "")
    return TorchyardError(problem["message"], code=code, hint=agent_advice(host, code, problem.get("hint", "")))


class AgentTooOld(AgentRefused):
    """Raised when an agent of another version does not support the requested `method`."""

    def __init__(self, host: str, version: str, method: str, *, is_newer: bool = False):
        hint: Advice = "Upgrade Torchyard here." if is_newer else DeployAgent(host)
        super().__init__(host, "", code="unknown_method", hint=hint)
        self.message = f"{host}'s agent {version} does not know {method}."


class RunFailed(TorchyardError):
    """Raised when a check before a run, or the run itself, failed."""


class InvalidFile(RunFailed):
    """Raised when the files of a launch have errors. The message has one line per problem, as printed by `validate`."""
