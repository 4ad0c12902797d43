"""The daemon: one per user and host. Answers desktops and measures; no run depends on it."""

from __future__ import annotations

import os
import socket
from typing import Callable

from torchyard_agent import __version__, umask
from torchyard_agent.daemon import audit, installed_version
from torchyard_agent.daemon.hello_server import answer_hello
from torchyard_agent.protocol import PROTOCOL

OLDEST_PROTOCOL = 1
"""Desktops that speak this one or a later one are understood."""


def main(
    agent_dir: str, node: str, sha256: str, listener: socket.socket, settle: Callable[[], None], by: str = ""
) -> int:
    """Serves until it is told to retire.

    `listener` is bound to the daemon's name already; `settle` unpacks an archive that runs from memory so far; `by` has
    it started, as the desktop says.
    """
    umask.keep_files_private()  # systemd starts it with another
    with open("/proc/self/comm", "w") as name:
        name.write("torchyard-agent")  # what `ps` and `top` show; the command line is the bootstrap's
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
    from torchyard_agent.daemon.server import serve_until_retired

    serve_until_retired(agent_dir, hello, listener, conversations)
    return 0
