"""The main loop of the daemon. It takes over from `hello_server`, and serves requests until the daemon is retired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import Any

from torchyard_agent import unix_socket_rpc
from torchyard_agent.daemon import systemd_unit
from torchyard_agent.daemon.garbage_collection_trigger import GarbageCollectionTrigger
from torchyard_agent.daemon.hello_server import Conversations
from torchyard_agent.daemon.rpc_methods import Methods
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.daemon.subscriptions import Telemetry
from torchyard_agent.protocol import paths
from torchyard_agent.telemetry.sampler import Sampler

COMPILE_AFTER_S = 3.0
"""Delay in seconds before bytecode is compiled, so that the desktop's first requests are answered quickly."""

log = logging.getLogger(__name__)


async def serve_until_retired(
    agent_dir: str, hello: dict[str, Any], listener: socket.socket, conversations: Conversations
) -> None:
    """Serves `listener` and the open sockets until a call of `retire` or `undeploy`, or until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    loop = asyncio.get_running_loop()
    retired = asyncio.Event()
    runs = Runs(agent_dir, hello["node"])
    telemetry = Telemetry(runs, Sampler(agent_dir))
    trigger = GarbageCollectionTrigger(agent_dir, hello["node"], hello["sha256"])
    api = Methods(agent_dir, hello, runs, telemetry, retired.set)
    methods = trigger.watch(api.table())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, retired.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    connections: set[unix_socket_rpc.Connection] = set()
    listener.setblocking(False)
    server = await unix_socket_rpc.serve(listener, methods, connections)
    for client, pending in conversations:
        await unix_socket_rpc.adopt(client, pending, methods, connections)
    api.bookings.begin()
    log.info("daemon of %s, archive %s, pid %d", hello["node"], hello["sha256"][:12], os.getpid())
    loop.call_later(COMPILE_AFTER_S, partial(_compile, loop, paths.archive_dir(agent_dir, hello["sha256"])))
    with contextlib.suppress(OSError):
        # The systemd unit is not essential. If it cannot be installed, for example because the home folder is not
        # writable, the next desktop that connects after a reboot starts the daemon.
        if systemd_unit.install(agent_dir, hello["sha256"]):
            log.info("systemd starts the daemon after a reboot")
    await retired.wait()
    api.bookings.close()
    server.close()
    for connection in list(connections):
        connection.close()
    log.info("daemon retired")


def _compile(loop: asyncio.AbstractEventLoop, archive: str) -> None:
    """Compiles the archive's modules to bytecode in a background process. Keepers then start faster."""
    script = os.path.join(archive, "torchyard_agent", "daemon", "bytecode.py")
    command, null = ["nice", "-n", "19", sys.executable, "-I", "-S", script, archive], subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    loop.run_in_executor(None, process.wait)
