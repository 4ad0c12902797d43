from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.sweeps.search_file import search_in_record
from torchyard_core.sweeps.trial_table import SweepTable, read_table, table_without_trials, topology_of_trial
from torchyard_core.topology.file import topology_from_text


def row(number: int, state: str, value: float | None = None, **changes: Any) -> dict[str, Any]:
    known = {"trial": str(number), "state": state, "params": {"lr": 0.1 * number, "c": "a"}, "value": value}
    more = {"run_id": f"run.{number}", "hosts": ["gpu-a"], "cause": "", "started": "", "ended": "", "values": []}
    return {**known, **more, **changes}


def data(*rows: dict[str, Any], goal: str = "minimize") -> dict[str, Any]:
    return {
        "run_id": "run",
        "name": "s",
        "state": "running",
        "metric": "loss",
        "goal": goal,
        "parameters": ["lr", "c"],
        "wanted": 9,
        "slots": [["gpu-a"]],
        "lost": [],
        "trials": list(rows),
        "importances": {"lr": 0.75},
        "study": "",
    }


ROWS = (
    row(1, "complete", 3.0),
    row(2, "failed"),
    row(3, "complete", 1.0),
    row(4, "pruned", 0.5),
    row(5, "complete", 2.0),
)


def test_the_best_trial_is_a_complete_one_in_the_direction_of_the_goal() -> None:
    least, most = read_table(data(*ROWS)), read_table(data(*ROWS, goal="maximize"))
    assert least.best is not None
    assert least.best.trial == "3"
    assert most.best is not None
    assert most.best.trial == "1"
    assert least.best_so_far() == [(1, 3.0), (3, 1.0), (5, 1.0)]
    assert most.best_so_far() == [(1, 3.0), (3, 3.0), (5, 3.0)]
    assert read_table(data(row(1, "failed"))).best is None


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        {**data(), "goal": "low"},
        {**data(), "trials": [1]},
        data(row(1, "lost")),
        data(row(1, "complete", float("nan"))),
        data(row(1, "complete", 1.0, params={"lr": None})),
        data(row(1, "complete", 1.0, values=[[1]])),
        {**data(), "importances": {"lr": "much"}},
    ],
)
def test_a_malformed_table_is_an_error(broken: Any) -> None:
    with pytest.raises(ValueError, match=r"malformed|goal|state|finite|unpack"):
        read_table(broken)


def test_the_best_trial_is_a_topology_with_its_values() -> None:
    topology = topology_from_text(
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 1, args: ['-c{params.c}', '{rank}']}]\n"
        "program: {script: a.py, args: ['--lr={params.lr}']}\n"
    ).topology
    assert topology is not None
    table: SweepTable = read_table(data(row(1, "complete", 1.0)))
    filled = topology_of_trial(topology, table.trials[0])
    assert filled.program.args == ("--lr=0.1",)
    assert filled.pools[0].args == ("-ca", "{rank}")


SEARCH = """
version: 1
parameters: {lr: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
trials: 8
"""


@pytest.mark.parametrize(
    ("run_state", "state"),
    [("waiting", "waiting"), ("running", "running"), ("stopped", "stopped"), ("failed", "finished")],
)
def test_a_sweep_without_a_table_has_the_settings_of_its_search_and_no_trials(run_state: str, state: str) -> None:
    search = search_in_record(SEARCH)
    assert search is not None
    table = table_without_trials("s-1", "digits", run_state, search)
    assert (table.state, table.metric, table.goal, table.parameters) == (state, "loss", "minimize", ("lr",))
    assert table.results() == {
        **{"wanted": 8, "best": None},
        **dict.fromkeys(("complete", "failed", "pruned", "interrupted", "running"), 0),
    }


@pytest.mark.parametrize("text", ["", "version: 9", "parameters: [", SEARCH.replace("8", "0")])
def test_a_search_of_another_version_in_a_record_is_none(text: str) -> None:
    assert search_in_record(text) is None


def test_the_job_of_a_trial_is_empty_where_it_is_unknown() -> None:
    table = read_table(data(row(1, "running", job="24_3"), row(2, "running")))
    assert [trial.job for trial in table.trials] == ["24_3", ""]


def test_a_trial_that_runs_or_is_in_the_queue_of_a_cluster_can_be_stopped() -> None:
    rows = (
        row(1, "running", run_id="s.1", hosts=["n1"]),
        row(2, "waiting", run_id="s.2", hosts=[]),
        row(3, "waiting", run_id="s.3", hosts=["a"]),  # Its keepers are being prepared.
        row(4, "waiting", run_id="", hosts=[]),
        row(5, "complete", 1.0, run_id="s.5", hosts=["n1"]),
    )
    assert [trial.can_be_stopped for trial in read_table(data(*rows)).trials] == [True, True, False, False, False]
