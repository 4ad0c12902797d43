"""Real training processes, started with the environment that Torchyard or a torchrun would give them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import Forked, Nursery
from tests.roles.processes import Keeper, Start, Train, bare_environment, free_port, output_of, trainer_environment


@pytest.fixture
def start() -> Iterator[Start]:
    """start(*arguments of python, environment={...}) → a process whose output is one text; none outlives the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**bare_environment(), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:  # closes its pipe
            process.kill()


@pytest.fixture(scope="session")
def torch_imported() -> Iterator[Nursery]:
    """A process that has imported torch, to be forked."""
    nursery = Nursery(bare_environment(), "tests.roles.imports")
    yield nursery
    nursery.close()


@pytest.fixture
def start_forked(torch_imported: Nursery) -> Iterator[Start]:
    """As `start`, but without the seconds in which each process imports torch."""
    processes: list[Forked] = []

    def start(*arguments: str | Path, environment: dict[str, str] | None = None) -> Any:
        whole = {**bare_environment(), **(environment or {})}
        processes.append(torch_imported.start(*map(str, arguments), environment=whole))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def train(start: Start) -> Train:
    """train(script, n) → what each of n trainers printed, after all have ended with 0."""

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
