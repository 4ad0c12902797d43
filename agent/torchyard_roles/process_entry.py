"""The function join(), by which a process enters the run as a trainer, an evaluator or a server."""

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

    from torchyard_roles.strategies.strategy import Strategy

_joined: Cluster | None = None


def join(strategy: Callable[[Environment], Strategy] | None = None) -> Cluster:
    """Joins the run, and connects to the other processes as the strategy requires.

    If neither Torchyard nor torchrun set the environment, the run has one process. Further calls return the same
    cluster until leave() is called. In a parameter server or reducer, join() handles requests until training ends, and
    then exits the process.

    Args:
        strategy: A function that creates a custom strategy, which replaces `all_reduce` if several processes train.

    Raises:
        RolesError: The environment is invalid, or a peer cannot be reached.
    """
    global _joined
    if _joined is None or _joined.has_left:
        environment = read(os.environ)
        check_torch()
        if environment.role in ("ps", "reducer"):
            _serve(environment)
            raise SystemExit(0)
        # torch and the modules that need torch are imported only here, so importing torchyard_roles is fast.
        from torchyard_roles.devices import choose
        from torchyard_roles.strategies import registry

        device = choose(environment)
        chosen = registry.choose(environment, strategy)
        chosen.start(device)
        _joined = Cluster(environment, chosen, device)
        _at_exit(_joined._leave_at_exit)
    return _joined


def _serve(environment: Environment) -> None:
    """Handles requests until the trainers have left. Converts a RolesError to SystemExit with the error's message."""
    try:
        if environment.role == "ps" and environment.strategy == "diloco":
            from torchyard_roles.strategies.diloco.outer_server import serve
        elif environment.role == "ps":
            from torchyard_roles.strategies.parameter_server.server_process import serve
        elif environment.strategy == "diloco":
            from torchyard_roles.strategies.diloco.averaging_reducer import serve
        else:
            from torchyard_roles.strategies.reduction_server.reducer import serve
        serve(environment)
    except RolesError as error:
        raise SystemExit(f"torchyard: {error}") from None


def _at_exit(leave: Callable[[], None]) -> None:
    """Registers `leave` to be called at the end of the script, while threads can still be started.

    leave() needs threads to contact all servers concurrently. In `atexit` callbacks, executors accept no work (Python
    3.9) and no thread can be started (3.12). Therefore `leave` is registered together with the callbacks that end the
    threads of executors, which run earlier than `atexit` callbacks.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(leave)
