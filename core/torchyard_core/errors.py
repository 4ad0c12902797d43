"""What can go wrong, as one tree. Each error holds a code, a sentence for people, and what to do next.

TorchyardError
├── UsageError          wrong usage, an unreadable or unparsable file (exit code 2)
│   └── FileProblem     a file that is not there, not readable, not YAML
├── HostError           a host could not be reached or used (exit code 3)
│   ├── Unreachable     no answer, name not found, connection refused
│   ├── KeyUnknown      the host's key was never seen
│   ├── KeyChanged      the host's key is not the one we know
│   ├── LoginRefused    wrong user, key or password
│   ├── NoPython        no Python ≥ 3.9 there
│   └── AgentFailed     the agent could not be installed, started or spoken to
│       └── AgentMissing  there is none, and none was to be put there
├── AgentRefused        an agent answered a request with an error (exit code 1)
│   └── AgentTooOld     it does not know what it was asked for
└── RunFailed           the run, or a check before it, failed (exit code 1)
"""

from __future__ import annotations


class TorchyardError(Exception):
    """Anything that we can explain: `message` says what and where, `hint` what to do."""

    exit_code = 1

    def __init__(self, message: str, *, code: str = "failed", hint: str = ""):
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

    def sentence(self) -> str:
        """Message and hint as one paragraph."""
        message = self.message if self.message.endswith((".", "!", "?", ":", "\n")) else f"{self.message}."
        return f"{message} {self.hint}".strip()

    def to_json(self) -> dict[str, str]:
        """For programs: code, message, hint."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(TorchyardError):
    """Raised for wrong usage of a command."""

    exit_code = 2


class FileProblem(UsageError):
    """Raised when a document cannot be read at all, or its YAML does not parse."""


class HostError(TorchyardError):
    """Raised when a host cannot be reached or used. `host` is its name in the fleet; `state` as `hosts check` says."""

    exit_code = 3
    state = "unreachable"

    def __init__(self, host: str, message: str, *, code: str = "", hint: str = ""):
        super().__init__(message, code=code or self.state.replace(" ", "_"), hint=hint)
        self.host = host


class Unreachable(HostError):
    """Raised when nothing answers, the name is not known, or the port refuses."""


class KeyUnknown(HostError):
    """Raised when the host's key was never seen: strict checking refuses until somebody trusts it."""

    state = "key unknown"

    def __init__(self, host: str, message: str, *, fingerprint: str, hint: str = ""):
        super().__init__(host, message, hint=hint)
        self.fingerprint = fingerprint


class KeyChanged(HostError):
    """Raised when the host shows another key than the one on record."""

    state = "key changed"

    def __init__(self, host: str, message: str, *, fingerprint: str, hint: str = ""):
        super().__init__(host, message, hint=hint)
        self.fingerprint = fingerprint


class LoginRefused(HostError):
    """Raised when the host takes none of our keys, or not this user."""

    state = "login refused"


class NoPython(HostError):
    """Raised when no interpreter ≥ 3.9 is found on the host."""

    state = "no python"


class AgentFailed(HostError):
    """Raised when the agent cannot be installed, started or spoken to."""

    state = "agent missing"


class AgentMissing(AgentFailed):
    """Raised when a host has nothing of ours, and nothing was to be put there."""


class AgentRefused(TorchyardError):
    """Raised when an agent answers a request with an error. `host` is where; the sentence is the agent's own."""

    def __init__(self, host: str, message: str, *, code: str, hint: str = ""):
        super().__init__(f"{host}: {message}", code=code, hint=hint)
        self.host = host


class AgentTooOld(AgentRefused):
    """Raised when an agent of another version does not know the `method` that it was asked for."""

    def __init__(self, host: str, version: str, method: str, *, is_newer: bool = False):
        hint = "Upgrade Torchyard here." if is_newer else f"`torchyard deploy {host}` puts this desktop's there."
        super().__init__(host, "", code="unknown_method", hint=hint)
        self.message = f"{host}'s agent {version} does not know {method}."


class RunFailed(TorchyardError):
    """Raised when a check before a run, or the run itself, failed."""
