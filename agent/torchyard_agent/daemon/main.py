"""The entry point of the daemon. Each user has one daemon per host. Runs that have begun do not depend on a daemon."""

from __future__ import annotations

import os
import socket
from typing import Callable

from torchyard_agent import __version__, installed_version, umask
from torchyard_agent.daemon import audit
from torchyard_agent.daemon.hello_server import answer_hello
from torchyard_agent.protocol import PROTOCOL

OLDEST_PROTOCOL = 1
"""The oldest protocol version of desktops that this daemon supports."""


def main(
    agent_dir: str, node: str, sha256: str, listener: socket.socket, settle: Callable[[], None], by: str = ""
) -> int:
    """Serves until the daemon must exit, for example because `retire` was called.

    Args:
        listener: A socket that is bound to the daemon's abstract address.
        settle: Unpacks the agent's archive if the agent runs from memory.
        by: The name of the user whose desktop started the daemon.
    """
    umask.keep_files_private()  # systemd starts the daemon with another umask.
    with open("/proc/self/comm", "w") as name:
        # `top` and `ps -e` show this name. The command line is still the bootstrap's.
        name.write("torchyard-agent")
    hello = {
        "version": __version__,
        "protocol": PROTOCOL,
        "oldest_protocol": OLDEST_PROTOCOL,
        "sha256": sha256,
        "pid": os.getpid(),
        "node": node,
    }
    audit.note_start(agent_dir, node, __version__, sha256, by)

    def note_retirement(params: dict[str, object]) -> None:
        audit.note(agent_dir, node, "retire", params.get("by"))

    def settle_and_note() -> None:
        settle()
        installed_version.note(agent_dir, node, __version__, sha256)

    conversations = answer_hello(listener, hello, settle_and_note, note_retirement)
    if conversations is None:
        return 0
    settle_and_note()
    import asyncio

    from torchyard_agent.daemon.lifecycle import serve_until_retired

    asyncio.run(serve_until_retired(agent_dir, hello, listener, conversations))
    return 0
