"""Test that a command that follows a sweep copies its study to the team's database."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest

from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres as postgres
from tests.end_to_end.running import topology
from tests.lab import Desktop, Lab

pytestmark = pytest.mark.lab

SCRIPT = """
    import json, os, socket, sys
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0}
    message["metrics"] = {"step": 1, "loss": float(sys.argv[1])}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
"""
PROGRAM = """pools: [{name: workers, role: worker, replicas: 1}]
program: {script: script.py, args: ["{params.x}"], max_restarts: 0}
"""
SEARCH = """version: 1
name: numbers
parameters: {x: {distribution: categorical, values: [1.5, 0.5]}}
objective: {metric: loss, goal: minimize}
sampler: {kind: grid}
"""


def test_a_sweep_that_is_followed_is_in_the_teams_database_at_its_end(
    desktop: Desktop, lab3: Lab, postgres: Cluster, tmp_path: Path
) -> None:
    postgres.empty()
    (desktop.home / "settings.yaml").write_text(f"bookings_url: {postgres.url('kim', 'team')}\n")
    (tmp_path / "search.yaml").write_text(SEARCH)
    file = topology(tmp_path / "program", PROGRAM, script_py=SCRIPT)
    done = desktop.torchyard("sweep", file, tmp_path / "search.yaml", "-y", "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    of_trials = [(one["trial"], one["state"], one["value"] is None) for one in events if one["event"] == "trial"]
    assert of_trials == [
        ("1", "running", True),
        ("1", "complete", False),
        ("2", "running", True),
        ("2", "complete", False),
    ]
    assert events[-1]["event"] == "run_ended"
    shown = json.loads(desktop.torchyard("sweeps", "show", "last", "--json").stdout)
    storage = optuna.storages.RDBStorage(shown["team_study"])
    try:
        study = optuna.load_study(study_name=f"numbers {shown['run_id']}", storage=storage)
        assert sorted(trial.value or 0 for trial in study.get_trials()) == [0.5, 1.5]
        assert study.best_params == {"x": 0.5}
    finally:
        storage.remove_session()
        storage.engine.dispose()
