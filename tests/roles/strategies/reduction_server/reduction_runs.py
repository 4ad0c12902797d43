"""Runs of reduction_server on the loopback interface; each worker and each reducer is a process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import ForkedProcess, ForkServer
from tests.roles.processes import DEADLINE_S, bare_environment, free_port, trainer_environment

PROGRAMS = Path(__file__).parents[2] / "programs"


class Runs:
    """Starts processes; `close` kills those that are still running."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self._started: list[ForkedProcess] = []

    def start(self, *arguments: str | Path, environment: dict[str, str]) -> ForkedProcess:
        process = self._fork_server.start(*arguments, environment={**bare_environment(), **environment})
        self._started.append(process)
        return process

    def topology(self, workers: int, reducers: int, **options: Any) -> Topology:
        return Topology(self, workers, reducers, **options)

    def close(self) -> None:
        for each in self._started:
            each.close()


class Topology:
    """The workers and reducers of one run; the reducers start immediately.

    Args:
        reducers: Number of reducers; if it is 0, the strategy is `all_reduce`.
        ranks: Number of ranks of each worker; by default, each worker has one rank.
        report: Address to which all processes send their reports.
        options: Options of the strategy `reduction_server`.
    """

    def __init__(
        self, runs: Runs, workers: int, reducers: int, *, ranks: Sequence[int] = (), report: str = "", **options: Any
    ) -> None:
        self._ranks = ranks or [1] * workers
        self._runs = runs
        self._master = free_port()
        kind = "reduction_server" if reducers else "all_reduce"
        peers = {
            "reducer": [[f"reducer-{n}", "127.0.0.1", free_port()] for n in range(reducers)],
            "trainers": [[f"worker-{n}", "127.0.0.1", free_port(), ranks, 0] for n, ranks in enumerate(self._ranks)],
        }
        self.environment = {
            "TORCHYARD_STRATEGY": kind,
            "TORCHYARD_OPTIONS": json.dumps({"kind": kind, **options}),
            "TORCHYARD_PEERS": json.dumps(peers),
            "TORCHYARD_KEY": os.urandom(32).hex(),
            "TORCHYARD_REPORT": report,
        }
        self.reducers = [self.reducer(number) for number in range(reducers)]

    def reducer(self, number: int) -> ForkedProcess:
        role = {"TORCHYARD_ROLE": "reducer", "TORCHYARD_REPLICA": f"reducer-{number}"}
        return self._runs.start(PROGRAMS / "served.py", environment={**self.environment, **role})

    def train(self, program: str, *arguments: str) -> list[ForkedProcess]:
        places = [(worker, local) for worker, ranks in enumerate(self._ranks) for local in range(ranks)]
        started = []
        for rank, (worker, local) in enumerate(places):
            place = {
                "TORCHYARD_REPLICA": f"worker-{worker}",
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(self._ranks[worker]),
            }
            environment = trainer_environment(rank, len(places), self._master, **self.environment, **place)
            started.append(self._runs.start(PROGRAMS / program, *arguments, environment=environment))
        return started

    def outputs(self, program: str, *arguments: str) -> list[str]:
        """Returns the output of each worker, after all have exited with code 0."""
        return [output_of(each) for each in self.train(program, *arguments)]


def output_of(process: ForkedProcess) -> str:
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


def digests(output: str) -> list[str]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line["digest"] for line in lines if "digest" in line]


@pytest.fixture
def runs(torch_imported: ForkServer) -> Iterator[Runs]:
    runs = Runs(torch_imported)
    yield runs
    runs.close()
