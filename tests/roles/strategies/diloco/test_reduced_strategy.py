"""Tests of DiLoCo with reducers, in real processes over loopback, compared with DiLoCo without them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.processes import Start, outputs_of, wait_for
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.diloco.test_strategy import PROGRAM, STREAMING, done, groups_of, results

pytestmark = pytest.mark.train

FORMS = [pytest.param({}, id="blocking", marks=pytest.mark.proof), pytest.param(STREAMING, id="streaming")]


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


@pytest.mark.parametrize("options", FORMS)
def test_the_result_is_that_of_groups_without_reducers_and_a_stopped_run_resumes_exactly(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    """When both groups stop, the second one is ahead: it is waiting for an average to which the first one has not
    contributed yet.
    """
    options = {"inner_steps": 4, **options}
    expected = results(tmp_path, *groups_of(start, store, 1, 1, **options).start_all(PROGRAM, tmp_path, 26, 0))
    (tmp_path / "0").unlink()
    checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
    ahead = 11 if "fragments" in options else 12
    for is_last in (False, True):
        again = serve_in_a_process()
        try:
            groups = ServedGroups(start, again, 2, 1, 1, role="reducer", **options)
            reducers = groups.start_servers()
            if is_last:
                workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 26, 0, **checkpoints))
            else:
                processes = [
                    groups.start(0, PROGRAM, tmp_path, 26, 0, **checkpoints, HOLD="9"),
                    groups.start(1, PROGRAM, tmp_path, 26, 0, **checkpoints),
                ]
                wait_for(lambda: (done(tmp_path, 0), done(tmp_path, 1)) == (9, ahead), "they train", *processes)
                for process in (*processes, *reducers):
                    os.kill(process.pid, signal.SIGTERM)
                outputs_of(*processes)
            outputs_of(*reducers)
        finally:
            again.end()
    for worker, whole in zip(workers, expected, strict=True):
        assert 0 < len(worker["fed"]) < 26, "it was resumed"
        # The first entry is from before the checkpoint was loaded, so it is not compared.
        assert worker["before"][1:] == whole["before"][-len(worker["before"]) :][1:]
        assert worker["after"] == whole["after"]


@pytest.mark.parametrize("options", FORMS)
def test_killed_reducers_and_groups_stop_no_other_and_return(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    groups = ServedGroups(start, store, 2, 1, 1, 1, role="reducer", inner_steps=4, **options)
    reducers = groups.start_servers()
    processes = groups.start_all(PROGRAM, tmp_path, 100, 0.02)
    wait_for(lambda: done(tmp_path, 2) >= 10, "the groups train", *processes)
    for killed in (reducers[0], processes[2]):
        killed.kill()
        killed.wait()
    at = done(tmp_path, 0)
    wait_for(lambda: done(tmp_path, 0) >= at + 12, "the others continue", *processes[:2])
    reducers[0] = groups.start_server(0)
    processes[2] = groups.start(2, PROGRAM, tmp_path, 30, 0.02, generation=1)
    workers = results(tmp_path, *processes)
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]
    assert workers[0]["frozen"] == workers[1]["frozen"] == workers[2]["frozen"]
    outputs_of(*reducers)
