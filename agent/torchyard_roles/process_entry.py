"""join(): a process takes its place in the run, or serves in it."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from torchyard_roles.cluster import Cluster
from torchyard_roles.environment import Environment, read
from torchyard_roles.errors import RolesError
from torchyard_roles.script_checks import check_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchyard_roles.strategies.base import Strategy

_joined: Cluster | None = None


def join(strategy: Callable[[Environment], Strategy] | None = None) -> Cluster:
    """Take this process's place in the run, and wait until the other trainers are there.

    Without Torchyard's or torchrun's environment it is a run of one process, and nothing is waited for.
    Called again it returns the same cluster. Parameter servers and reducers do not return from here: they serve, and
    their process ends with 0, or with 1 after a sentence. `strategy` makes one of the script's own, in place of the
    topology's, where several processes train. Raises RolesError with a sentence where the environment cannot work.
    """
    global _joined
    if _joined is None or _joined.has_left:
        environment = read(os.environ)
        check_torch()
        if environment.role in ("ps", "reducer"):
            _serve(environment)
            raise SystemExit(0)
        # torch and all that needs it are imported here, so that importing torchyard_roles costs nothing.
        from torchyard_roles.devices import choose
        from torchyard_roles.strategies import registry

        device = choose(environment)
        chosen = registry.choose(environment, strategy)
        chosen.start(device)
        _joined = Cluster(environment, chosen, device)
        _at_exit(_joined._leave_at_exit)
    return _joined


def _serve(environment: Environment) -> None:
    """Until the trainers have gone. Raises SystemExit with a sentence: a traceback would tell the user nothing."""
    try:
        if environment.role == "ps":
            from torchyard_roles.strategies.parameter_server import server_process as serving

            serving.serve(environment)
        else:
            from torchyard_roles.strategies.reduction_server import reducer_process as reducing

            reducing.serve(environment)
    except RolesError as error:
        raise SystemExit(f"torchyard: {error}") from None


def _at_exit(leave: Callable[[], None]) -> None:
    """Have it called when the script has come to its end, while threads can still be started.

    In callbacks of `atexit` they cannot: executors take no more work since Python 3.9, and no thread starts since
    3.12. But servers are asked all at once for their last save, by threads. So it is called a moment sooner, where
    executors end their own threads.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(leave)
