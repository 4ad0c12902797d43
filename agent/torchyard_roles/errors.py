"""What a training script is told when it or its environment cannot work.

RolesError                 the base: a sentence, and what to do next
├── EnvironmentProblem     the environment contradicts itself, or promises what the host does not have
├── UsageProblem           a call that cannot be meant like that, such as distribute() twice
├── NotInThisVersion       a strategy or role that the installed torchyard_roles does not have
├── StoreLost              the run's join store does not answer any more
├── StoreTimeout           another process did not do in time what this one waited for, such as calling mean()
├── PeerLost               another process of the run that this one exchanges with is gone, by name
├── NotFinite              a step's gradients are NaN or infinite, and the topology says that this ends the run
└── ProtocolError          the other end of a connection says what cannot be: another key, size or dtype
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


class StoreLost(RolesError):
    """Raised by every call on a join store that could not be reached, or reached again, for 10 s."""

    code = "store_lost"


class StoreTimeout(RolesError):
    """Raised by JoinStore.get and JoinStore.wait, distribute(), and the calls over all trainers."""

    code = "store_timeout"


class PeerLost(RolesError):
    """Raised by what waits for the peer: the exchange of a step, or the connection's making.

    `name` as in `reducer-1`, `host` its address, `why` half a sentence.
    """

    code = "peer_lost"

    def __init__(self, name: str, host: str, why: str) -> None:
        super().__init__(f"{name} on {host} is gone: {why}.")
        self.name = name
        self.host = host
        self.why = why


class ProtocolError(RolesError):
    """Raised before a byte of what does not fit is received. The connection is of no use afterwards."""

    code = "protocol"


class NotFinite(RolesError):
    """Raised by the optimizer's step(), before the gradients are used or sent; where they are on a GPU that is not
    waited for, by the step after it, or at the end."""

    code = "not_finite"
