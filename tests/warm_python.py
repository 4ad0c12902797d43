"""A `python` for lab hosts and for this machine, whose scripts are forked from a process that has imported torch.

It behaves like the interpreter: it relays signals, ends with the script's exit status, and if either process is killed,
the other one exits, too. The script is a process in the host's namespaces with its own session, environment, folder and
files; `tests.fork_server` forks it. Commands that are neither scripts nor modules (`-m`) are executed by the real
interpreter.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LARGEST_MESSAGE = 1 << 20
SOCKET = "python.socket"
NAMESPACES = ("uts", "ipc", "net", "pid", "mnt")
PR_SET_PDEATHSIG = 1

CLIENT = """\
#!/usr/bin/python3 -IS
import array, os, signal, socket, sys

arguments = sys.argv[1:]
if not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
    os.execv(REAL, [REAL, *arguments])
import json

fork_server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
fork_server.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), SOCKET))


def relay(number, frame):
    try:
        fork_server.send(bytes([number]))
    except OSError:  # the script has ended
        pass


def exit_status():
    while True:
        try:
            return int(fork_server.recv(100) or b"-9")
        except ConnectionResetError:  # an unread signal at the script's end; its exit status follows
            pass


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, relay)
order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
files = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
fork_server.sendmsg([json.dumps(order).encode()], [files])
code = exit_status()
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
os._exit(code)  # without Python's shutdown, which restores handlers and would let a late signal decide the status
"""


def write_client(folder: Path) -> Path:
    """Writes the client `python` into a folder; returns the path of the fork server's socket for this client."""
    client = folder / "python"
    client.write_text(CLIENT.replace("REAL", repr(sys.executable)).replace("SOCKET)", f"{SOCKET!r})"))
    client.chmod(0o755)
    return folder / SOCKET


class HostListener:
    """The socket on which the fork server listens for clients of one host, or of this machine."""

    def __init__(self, path: str, namespaces_of: int | None) -> None:
        self._namespaces_of = namespaces_of
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Path(path).unlink(missing_ok=True)
        self._socket.bind(path)
        self._socket.listen(64)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> socket.socket:
        client, _ = self._socket.accept()
        return client

    def close(self) -> None:
        self._socket.close()

    def enter(self, client: socket.socket) -> tuple[dict[str, Any], list[int]]:
        """Enters the host's namespaces, if any, in a child of the fork server, and forks again there.

        Returns only in the grandchild, with the received request and its file descriptors. The child relays signals,
        and exits when the grandchild exits.
        """
        text, ancillary, _, _ = client.recvmsg(LARGEST_MESSAGE, socket.CMSG_SPACE(12))
        files = array.array("i", ancillary[0][2])
        if self._namespaces_of is not None:
            _join_namespaces(self._namespaces_of)
        script = os.fork()
        if script:
            for file in files:
                os.close(file)
            _relay_signals(client, script)
        client.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        return json.loads(text), list(files)


def _join_namespaces(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES]:
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)


def _relay_signals(client: socket.socket, script: int) -> None:
    """Relays the client's signals until the script exits; never returns."""
    ended = os.pidfd_open(script)
    while True:
        ready, _, _ = select.select([client, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(script, 0)
            with suppress(OSError):
                client.send(b"%d" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        signals = client.recv(1)
        os.kill(script, signals[0] if signals else signal.SIGKILL)
        if not signals:
            os.waitpid(script, 0)
            os._exit(0)
