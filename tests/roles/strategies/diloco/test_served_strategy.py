"""Tests of DiLoCo with parameter servers, in real processes over loopback, compared with DiLoCo without servers.

`test_strategy` contains the definition, and tests DiLoCo without servers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.processes import Start, free_port, outputs_of, wait_for
from tests.roles.strategies.diloco.test_strategy import (
    AVERAGING,
    PROGRAM,
    STREAMING,
    alone,
    check,
    done,
    groups_of,
    results,
)
from tests.roles.strategies.hogwild.test_strategy import Groups

pytestmark = pytest.mark.train


class ServedGroups(Groups):
    """Worker groups of the given sizes, and parameter servers or reducers, depending on `role`."""

    def __init__(
        self, start: Start, store: Served, servers: int, *sizes: int, role: str = "ps", **options: object
    ) -> None:
        super().__init__(start, store, *sizes, **{"kind": "diloco", **options})
        places = [(f"{role}-{number}", "127.0.0.1", free_port()) for number in range(servers)]
        self._peers = json.dumps({**json.loads(self._peers), role: places})
        self._count = servers
        self._role = role

    def start_server(self, number: int, **more: str) -> subprocess.Popen[str]:
        environment = {
            "TORCHYARD_REPLICA": f"{self._role}-{number}",
            "TORCHYARD_ROLE": self._role,
            "TORCHYARD_RUN_ID": "run-1",
            "TORCHYARD_STRATEGY": str(self._options["kind"]),
            "TORCHYARD_OPTIONS": json.dumps(self._options),
            "TORCHYARD_GROUPS": str(len(self._sizes)),
            "TORCHYARD_PEERS": self._peers,
            "TORCHYARD_STORE": self._store.address,
            "TORCHYARD_KEY": KEY.hex(),
        }
        return self._start(PROGRAM, ".", 0, 0, environment={**environment, **more})

    def start_servers(self, **more: str) -> list[subprocess.Popen[str]]:
        return [self.start_server(number, **more) for number in range(self._count)]


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


@pytest.fixture
def other_store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        pytest.param(20, {}, id="blocking"),
        pytest.param(18, {}, id="ends with a round", marks=pytest.mark.proof),
        pytest.param(21, {"fragments": 2}, id="fragments", marks=pytest.mark.proof),
        pytest.param(24, {"fragments": 2, "overlap_steps": 1, "mixing": 0.5}, id="streaming"),
        pytest.param(24, {"overlap_steps": 3, "mixing": 0.3}, id="overlapped", marks=pytest.mark.proof),
    ],
)
def test_with_all_groups_in_each_round_it_equals_the_form_without_servers(
    start: Start, store: Served, other_store: Served, tmp_path: Path, steps: int, settings: dict[str, object]
) -> None:
    settings = {"inner_steps": 5, "warmup_steps": 3, **settings}
    plain = groups_of(start, store, 1, 1, **settings)
    expected = results(tmp_path, *plain.start_all(PROGRAM, tmp_path, steps, 0, 4, 2))
    groups = ServedGroups(start, other_store, 2, 1, 1, **settings)
    servers = groups.start_servers()
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, steps, 0, 4, 2))
    assert workers == expected, "bit for bit"
    outputs_of(*servers)


def test_a_plain_average_equals_federated_averaging_also_in_groups_of_several_workers(
    start: Start, store: Served, other_store: Served, tmp_path: Path
) -> None:
    groups = ServedGroups(start, store, 1, 1, 1, inner_steps=8, **AVERAGING)
    servers = groups.start_servers()
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 20, 0))
    check(workers, alone(workers, 8, 1.0, 0.0))
    outputs_of(*servers)
    groups = ServedGroups(start, other_store, 1, 2, 1, inner_steps=4)
    servers = groups.start_servers()
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 10, 0))
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]
    assert workers[0]["before"][4][:-3] == workers[1]["before"][4][:-3] == workers[2]["before"][4][:-3]
    outputs_of(*servers)


@pytest.mark.parametrize(
    "options",
    [pytest.param({"wire": "int8"}, id="blocking", marks=pytest.mark.proof), pytest.param(STREAMING, id="streaming")],
)
def test_a_killed_group_stops_no_other_and_returns_with_the_servers_parameters(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    groups = ServedGroups(start, store, 2, 1, 1, 1, inner_steps=4, **options)
    servers = groups.start_servers()
    processes = groups.start_all(PROGRAM, tmp_path, 100, 0.02)
    wait_for(lambda: done(tmp_path, 2) >= 10, "the groups train", *processes)
    os.kill(processes[2].pid, signal.SIGKILL)
    processes[2].wait()
    at = done(tmp_path, 0)
    wait_for(lambda: done(tmp_path, 0) >= at + 12, "the others continue", *processes[:2])
    processes[2] = groups.start(2, PROGRAM, tmp_path, 30, 0.02, generation=1)
    workers = results(tmp_path, *processes)
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]
    assert workers[0]["frozen"] == workers[1]["frozen"] == workers[2]["frozen"]
    if options is not STREAMING:  # With overlapping, all parameters of two groups are never equal.
        shared = {tuple(step) for step in workers[0]["before"]} & {tuple(step) for step in workers[2]["before"]}
        assert len(shared) >= 3, "it begins rounds with the others' parameters"
    outputs_of(*servers)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"wire": "float32"}, id="float32", marks=pytest.mark.proof),
        pytest.param({"wire": "int4"}, id="int4", marks=pytest.mark.proof),
        pytest.param(STREAMING, id="streaming"),
    ],
)
def test_a_stopped_run_resumes_exactly(
    start: Start, store: Served, other_store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    """When both groups stop, the second one is ahead: it is waiting for an average to which the first one has not
    contributed yet.
    """
    options = {"inner_steps": 4, **options}
    whole_store = serve_in_a_process()
    try:
        groups = ServedGroups(start, whole_store, 2, 1, 1, **options)
        servers = groups.start_servers()
        expected = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 26, 0))
        outputs_of(*servers)
    finally:
        whole_store.end()
    (tmp_path / "0").unlink()
    checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
    groups = ServedGroups(start, store, 2, 1, 1, **options)
    servers = groups.start_servers(**checkpoints)
    processes = [
        groups.start(0, PROGRAM, tmp_path, 26, 0, **checkpoints, HOLD="9"),
        groups.start(1, PROGRAM, tmp_path, 26, 0, **checkpoints),
    ]
    ahead = 11 if "fragments" in options else 12
    wait_for(lambda: (done(tmp_path, 0), done(tmp_path, 1)) == (9, ahead), "the groups train", *processes)
    for process in (*processes, *servers):
        os.kill(process.pid, signal.SIGTERM)
    assert all("a checkpoint is saved" in output for output in outputs_of(*processes))
    outputs_of(*servers)
    assert (done(tmp_path, 0), done(tmp_path, 1)) == (9, ahead)
    groups = ServedGroups(start, other_store, 2, 1, 1, **options)
    servers = groups.start_servers(**checkpoints)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 26, 0, **checkpoints))
    outputs_of(*servers)
    for worker, whole in zip(workers, expected, strict=True):
        assert 0 < len(worker["fed"]) < 26, "it was resumed"
        # The first entry was recorded before the checkpoint was loaded, so it is left out.
        assert worker["before"][1:] == whole["before"][-len(worker["before"]) :][1:]
        assert worker["after"] == whole["after"]
