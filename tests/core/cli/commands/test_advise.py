"""Tests `torchyard advise`: its table and JSON, the edit of the file, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.advisor.samples import profile
from tests.core.app.past_runs import FLEET as PAST_FLEET
from tests.core.app.past_runs import past_run
from tests.core.cli.command_runner import answer, torchyard
from tests.lab import Desktop
from torchyard_core.app.profile_script import profile_cache
from torchyard_core.home import Home

TOPOLOGY = """\
version: 1
name: digits  # the run's name
strategy: {kind: all_reduce}
pools:
  # The workers.
  - {name: workers, role: worker, replicas: 1}
program: {script: train.py}
"""
FLEET = """\
version: 1
hosts:
  - {name: one, address: 10.0.0.1, bandwidth_gbps: 10}
  - {name: two, address: 10.0.0.2, bandwidth_gbps: 10}
  - {name: three, address: 10.0.0.3, bandwidth_gbps: 10}
"""


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    made = Desktop(tmp_path / "desktop")
    made.fleet_file.write_text(FLEET)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("import torchyard_roles\n")
    (folder / "topology.yaml").write_text(TOPOLOGY)
    (folder / "profile.json").write_text(profile(kind="unknown", snapshot=None).as_text())
    return folder / "topology.yaml"


def test_a_script_that_was_never_profiled_is_to_be_measured_first(desktop: Desktop, file: Path) -> None:
    done = torchyard(desktop, "advise", file, code=1)
    assert "train.py was never profiled on this computer" in done.stderr
    assert f"profile {file}" in done.stderr


def test_a_kept_profile_gives_advice_without_a_host(desktop: Desktop, file: Path) -> None:
    done = torchyard(desktop, "advise", file, "--profile", file.with_name("profile.json"))
    assert "All-reduce, 3 workers" in done.stdout
    assert "  HOSTS  " in done.stdout, "the fleet has no GPUs to count"
    assert "GPUS" not in done.stdout
    assert "These change the result of training" in done.stdout
    assert "DiLoCo: computing as a share of a step" in done.stdout
    assert "was measured" in done.stderr  # The profile belongs to another snapshot.
    found = answer(desktop, "advise", file, "--profile", file.with_name("profile.json"))
    assert found["fastest"]["trainers"] == 3
    assert found["fastest"]["step_s"] >= found["fastest"]["bound_s"]
    assert [point["trainers"] for point in found["curve"]] == [1, 2, 3]
    assert {each["strategy"] for each in found["other_result"]} == {"downpour", "hogwild", "diloco"}
    assert found["current"]["trainers"] == 1
    assert found["unit"] == "samples/s"
    assert found["fastest"]["gpus"] == 0


def test_the_topology_as_it_is_may_crowd_a_host(desktop: Desktop, file: Path) -> None:
    more = file.read_text().replace("replicas: 1", "replicas: 2, hosts: [one]")
    file.write_text(more)
    done = torchyard(desktop, "advise", file, "--profile", file.with_name("profile.json"))
    note = "The topology as it is: 2 trainers share the CPUs of one; the prediction assumes that they do not slow each"
    assert note in done.stderr


def test_a_recommendation_is_applied_as_an_edit_that_keeps_comments(desktop: Desktop, file: Path) -> None:
    with_profile = ("advise", file, "--profile", file.with_name("profile.json"))
    done = torchyard(desktop, *with_profile, "--apply", "fastest")
    assert "was changed: All-reduce, 3 workers" in done.stderr
    assert file.read_text() == TOPOLOGY.replace("replicas: 1", "replicas: 3")
    assert "already has this topology" in torchyard(desktop, *with_profile, "--apply", "fastest").stderr
    torchyard(desktop, *with_profile, "--apply", "diloco")
    assert "kind: diloco" in file.read_text()
    assert "# The workers." in file.read_text()
    torchyard(desktop, "validate", file)


def test_wrong_requests_are_refused(desktop: Desktop, file: Path) -> None:
    with_profile = ("advise", file, "--profile", file.with_name("profile.json"))
    assert "--apply best is no recommendation" in torchyard(desktop, *with_profile, "--apply", "best", code=2).stderr
    assert "one batch size" in torchyard(desktop, *with_profile, "--batch", "64", code=2).stderr
    done = torchyard(desktop, "advise", file, "--profile", file, code=2)
    assert "this is not a profile" in done.stderr
    done = torchyard(desktop, "advise", "-", "--apply", "fastest", code=2, stdin=file)
    assert "stdin is none" in done.stderr
    desktop.fleet_file.write_text(f"{FLEET}clusters: [{{name: hpc, kind: slurm}}]\n")
    file.write_text(TOPOLOGY.replace("replicas: 1", "replicas: 1, hosts: [hpc]"))
    for command, what in ((with_profile, "speed is predicted"), (("profile", file), "scripts are measured")):
        assert f"{what} " in (refused := torchyard(desktop, *command, code=2).stderr)
        assert "on hosts of the fleet file, and the topology names the cluster hpc." in refused
    file.write_text(TOPOLOGY.replace("role: worker", "role: wrker"))
    assert "wrker" in torchyard(desktop, *with_profile, code=1).stderr


def test_measurements_of_past_runs_correct_the_prediction_unless_they_are_ignored(desktop: Desktop, file: Path) -> None:
    home, folder = Home(desktop.home), file.parent.resolve()
    home.fleet_file.write_text(PAST_FLEET)
    profile_cache(home).keep(folder, profile(kind="unknown"))
    past_run(home, "20261128-090000-aaaa", folder, compute=1.5, text=TOPOLOGY)
    done = torchyard(desktop, "advise", file)
    assert "All-reduce on unknown is predicted with the measurements of 1 run: computing ×1.50" in done.stderr
    corrected, plain = answer(desktop, "advise", file), answer(desktop, "advise", file, "--without-history")
    assert corrected["current"]["step_s"] == pytest.approx(1.5 * plain["current"]["step_s"])
    assert any("measurements of 1 run" in remark for remark in corrected["remarks"])
    assert "measurements" not in torchyard(desktop, "advise", file, "--without-history").stderr


def test_a_run_is_shown_with_its_prediction(desktop: Desktop, file: Path) -> None:
    home, folder = Home(desktop.home), file.parent.resolve()
    home.fleet_file.write_text(PAST_FLEET)
    run_id = "20261128-090000-aaaa"
    past_run(home, run_id, folder)
    # Both hosts of the fleet are down, so their last known state is shown.
    assert answer(desktop, "runs", "show", run_id, code=3)["comparison"] is None  # There is no profile.
    profile_cache(home).keep(folder, profile(kind="unknown"))
    past_run(home, run_id, folder, compute=1.5, exchange=1.25)
    found = answer(desktop, "runs", "show", run_id, code=3)["comparison"]
    assert (found["trainers"], found["same_files"]) == (2, True)
    assert found["predicted"]["compute_s"] == pytest.approx(0.51)
    assert found["measured"]["compute_s"] == pytest.approx(1.5 * 0.51)
    for step in (found["predicted"], found["measured"]):
        assert step["step_s"] == pytest.approx(step["compute_s"] + step["exchange_s"] + step["wait_s"])
    shown = torchyard(desktop, "runs", "show", run_id, code=3).stdout
    assert "A step, as predicted from the profile\nand as the median of 2 trainers measured its last one:" in shown
    [compute] = [line.split() for line in shown.splitlines() if line.startswith("compute")]
    assert compute == ["compute", "510", "ms", "765", "ms"]
    assert [line.split("  ")[0] for line in shown.splitlines()[-4:]] == [
        "exchange", "waiting", "exchange and waiting", "step",
    ]  # fmt: skip
    past_run(home, run_id, folder, snapshot="other")
    assert "from the profile of other files" in torchyard(desktop, "runs", "show", run_id, code=3).stdout
