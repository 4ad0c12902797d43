"""Helpers for tests with training processes: environments, outputs, and a receiver of metrics reports."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.ports import free_port as free_port
from tests.waiting import wait_until
from torchyard_agent.protocol import metrics_report

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

Start = Callable[..., "subprocess.Popen[str]"]
Train = Callable[..., list[str]]


def bare_environment() -> dict[str, str]:
    """Returns this process's environment without the variables of launchers, and with settings for two CPU cores that
    processes share: one thread for each, and no busy loops in programs that set more threads.
    """
    launchers = ("TORCHYARD_", "TORCHELASTIC_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    path = os.pathsep.join(filter(None, [str(ROOT / "agent"), environment.get("PYTHONPATH", "")]))
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return {**environment, "PYTHONPATH": path, **threads, "GLOO_SOCKET_IFNAME": "lo"}


def trainer_environment(rank: int, world_size: int, port: int, **more: str) -> dict[str, str]:
    """Returns the environment of a trainer that has a single rank; worker-0 is the chief."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHYARD_RUN_ID": "run-1",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHYARD_REPLICA": f"worker-{rank}",
        "TORCHYARD_ROLE": "worker",
        "TORCHYARD_RANK": str(rank),
        "TORCHYARD_WORLD_SIZE": str(world_size),
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }


def output_of(process: subprocess.Popen[str]) -> str:
    """Waits until a process exits, checks that its exit code is 0, and returns its output."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


def outputs_of(*processes: subprocess.Popen[str]) -> list[str]:
    """Returns the outputs of processes that wait for each other.

    Fails as soon as one of them fails. The message contains the outputs of all processes that exit soon afterwards,
    because the first failure may be a consequence of another one.
    """
    wait_until(
        lambda: all(process.poll() == 0 for process in processes) or any(process.poll() for process in processes)
    )
    if any(process.poll() for process in processes):
        # The other processes take some time to notice the loss. Some never exit, so the delay is fixed.
        time.sleep(1.0)
        ended = [process for process in processes if process.poll() is not None]
        raise AssertionError("\n----\n".join(f"exit {each.returncode}\n{each.communicate()[0]}" for each in ended))
    return [output_of(process) for process in processes]


def wait_for(condition: Callable[[], bool], what: str, *processes: subprocess.Popen[str]) -> None:
    """Waits for a condition as `wait_until` does, but fails as soon as one of the processes has failed."""

    def holds() -> bool:
        for process in processes:
            assert process.poll() in (None, 0), process.communicate()[0]
        return condition()

    wait_until(holds, what=what)


class Keeper:
    """Receives metrics reports in place of a keeper."""

    def __init__(self, name: str) -> None:
        self.address = f"@torchyard-test/{os.getpid()}/{name}"[:100]  # The name of a socket can have at most 107 bytes.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address.replace("@", "\0", 1))
        self._socket.setblocking(False)
        self._lock = threading.Lock()
        self._received: list[tuple[str, int, dict[str, float]]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._take_all)

    def listen(self) -> Keeper:
        """Receives continuously, because the system would otherwise drop all datagrams after the tenth."""
        self._thread.start()
        return self

    def received(self) -> list[tuple[str, int, dict[str, float]]]:
        """Returns the reports that have arrived since the last call."""
        self._take()
        with self._lock:
            received, self._received = self._received, []
        return received

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _take_all(self) -> None:
        while not self._closed.wait(0.02):
            self._take()

    def _take(self) -> None:
        with self._lock, suppress(BlockingIOError):
            while True:
                decoded = metrics_report.decode(self._socket.recv(65536))
                assert decoded is not None
                self._received.append(decoded)
