"""Tests `torchyard advise`: its table and JSON, the edit of the file, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.advisor.samples import profile
from tests.core.cli.command_runner import answer, torchyard
from tests.lab import Desktop

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
    assert "These change the result of training" in done.stdout
    assert "DiLoCo: computing as a share of a step" in done.stdout
    assert "was measured" in done.stderr  # The profile is that of another snapshot.
    found = answer(desktop, "advise", file, "--profile", file.with_name("profile.json"))
    assert found["fastest"]["trainers"] == 3
    assert found["fastest"]["step_s"] >= found["fastest"]["bound_s"]
    assert [point["trainers"] for point in found["curve"]] == [1, 2, 3]
    assert {each["strategy"] for each in found["other_result"]} == {"downpour", "hogwild", "diloco"}
    assert found["current"]["trainers"] == 1


def test_a_recommendation_is_applied_as_an_edit_that_keeps_comments(desktop: Desktop, file: Path) -> None:
    with_profile = ("advise", file, "--profile", file.with_name("profile.json"))
    done = torchyard(desktop, *with_profile, "--apply", "fastest")
    assert "was changed: All-reduce, 3 workers" in done.stderr
    assert file.read_text() == TOPOLOGY.replace("replicas: 1", "replicas: 3")
    assert "is so already" in torchyard(desktop, *with_profile, "--apply", "fastest").stderr
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
    file.write_text(TOPOLOGY.replace("role: worker", "role: wrker"))
    assert "wrker" in torchyard(desktop, *with_profile, code=1).stderr
