"""The main function of a keeper process.

Before it imports other modules, this module prevents `hashlib` from importing OpenSSL, which would take 4 MB of
resident memory in each keeper. Python's own SHA-256 is fast enough for the few frames of the gang link.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchyard_agent.keeper.keeper import Keeper


class Launcher(Protocol):
    """Launches a run in the keeper's process, if the run is a scheduler's job."""

    def on_sigterm(self, keeper: Keeper) -> None: ...

    async def launch(self, keeper: Keeper) -> None: ...

    async def finish(self, outcome: dict[str, Any] | None) -> None: ...


def main(agent_dir: str, node: str, run_id: str, launcher: Launcher | None = None) -> int:
    """Runs the keeper of one run on this host until the run is over.

    Args:
        launcher: Launches the run. If it is None, the daemon launches the run.

    Returns 0, or 1 if the run already has a keeper on this host.
    """
    _leave_out_openssl()
    import asyncio
    import logging
    import signal
    from functools import partial

    from torchyard_agent import unix_socket_rpc
    from torchyard_agent.keeper import control_socket
    from torchyard_agent.keeper.keeper import Keeper
    from torchyard_agent.keeper.processes import open_file_limit, process_control
    from torchyard_agent.keeper.timeouts import Timeouts
    from torchyard_agent.protocol import paths

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A keeper ignores the signals that a terminal sends.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    process_control.become_subreaper()
    open_file_limit.raise_open_file_limit()
    folder = paths.run_dir(agent_dir, node, run_id)
    name = paths.random_socket(os.getuid())
    listener = unix_socket_rpc.bind(name)

    async def keep() -> int:
        keeper = Keeper(agent_dir, node, run_id, Timeouts.read(os.environ))
        # Clients connect as soon as the keeper's address is published, so all sockets must be bound before that.
        if not control_socket.publish(folder, name):
            print(f"the run {run_id} has a keeper on this host already", file=sys.stderr)
            return 1
        if launcher is not None:
            keeper.on_sigterm = partial(launcher.on_sigterm, keeper)
            keeper.continues = True
        launching = asyncio.get_running_loop().create_task(launcher.launch(keeper)) if launcher is not None else None
        try:
            await keeper.run(listener)
            if launcher is not None:
                await launcher.finish(keeper.outcome)
        finally:
            control_socket.withdraw(folder)
            if launching is not None:
                launching.cancel()
        return 0

    return asyncio.run(keep())


def _leave_out_openssl() -> None:
    """Prevents the import of OpenSSL, unless Python was built without its own implementation of SHA-256."""
    has_own = any(importlib.util.find_spec(name) for name in ("_sha2", "_sha256"))
    if has_own and "hashlib" not in sys.modules:
        sys.modules["_hashlib"] = None  # type: ignore[assignment]  # None is Python's convention for a module that cannot be imported.
