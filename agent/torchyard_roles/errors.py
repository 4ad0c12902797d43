"""Exceptions that reach a training script.

RolesError                 base class: a message and a hint
├── EnvironmentProblem     the environment is inconsistent, or the host lacks something that is required
├── UsageProblem           a wrong call, such as distribute() after the first step
├── NotInThisVersion       a strategy that the installed torchyard_roles does not have
├── StoreLost              the run's join store no longer answers
├── StoreTimeout           another process did not make an expected call in time, such as mean()
├── PeerLost               a process of the run has exited or is unreachable
├── NotFinite              the gradients of a step are NaN or infinite, and strategy.on_nan is fail
└── ProtocolError          the peer sent an invalid message, or has a different key, size or dtype
"""

from __future__ import annotations


class RolesError(RuntimeError):
    """The base class of errors, with a message and a hint about what the user can do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class EnvironmentProblem(RolesError):
    """Raised when the environment is invalid or inconsistent.

    join() raises it, and so do collective calls if trainers cannot connect.
    """


class UsageProblem(RolesError):
    """Raised when a call is wrong, or does not agree with the other trainers or the checkpoint."""


class NotInThisVersion(RolesError):
    """Raised by join() when the installed version of torchyard_roles does not have the strategy."""


class StoreLost(RolesError):
    """Raised when the join store was unreachable for 10 s, or its connection was closed.

    Every later request to the store raises this error too.
    """


class StoreTimeout(RolesError):
    """Raised by JoinStore.get(), wait(), distribute() and collective calls when another process did not act in time."""


class PeerLost(RolesError):
    """Raised when a process of the run has exited or is unreachable.

    Calls that wait for that process raise this error, such as connect() or the optimizer's step().

    Attributes:
        name: The name of the peer, such as `reducer-1`.
        host: The address of the peer.
        why: The reason, as a clause.
    """

    def __init__(self, name: str, host: str, why: str) -> None:
        super().__init__(f"{name} on {host} is gone: {why}.")
        self.name = name
        self.host = host
        self.why = why


class ProtocolError(RolesError):
    """Raised when a message from a peer is invalid, before its payload is received.

    The connection cannot be used afterwards.
    """


class NotFinite(RolesError):
    """Raised by the optimizer's step() when gradients are NaN or infinite, before the gradients are used or sent.

    On a GPU the check is asynchronous, and the error is raised by the next step or at the end of training.
    """
