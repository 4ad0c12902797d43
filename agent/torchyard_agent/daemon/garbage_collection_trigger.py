"""Starts garbage collection as a separate process, at most once an hour and only after a request from a desktop.

An idle daemon therefore has no timer. The hour is measured from the modification time of a file, so the limit also
applies across restarts of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from typing import Any

from torchyard_agent.protocol import paths
from torchyard_agent.unix_socket_rpc import Connection, Method

EVERY_S = 3600.0
AFTER_S = 5.0
"""Delay in seconds between a request and the collection.

If the request is followed by a launch, the launch has usually begun before the collection starts.
"""

log = logging.getLogger(__name__)


class GarbageCollectionTrigger:
    """Wraps the daemon's methods so that a request can trigger a collection."""

    def __init__(self, agent_dir: str, node: str, sha256: str):
        self._agent_dir = agent_dir
        self._node = node
        self._sha256 = sha256
        self._not_before = float("-inf")

    def watch(self, methods: dict[str, Method]) -> dict[str, Method]:
        """Returns methods that first call `trigger` and then the original methods."""

        def watched(method: Method) -> Method:
            async def answer(connection: Connection, params: dict[str, Any]) -> Any:
                self.trigger()
                return await method(connection, params)

            return answer

        return {name: watched(method) for name, method in methods.items()}

    def trigger(self) -> None:
        """Schedules a collection if one is due."""
        now = time.monotonic()
        if now < self._not_before:
            return
        wait = self._due_in()
        self._not_before = now + (wait or EVERY_S)
        if not wait:
            asyncio.get_running_loop().call_later(AFTER_S, self._start)

    def _due_in(self) -> float:
        """Returns the time in seconds until the next collection is due, or 0 if it is due now."""
        with contextlib.suppress(OSError):
            age = time.time() - os.stat(paths.gc_state(self._agent_dir, self._node)).st_mtime
            if 0 <= age < EVERY_S:
                return EVERY_S - age
        return 0.0

    def _start(self) -> None:
        archive = paths.archive_dir(self._agent_dir, self._sha256)
        try:
            starter = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, TITLE, archive, self._agent_dir, self._node, self._sha256],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            log.warning("garbage collection cannot be started: %s", error)
            return
        asyncio.get_running_loop().run_in_executor(None, starter.wait)


TITLE = "torchyard-agent garbage-collection"
_CODE = """
import os, sys
if os.fork():
    os._exit(0)
os.nice(19)
archive, agent_dir, node, sha256 = sys.argv[2:]
sys.path.insert(0, archive)
sys.modules["ssl"] = None
sys.dont_write_bytecode = True
from torchyard_agent.daemon.garbage_collection import main
sys.exit(main(agent_dir, node, sha256))
"""
"""The Python code of the process that collects garbage.

The process forks and its parent exits, so the collection is not a child of the daemon. The daemon can therefore be
replaced without waiting for the collection.
"""
