"""Fixtures that start real training processes with the environment of Torchyard or torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import ForkedProcess, ForkServer
from tests.roles.processes import Keeper, Start, Train, bare_environment, free_port, output_of, trainer_environment


@pytest.fixture(scope="session")
def torch_imported() -> Iterator[ForkServer]:
    """A process that has imported torch, to be forked."""
    fork_server = ForkServer(bare_environment(), "tests.roles.imports")
    yield fork_server
    fork_server.close()


@pytest.fixture
def start_forked(torch_imported: ForkServer) -> Iterator[Start]:
    """start(*arguments of python, environment={...}) → a process with combined output, which ends with the test.
    Without the seconds in which each imports torch: tests on hosts have processes that do."""
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
    """train(script, n) → the output of each of n trainers, after all have ended with 0."""

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
