"""A keeper as a process.

Its imports come late: what they bring along is decided first. OpenSSL, which `hashlib` would load, is 4 MB
resident for each run on a host; Python's own SHA-256 is enough for the gang link's few frames.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def main(agent_dir: str, node: str, run_id: str) -> int:
    """Keeps one run on this host until it is over. 1 where the run has a keeper already."""
    _leave_out_openssl()
    import asyncio
    import logging
    import signal

    from torchyard_agent import unix_socket_rpc
    from torchyard_agent.keeper import control_socket
    from torchyard_agent.keeper.keeper import Keeper
    from torchyard_agent.keeper.processes import process_control
    from torchyard_agent.keeper.timeouts import Patience
    from torchyard_agent.protocol import paths

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for number in (signal.SIGHUP, signal.SIGINT):  # a terminal's; a keeper belongs to none
        signal.signal(number, signal.SIG_IGN)
    process_control.become_subreaper()
    process_control.raise_descriptor_limit()
    folder = paths.run_dir(agent_dir, node, run_id)
    name = paths.random_socket(os.getuid())
    listener = unix_socket_rpc.bind(name)

    async def keep() -> int:
        keeper = Keeper(agent_dir, node, run_id, Patience.read(os.environ))
        # Every socket is bound before the keeper can be found.
        if not control_socket.publish(folder, name):
            print(f"the run {run_id} has a keeper on this host already", file=sys.stderr)
            return 1
        try:
            await keeper.live(listener)
        finally:
            control_socket.withdraw(folder)
        return 0

    return asyncio.run(keep())


def _leave_out_openssl() -> None:
    """Some distributions build Python without SHA-256 of its own: there OpenSSL stays."""
    has_own = any(importlib.util.find_spec(name) for name in ("_sha2", "_sha256"))
    if has_own and "hashlib" not in sys.modules:
        sys.modules["_hashlib"] = None  # type: ignore[assignment]  # Python's own word for: not to be imported
