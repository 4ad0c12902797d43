"""Tests of the server that answers a daemon's first requests before the daemon has imported large modules."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchyard_agent.daemon.hello_server import Conversations, answer_hello

HELLO = {"version": "1.2.3", "pid": 4}


def request(id: int, method: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).encode() + b"\n"


@contextmanager
def serving(
    retiring: Callable[[dict[str, Any]], None] = lambda params: None,
) -> Iterator[tuple[str, list[Conversations | None], threading.Thread, list[str]]]:
    """Runs a server in a thread.

    Yields the server's address and results, the thread, and the recorded calls to `settle`.
    """
    address = f"\0torchyard-test/{os.getpid()}/{os.urandom(4).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    returned: list[Conversations | None] = []
    settled: list[str] = []
    thread = threading.Thread(
        target=lambda: returned.append(answer_hello(listener, HELLO, lambda: settled.append("settled"), retiring))
    )
    thread.start()
    try:
        yield address, returned, thread, settled
    finally:
        thread.join(10)
        listener.close()
        for conversations in returned:
            for client, _ in conversations or []:
                client.close()


def connect(address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10)
    client.connect(address)
    return client


def answer(client: socket.socket) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.makefile("rb").readline())
    return found


def test_hello_is_answered_and_other_requests_are_passed_on() -> None:
    with serving() as (address, returned, thread, _), connect(address) as first, connect(address) as second:
        first.sendall(request(1, "hello"))
        assert answer(first)["result"] == HELLO
        second.sendall(request(7, "hello"))
        assert answer(second)["id"] == 7

        second.sendall(request(8, "run.list"))

        thread.join(10)
        conversations = returned[0]
        assert conversations is not None
        assert sorted(pending for _, pending in conversations) == [b"", request(8, "run.list")]


def test_unreadable_requests_are_passed_on() -> None:
    with serving() as (address, returned, thread, _), connect(address) as client:
        client.sendall(b"not json\n")
        thread.join(10)
        assert [pending for _, pending in returned[0] or []] == [b"not json\n"]


def test_retire_ends_the_server() -> None:
    with serving() as (address, returned, thread, _), connect(address) as client:
        client.sendall(request(1, "retire"))
        assert answer(client)["result"] == {}
        thread.join(10)
        assert returned == [None]


def test_retire_reports_its_user() -> None:
    for params, heard in (('{"by": "kim@laptop"}', {"by": "kim@laptop"}), ("7", {})):
        retired: list[dict[str, Any]] = []
        with serving(retired.append) as (address, _, thread, _), connect(address) as client:
            client.sendall(f'{{"jsonrpc": "2.0", "id": 1, "method": "retire", "params": {params}}}\n'.encode())
            thread.join(10)
        assert retired == [heard]


def test_the_archive_is_unpacked_after_a_moment_without_requests() -> None:
    with serving() as (address, _, thread, settled), connect(address) as client:
        for _ in range(100):
            thread.join(0.1)
            if settled:
                break
        assert settled == ["settled"]
        client.sendall(request(1, "retire"))


def test_asyncio_is_not_imported() -> None:
    check = "import sys; import torchyard_agent.daemon.main; sys.exit('asyncio' in sys.modules)"
    agent = Path(__file__).parents[3] / "agent"

    done = subprocess.run([sys.executable, "-c", check], env={"PYTHONPATH": str(agent)}, check=False)

    assert done.returncode == 0
