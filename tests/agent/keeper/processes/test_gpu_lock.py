"""Tests of GPU locks between real processes, some of which belong to other users or misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard_agent.keeper.processes import gpu_lock
from torchyard_agent.keeper.processes.gpu_lock import GpuHeld, describe, holder_of, take
from torchyard_agent.protocol.paths import gpu_socket

AGENT = Path(__file__).resolve().parents[4] / "agent"
ME = getpass.getuser()
BUSY_S = 10.0
"""Additional seconds that a busy machine may need. Misbehaving lock holders are slow or silent for minutes."""
HOLDER = {"user": "another user", "run_id": "20260101-ab12", "name": "digits", "host": "gpu-a"}

# This program locks the GPUs named on its command line and answers clients, as a keeper does.
KEEPER = """
import asyncio, sys
from torchyard_agent.keeper.processes.gpu_lock import take
async def main():
    locks = take(sys.argv[1:], {"user": "another user", "run_id": "20260101-ab12", "name": "digits", "host": "gpu-a"})
    locks.serve(asyncio.get_running_loop())
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
# This program binds the socket of a GPU's lock and misbehaves: it never accepts a connection, or it sends the given
# answer.
RUDE = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1][1:])
if sys.argv[2] != "bound":
    listener.listen(int(sys.argv[3]))
print("ready", flush=True)
while sys.argv[2] in ("silent", "bound"):
    time.sleep(600)
while True:
    asker, _ = listener.accept()
    try:
        if sys.argv[2] == "drip":
            while True:
                asker.send(b"x")
                time.sleep(0.1)
        asker.sendall(eval(sys.argv[2]))
    except OSError:
        pass
    asker.close()
"""


def new_gpu() -> str:
    return f"GPU-{uuid.uuid4()}"


@contextmanager
def running(source: str, *arguments: str, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable if user is None else "/usr/bin/python3", "-B", "-c", source, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(AGENT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, user=user) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def rude(
    gpu: str, manners: str, backlog: int = 8, user: int | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return running(RUDE, "@" + gpu_socket(gpu)[1:], manners, str(backlog), user=user)


def test_a_gpu_can_be_held_once_and_the_error_names_the_holder() -> None:
    gpu = new_gpu()
    with running(KEEPER, gpu):
        with pytest.raises(GpuHeld) as refused:
            take([gpu], HOLDER)
        # The user's name comes from the kernel, not from the lock holder's answer.
        assert refused.value.holder == {"user": ME, "run_id": "20260101-ab12", "name": "digits", "host": "gpu-a"}
        assert str(refused.value) == f"GPU {gpu} is held by {ME} for run digits (20260101-ab12)"
        assert refused.value.code == "gpu_held"
        assert refused.value.hint


def test_several_gpus_are_locked_all_or_none() -> None:
    first, second, third = sorted(new_gpu() for _ in range(3))
    with running(KEEPER, second):
        with pytest.raises(GpuHeld, match=second):
            take([third, first, second], HOLDER)
        take([first, third], HOLDER).release()


def test_a_holder_that_is_killed_holds_nothing() -> None:
    gpu = new_gpu()
    with running(KEEPER, gpu) as keeper:
        keeper.send_signal(signal.SIGKILL)
        keeper.wait()
        assert holder_of(gpu) is None
        locks = take([gpu], HOLDER)
        assert locks.uuids == [gpu]
        locks.release()


def test_released_gpus_are_free_and_releasing_twice_is_no_error() -> None:
    gpu = new_gpu()
    locks = take([gpu, gpu], HOLDER)
    locks.release()
    locks.release()
    assert locks.uuids == []
    take([gpu], HOLDER).release()


def test_releasing_stops_the_answers_of_a_running_loop() -> None:
    async def scenario() -> None:
        gpu = new_gpu()
        loop = asyncio.get_running_loop()
        locks = take([gpu], HOLDER)
        locks.serve(loop)
        assert await loop.run_in_executor(None, holder_of, gpu) == {**HOLDER, "user": ME}
        locks.release()
        assert await loop.run_in_executor(None, holder_of, gpu) is None

    asyncio.run(scenario())


def test_clients_that_do_not_read_block_no_others() -> None:
    gpu = new_gpu()
    with running(KEEPER, gpu), contextlib.ExitStack() as stack:
        for number in range(60):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(gpu_socket(gpu))
            if number % 2:
                client.close()
        assert holder_of(gpu) == {**HOLDER, "user": ME}, "answered in time"


@pytest.mark.parametrize(
    "manners",
    [
        "silent",
        "drip",
        "b''",
        "b'not json\\n'",
        "b'[1, 2]\\n'",
        "b'{\"holder\": 7}\\n'",
        "b'x' * 10**7",
        "b'[' * 4000 + b'\\n'",
        "b'\\xff\\xfe\\n'",
    ],
)
def test_the_user_of_a_silent_holder_is_known(manners: str) -> None:
    gpu = new_gpu()
    with rude(gpu, manners):
        began = time.monotonic()
        with pytest.raises(GpuHeld) as refused:
            take([gpu], HOLDER)
        assert time.monotonic() - began < gpu_lock.ANSWER_S + BUSY_S
        assert str(refused.value) == f"GPU {gpu} is held by an unknown process of user {ME}"


def test_a_bound_name_without_a_listener_is_held_by_an_unknown_process() -> None:
    gpu = new_gpu()
    with rude(gpu, "bound"), pytest.raises(GpuHeld, match=f"GPU {gpu} is held by an unknown process$"):
        take([gpu], HOLDER)


def test_a_holder_with_a_full_queue_times_out() -> None:
    gpu = new_gpu()
    with rude(gpu, "silent", backlog=0), contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(gpu_socket(gpu))
        began = time.monotonic()
        with pytest.raises(GpuHeld):
            take([gpu], HOLDER)
        assert time.monotonic() - began < gpu_lock.ANSWER_S + BUSY_S


def test_control_characters_of_a_holder_are_removed() -> None:
    gpu = new_gpu()
    with rude(gpu, 'b\'{"holder": {"name": "a\\\\u001b[2Jb\\\\nc", "run_id": 7}}\\n\''):
        assert holder_of(gpu) == {"user": ME, "name": "a[2Jbc", "run_id": "7"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_lock_of_another_user_names_that_user() -> None:
    gpu = new_gpu()
    claim = 'b\'{"holder": {"user": "root", "name": "digits"}}\\n\''
    with rude(gpu, claim, user=65534), pytest.raises(GpuHeld, match="is held by nobody for run digits"):
        take([gpu], HOLDER)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        ({}, "held by an unknown process"),
        ({"user": "lee"}, "held by an unknown process of user lee"),
        ({"user": "lee", "run_id": "r1"}, "held by lee for run r1"),
        ({"user": "lee", "run_id": "r1", "name": "digits"}, "held by lee for run digits (r1)"),
    ],
)
def test_a_holder_is_described_by_what_is_known_of_it(holder: dict[str, str], words: str) -> None:
    assert describe(holder) == words
