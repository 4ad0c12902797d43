"""Connects a session on the login node to the primary of a run. The program runs as a step of the run's job.

`srun --overlap` starts the program on the primary's node. The program relays bytes between its standard streams and the
primary's socket. An open session sends heartbeats. The program exits if it receives nothing for LEAVE_AFTER_S.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from torchyard_agent.keeper import control_socket
from torchyard_agent.peer_credentials import peer_uid

CHUNK = 1 << 18
HEARTBEAT_S = 10.0
LEAVE_AFTER_S = 30.0
HEARTBEAT = b'{"jsonrpc":"2.0","method":"heartbeat"}\n'


def main(run_dir: str) -> int:
    """Relays bytes until either side closes. Returns 1 if no keeper of the run can be reached on this node."""
    address = control_socket.read(run_dir)
    if address is None:
        print("the run has no keeper here", file=sys.stderr)
        return 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
        try:
            keeper.connect(address)
        except OSError as error:
            print(f"the run's keeper does not answer: {error.strerror}", file=sys.stderr)
            return 1
        if peer_uid(keeper) != os.getuid():
            print("another user has bound the name of the run's keeper", file=sys.stderr)
            return 1
        _relay(keeper)
    return 0


def _relay(keeper: socket.socket) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(keeper, select.POLLIN)
    heard = time.monotonic()
    while True:
        for descriptor, _ in poll.poll(1000):
            if descriptor == 0:
                data = os.read(0, CHUNK)
                heard = time.monotonic()
                if data and data != HEARTBEAT:
                    keeper.sendall(data)
            else:
                data = keeper.recv(CHUNK)
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            if not data:
                return
        if time.monotonic() - heard > LEAVE_AFTER_S:
            return
