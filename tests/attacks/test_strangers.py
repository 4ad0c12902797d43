"""Tests of unauthenticated clients on the data network: connections that exhaust file descriptors, and log floods."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import pytest

from tests import REPOSITORY
from tests.waiting import wait_until
from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import RefusedConnections
from torchyard_roles.errors import ProtocolError
from torchyard_roles.exchange import listener as admission
from torchyard_roles.exchange.tensor_connection import Connection, Peer, listen
from torchyard_roles.strategies.hogwild.delta_server import DeltaServer
from torchyard_roles.strategies.parameter_server.push_acceptance import Rules
from torchyard_roles.strategies.parameter_server.server_pair import ServerSettings
from torchyard_roles.strategies.parameter_server.server_process import ParameterServer
from torchyard_roles.strategies.reduction_server.reducer import Reducer

KEY = os.urandom(32)
DEADLINE_S = 30.0


@contextmanager
def parameter_server(listener: socket.socket) -> Iterator[None]:
    server = ParameterServer(ServerSettings("ps-0", 0, 1, Rules()), KEY)
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    yield
    server.stop()
    thread.join(DEADLINE_S)


@contextmanager
def reducer(listener: socket.socket) -> Iterator[None]:
    one = Reducer(listener, KEY, "reducer-0").start()
    yield
    one.close()


@contextmanager
def masters(listener: socket.socket) -> Iterator[None]:
    one = DeltaServer(listener, KEY, "worker-0", "its model", cast(Any, None))
    yield
    one.close()


def was_ended(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def take_all_descriptors(stack: ExitStack) -> None:
    with suppress(OSError):
        while True:
            stack.enter_context(socket.socket())


@pytest.mark.parametrize(
    ("serving", "answer"),
    [
        (parameter_server, "does not understand the introduction"),
        (reducer, "sums gradients, which"),
        (masters, "exchanges deltas, and offers no other service"),
    ],
)
def test_silent_clients_neither_stop_a_server_nor_block_other_clients(
    serving: Callable[[socket.socket], Any],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torchyard_agent.protocol.authenticated_transport.HANDSHAKE_DEADLINE_S", 600.0)
    monkeypatch.setattr(admission, "UNAUTHENTICATED", 20)
    monkeypatch.setattr(admission, "RETRY_PAUSE_S", 0.0517)
    failed, sleep = threading.Event(), time.sleep

    def sleeping(seconds: float) -> None:
        if seconds == admission.RETRY_PAUSE_S:
            failed.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleeping)
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    with ExitStack() as stack:
        stack.enter_context(serving(listener))
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(60)]
        wait_until(lambda: sum(map(was_ended, silent)) >= 40)
        assert sum(map(was_ended, silent)) == 40

        # accept() fails only if no descriptor is free. The server may close descriptors late, so the test uses up all
        # free descriptors before each attempt.
        more = [stack.enter_context(socket.socket()) for _ in range(20)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(one.fileno() for one in more) + 1, hard))
        try:
            for one in more:
                take_all_descriptors(stack)
                one.connect(address)
                if failed.wait(DEADLINE_S / len(more)):
                    break
            assert failed.is_set()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        with pytest.raises(ProtocolError, match=answer):
            Connection.connect(Peer("it", *address), KEY, {"name": "a rank"}, DEADLINE_S)
    assert capfd.readouterr().err.count("was refused") <= 1


def test_refusals_are_counted_and_logged_once_a_minute() -> None:
    now = 100.0
    counted = RefusedConnections(lambda: now)
    said = [counted.note(f"{number}") for number in range(1000)]
    now += authenticated_transport.EVERY_S
    said.append(counted.note("the next"))
    assert [line for line in said if line] == ["0", "the next (999 more since the last such line, 1001 in all)"]


def test_ranks_may_open_more_files_than_the_usual_soft_limit() -> None:
    script = (
        "import resource, subprocess, sys; from torchyard_agent.keeper.processes import open_file_limit as p; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096)); p.raise_open_file_limit(); "
        "print(subprocess.run(['sh', '-c', 'ulimit -Sn'], capture_output=True, text=True).stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(REPOSITORY / "agent")}
    )
    assert done.stdout.strip() == "4096", done.stderr
