"""Fixtures that start real training processes with the environment that Torchyard or torchrun would set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fork_server import ForkedProcess, ForkServer
from tests.roles.processes import Keeper, Start, Train, bare_environment, free_port, output_of, trainer_environment


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Makes torch compute in one thread in this process. Several threads would wait for each other in busy loops, which
    took a third of the CPU time.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def torch_imported(torch_for_hosts: ForkServer) -> ForkServer:
    """Returns the fork server that has imported torch, which is the same for hosts and for this machine."""
    return torch_for_hosts


@pytest.fixture
def start_forked(torch_imported: ForkServer) -> Iterator[Start]:
    """Returns a function that forks processes: `start(*arguments of python, environment={...})`.

    stdout and stderr of a process are one stream. The processes are killed at the end of the test. Forking saves the
    seconds in which each process would import torch; processes on lab hosts import torch themselves.
    """
    processes: list[ForkedProcess] = []

    def start(*arguments: str | Path, environment: dict[str, str] | None = None) -> Any:
        whole = {**bare_environment(), **(environment or {})}
        processes.append(torch_imported.start(*map(str, arguments), environment=whole))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def start(start_forked: Start) -> Start:
    return start_forked


@pytest.fixture
def train(start: Start) -> Train:
    """Returns a function that runs trainers: `train(script, n)` returns the outputs of n trainers, which must exit with
    code 0.
    """

    def train(script: Path, world_size: int, *arguments: str, **more: str) -> list[str]:
        port = free_port()
        processes = [
            start(script, *arguments, environment=trainer_environment(rank, world_size, port, **more))
            for rank in range(world_size)
        ]
        return [output_of(process) for process in processes]

    return train


@pytest.fixture
def keeper(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    keeper = Keeper(request.node.name)
    yield keeper
    keeper.close()
