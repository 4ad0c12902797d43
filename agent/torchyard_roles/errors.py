"""Exceptions that reach a training script.

RolesError                 base class: a message and a hint
├── EnvironmentProblem     the environment is inconsistent, or the host lacks something that it names
├── UsageProblem           a wrong call, such as distribute() after the first step
├── NotInThisVersion       a strategy that the installed torchyard_roles does not have
├── StoreLost              the run's join store no longer answers
├── StoreTimeout           another process did not make an expected call in time, such as mean()
├── PeerLost               a process of the run is gone
├── NotFinite              the gradients of a step are NaN or infinite, and strategy.on_nan is fail
└── ProtocolError          the peer sent an invalid message, or has another key, size or dtype
"""

from __future__ import annotations


class RolesError(RuntimeError):
    """An error with a message, and a hint with the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class EnvironmentProblem(RolesError):
    """Raised by join()."""


class UsageProblem(RolesError):
    """Raised by the wrong call, so that the traceback shows its line."""


class NotInThisVersion(RolesError):
    """Raised by join()."""


class StoreLost(RolesError):
    """Raised by every call on a join store that was unreachable for 10 s."""


class StoreTimeout(RolesError):
    """Raised by JoinStore.get() and JoinStore.wait(), distribute(), and the collective calls."""


class PeerLost(RolesError):
    """Raised by calls that wait for the peer, such as a step or connect().

    Attributes:
        name: of the peer, such as `reducer-1`.
        host: its address.
        why: the reason, as a clause.
    """

    def __init__(self, name: str, host: str, why: str) -> None:
        super().__init__(f"{name} on {host} is gone: {why}.")
        self.name = name
        self.host = host
        self.why = why


class ProtocolError(RolesError):
    """Raised before the payload of an invalid message is received. The connection is unusable afterwards."""


class NotFinite(RolesError):
    """Raised by the optimizer's step() before the gradients are used or sent.

    On a GPU the check is asynchronous: the next step raises it, or the end of training.
    """
