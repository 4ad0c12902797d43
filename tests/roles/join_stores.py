"""A join store that the keeper's listener serves, in a process that tests can kill."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torchyard_agent.keeper.link.gang_link import Listener, Message, Stream
from torchyard_agent.keeper.link.join_store import JoinStore, StoreServer
from torchyard_agent.protocol.authenticated_transport import exchange_key

SECRET = bytes.fromhex("5e" * 32)
KEY = exchange_key(SECRET)


@dataclass
class Served:
    """A join store that is served by a separate process."""

    address: str
    process: subprocess.Popen[str]

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def log(self) -> str:
        """Kills the server; returns its log."""
        self.process.kill()
        _, errors = self.process.communicate(timeout=60)
        return errors

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def serve_in_a_process(port: int = 0) -> Served:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.roles.join_stores", str(port)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return Served(f"127.0.0.1:{process.stdout.readline().strip()}", process)


async def _on_member(stream: Stream, introduction: Message) -> None:
    stream.send({"keeper": introduction.get("host")})
    stream.abort()


async def _serve(port: int, address: str | None = None) -> None:
    """Serves until the process is killed.

    If it listens on the address of a lab host, it also exits when stdin is closed.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address or "127.0.0.1", port))
    listener = Listener({SECRET: _on_member, KEY: StoreServer(JoinStore()).serve})
    held.listen(64)
    await listener.open(held)
    print(held.getsockname()[1], flush=True)
    if address is not None:
        await asyncio.to_thread(sys.stdin.read)
    else:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), *sys.argv[2:]))
