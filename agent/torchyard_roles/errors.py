"""What a training script is told when it or its environment cannot work.

RolesError                 the base: a sentence, and what to do next
├── EnvironmentProblem     the environment contradicts itself, or promises what the host does not have
├── UsageProblem           a call that cannot be meant like that, such as distribute() twice
└── NotInThisVersion       a strategy or role that the installed torchyard_roles does not have
"""

from __future__ import annotations


class RolesError(RuntimeError):
    """`code` for programs, a sentence for people, and a hint that says what to do next."""

    code = "roles"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class EnvironmentProblem(RolesError):
    """Raised by join()."""

    code = "environment"


class UsageProblem(RolesError):
    """Raised by the call that is wrong, so that the traceback points at its line."""

    code = "usage"


class NotInThisVersion(RolesError):
    """Raised by join()."""

    code = "not_in_this_version"
