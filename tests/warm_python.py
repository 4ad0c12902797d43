"""A `python` for lab hosts whose scripts are forked from a nursery that has imported torch (`tests.nursery`).

To whoever starts it on a host it is the interpreter: it takes signals, dies with its script and the other way round,
and ends as the script ends. The script is a process of the host with a session, environment, folder and files of its
own, in the host's namespaces; only the import is not made again. Whatever is no script goes to the real interpreter.
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

HUGE = 1 << 20
SOCKET = "python.socket"
NAMESPACES = ("uts", "ipc", "net", "pid", "mnt")
PR_SET_PDEATHSIG = 1

CLIENT = """\
#!/usr/bin/python3 -IS
import array, os, signal, socket, sys

arguments = sys.argv[1:]
if not arguments or arguments[0].startswith("-"):
    os.execv(REAL, [REAL, *arguments])
import json

nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
nursery.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), SOCKET))


def pass_on(number, frame):
    try:
        nursery.send(bytes([number]))
    except OSError:  # the script has ended: as whom the signal found too late
        pass


def outcome():
    while True:
        try:
            return int(nursery.recv(100) or b"-9")
        except ConnectionResetError:  # a signal that it had not read when the script ended; how it ended comes next
            pass


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, pass_on)
order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
files = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))
nursery.sendmsg([json.dumps(order).encode()], [files])
code = outcome()
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
os._exit(code)  # at once: Python takes its handlers back as it winds down, and would end as a late signal says
"""


def write_client(folder: Path) -> Path:
    """Puts the `python` there, and where it will find its nursery: a socket beside it."""
    client = folder / "python"
    client.write_text(CLIENT.replace("REAL", repr(sys.executable)).replace("SOCKET)", f"{SOCKET!r})"))
    client.chmod(0o755)
    return folder / SOCKET


class Door:
    """Where clients of one host come in, seen from the nursery."""

    def __init__(self, place: str, inside: int) -> None:
        self._inside = inside
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Path(place).unlink(missing_ok=True)
        self._socket.bind(place)
        self._socket.listen(64)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> socket.socket:
        client, _ = self._socket.accept()
        return client

    def close(self) -> None:
        self._socket.close()

    def enter(self, client: socket.socket) -> tuple[dict[str, Any], list[int]]:
        """For a child of the nursery: goes to the host and forks there. Returns in the grandchild alone, with what it
        is to run; the child itself passes signals on and ends with it."""
        text, rights, _, _ = client.recvmsg(HUGE, socket.CMSG_SPACE(12))
        files = array.array("i", rights[0][2])
        _join_namespaces(self._inside)
        script = os.fork()
        if script:
            for file in files:
                os.close(file)
            _attend(client, script)
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


def _attend(client: socket.socket, script: int) -> None:
    """Passes on what the client says until the script has ended; never returns."""
    ended = os.pidfd_open(script)
    while True:
        ready, _, _ = select.select([client, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(script, 0)
            with suppress(OSError):
                client.send(b"%d" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        said = client.recv(1)
        os.kill(script, said[0] if said else signal.SIGKILL)
        if not said:
            os.waitpid(script, 0)
            os._exit(0)
