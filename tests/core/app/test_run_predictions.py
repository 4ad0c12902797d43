"""Tests that past runs are compared with their predictions, and that the ratios correct later predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.core.advisor.samples import profile
from tests.core.app.past_runs import FLEET, TOPOLOGY, known_hosts, past_run
from torchyard_core.advisor.profile import Profile
from torchyard_core.advisor.recommendation import Advice
from torchyard_core.app.advise import AdviceOptions, advise_topology
from torchyard_core.app.profile_script import profile_cache, program_root
from torchyard_core.app.run_predictions import RunPredictor
from torchyard_core.fleet.inventory import read_fleet
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.topology.file import read_topology

PROFILE = profile(kind="unknown", compute_s=0.5, megabytes=60.0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.path.mkdir()
    made.fleet_file.write_text(FLEET)
    return made


@pytest.fixture
def work(tmp_path: Path, home: Home) -> Path:
    """Returns a working folder. A profile of the script, measured on an earlier snapshot, is stored."""
    folder = (tmp_path / "work").resolve()
    folder.mkdir()
    (folder / "train.py").write_text("import torchyard_roles\n")
    (folder / "topology.yaml").write_text(TOPOLOGY)
    profile_cache(home).keep(folder, PROFILE)
    return folder


def advice(home: Home, work: Path, *, without_history: bool = False, of: Sequence[Profile] = ()) -> Advice:
    options = AdviceOptions(tuple(of), without_history=without_history)
    inventory = read_fleet(home.fleet_file).usable()
    return advise_topology(
        read_topology(work / "topology.yaml"), home, inventory, known_hosts(home), options=options
    )  # fmt: skip


def parts(found: Advice) -> dict[str, float]:
    assert found.current is not None
    prediction = found.current.prediction
    return {"step": prediction.step_s, "compute": prediction.compute_s, "exchange": prediction.exchange_s}


def is_corrected(found: Advice) -> bool:
    return any("with the measurements of" in remark for remark in found.remarks)


def test_the_next_prediction_is_corrected_by_the_measured_ratios(home: Home, work: Path) -> None:
    before = advice(home, work)
    assert not is_corrected(before)
    for number, (compute, exchange) in enumerate([(1.1, 1.5), (1.2, 1.4), (1.3, 1.3)]):
        past_run(home, f"run-{number}", work, compute=compute, exchange=exchange)
    after = advice(home, work)
    assert parts(after)["compute"] == pytest.approx(1.2 * parts(before)["compute"])
    assert parts(after)["exchange"] == pytest.approx(1.4 * parts(before)["exchange"])
    computed_s = parts(before)["step"] - parts(before)["exchange"]
    assert parts(after)["step"] == pytest.approx(1.2 * computed_s + 1.4 * parts(before)["exchange"])
    assert (
        "All-reduce on unknown is predicted with the measurements of 3 runs: computing ×1.20, exchange ×1.40."
        in after.remarks
    )
    assert not any("Factors are limited" in remark for remark in after.remarks)
    assert parts(advice(home, work, without_history=True)) == parts(before)
    # Strategies without a past run are predicted from the profile alone.
    others = [
        {each.counts.kind: each.prediction.step_s for each in found.alternatives} for found in (before, after)
    ]  # fmt: skip
    assert {kind for kind in others[0] if others[0][kind] != others[1][kind]} <= {after.current.counts.kind}


def test_a_run_with_the_measured_speed_of_its_prediction_changes_nothing(home: Home, work: Path) -> None:
    before = advice(home, work)
    past_run(home, "run-0", work)
    after = advice(home, work)
    assert is_corrected(after)
    assert parts(after) == pytest.approx(parts(before))


def test_the_newest_five_runs_count_and_their_factors_are_bounded(home: Home, work: Path) -> None:
    before = parts(advice(home, work))
    for number in range(7):
        past_run(home, f"run-{number}", work, compute=0.9 if number < 2 else 5.0)
    after = advice(home, work)
    assert parts(after)["compute"] == pytest.approx(2 * before["compute"])
    assert any("measurements of 5 runs" in remark for remark in after.remarks)
    assert any(remark.startswith("Factors are limited to 0.5 and 2.") for remark in after.remarks)


OTHER_STRATEGY = TOPOLOGY.replace("all_reduce", "downpour").replace(
    "pools: [", "pools: [{name: ps, role: ps, replicas: 1}, "
)
SOME_STEPS = TOPOLOGY.replace("{kind: all_reduce}", "{kind: diloco}")
ONE_STEP = {f"worker-{number}": {"step": 1, "compute_s": 9.0} for number in range(2)}
NOT_FINITE = {f"worker-{number}": {"step": 40, "compute_s": None} for number in range(2)}
LOST = [{"name": "worker-0", "state": "succeeded"}, {"name": "worker-1", "state": "lost"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": "other"},
        {"state": "running"},
        {"sweep": "search"},
        {"text": SOME_STEPS},
        {"text": TOPOLOGY.replace("script: train.py", "script: train.py, args: [--large]")},
        {"text": TOPOLOGY.replace("train.py", "other.py")},
        {"metrics": ONE_STEP},
        {"metrics": NOT_FINITE},
        {"metrics": {}},
        {"replicas": LOST},
        {"planned": [{"nothing": 1}]},
        {"planned": [{"name": f"worker-{number}", "host": "gone", "gpus": []} for number in range(2)]},
        {"topology": "pools: ["},
    ],
    ids=str,
)
def test_other_runs_do_not_count(home: Home, work: Path, changes: dict[str, Any]) -> None:
    before = parts(advice(home, work))
    past_run(home, "run-0", work, compute=1.5, **changes)
    after = advice(home, work)
    assert parts(after) == before
    assert not is_corrected(after)


def test_a_run_with_another_strategy_corrects_that_strategy_only(home: Home, work: Path) -> None:
    before = parts(advice(home, work))
    past_run(home, "run-0", work, compute=1.5, text=OTHER_STRATEGY)
    after = advice(home, work)
    assert parts(after) == before
    assert any(remark.startswith("Downpour on") for remark in after.remarks)


def test_a_damaged_record_is_ignored(home: Home, work: Path) -> None:
    past_run(home, "run-0", work, compute=1.2)
    (home.history / "run-1.json").write_text('{"run_id": ')
    assert any("measurements of 1 run:" in remark for remark in advice(home, work).remarks)


def test_a_run_with_the_files_of_the_working_folder_counts_too(home: Home, work: Path) -> None:
    before = parts(advice(home, work))
    past_run(home, "run-0", work, compute=1.5, snapshot=program_root(read_topology(work / "topology.yaml"), home))
    assert parts(advice(home, work))["compute"] == pytest.approx(1.5 * before["compute"])


def test_documents_written_beside_the_script_make_a_profile_no_older(home: Home, work: Path) -> None:
    root = program_root(read_topology(work / "topology.yaml"), home)
    current = PROFILE.model_copy(update={"snapshot": root})
    record = past_run(home, "run-0", work, snapshot="a snapshot with other documents", code=root)
    profile_cache(home).keep(work, current)
    (work / "profile.json").write_text(current.as_text())
    (work / "other.yaml").write_text(OTHER_STRATEGY)
    (work / "topology.yaml").write_text(TOPOLOGY.replace("replicas: 2", "replicas: 1"))
    assert not any("with other files" in remark for remark in advice(home, work).remarks)
    assert is_corrected(advice(home, work))
    assert compared(home, record).has_same_files
    (work / "train.py").write_text("import torchyard_roles as ty\n")
    assert any("with other files" in remark for remark in advice(home, work).remarks)


def compared(home: Home, record: RunRecord) -> Any:
    inventory = read_fleet(home.fleet_file).usable()
    return RunPredictor(home, inventory, known_hosts(home)).compare(record, record.replicas, record.metrics)


def test_a_run_is_compared_with_the_prediction_from_the_profile(home: Home, work: Path) -> None:
    record = past_run(home, "run-0", work, compute=1.2, exchange=1.5)
    found = compared(home, record)
    assert found.predicted.compute_s == pytest.approx(0.51)
    assert found.measured.compute_s == pytest.approx(1.2 * 0.51)
    assert found.measured.exchange_s > 1.4 * found.predicted.exchange_s > 0
    assert found.measured.step_s == pytest.approx(sum(value for value in vars(found.measured).values()))
    assert found.has_same_files
    assert found.trainers == 2
    assert not compared(home, past_run(home, "run-1", work, snapshot="other")).has_same_files


def test_a_restarted_run_has_the_working_folder_of_the_first(home: Home, work: Path) -> None:
    past_run(home, "run-0", work)
    again = past_run(home, "run-1", None, lineage="run-0")
    assert compared(home, again) is not None


def test_without_a_profile_nothing_is_compared(home: Home, work: Path, tmp_path: Path) -> None:
    assert compared(home, past_run(home, "run-0", tmp_path / "elsewhere")) is None
