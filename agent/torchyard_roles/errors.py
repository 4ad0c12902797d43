"""Exceptions that reach a training script.

RolesError                 base class: a message and a hint
├── EnvironmentProblem     the environment is inconsistent, or the host lacks something that it names
├── UsageProblem           a wrong call, such as distribute() after the first step
├── NotInThisVersion       a strategy that the installed torchyard_roles does not have
├── StoreLost              the run's join store no longer answers
├── StoreTimeout           another process did not make an expected call in time, such as mean()
├── PeerLost               a process of the run has ended or is unreachable
├── NotFinite              the gradients of a step are NaN or infinite, and strategy.on_nan is fail
└── ProtocolError          the peer sent an invalid message, or has a different key, size or dtype
"""

from __future__ import annotations


class RolesError(RuntimeError):
    """The base class of errors, with a message and a hint about the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class EnvironmentProblem(RolesError):
    """The environment is invalid or inconsistent.

    Raised by join(), and by collective calls if trainers cannot connect.
    """


class UsageProblem(RolesError):
    """A call is wrong, or does not fit the other trainers or the checkpoint."""


class NotInThisVersion(RolesError):
    """The strategy is not available in the installed version of torchyard_roles. Raised by join()."""


class StoreLost(RolesError):
    """The join store was unreachable for 10 s, or its connection was closed.

    Every later request raises this error too.
    """


class StoreTimeout(RolesError):
    """Another process did not act in time. Raised by JoinStore.get() and wait(), distribute() and collective calls."""


class PeerLost(RolesError):
    """A process of the run has ended or is unreachable.

    Raised by calls that wait for that process, such as connect() or the optimizer's step().

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
    """A message from a peer is invalid. Raised before the payload is received.

    The connection cannot be used afterwards.
    """


class NotFinite(RolesError):
    """Gradients are NaN or infinite. Raised by the optimizer's step() before the gradients are used or sent.

    On a GPU the check is asynchronous, and the error is raised by the next step or at the end of training.
    """
