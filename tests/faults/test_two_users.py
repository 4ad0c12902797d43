"""Tests of two Unix users of one host who launch runs that need the same GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.faults.runs import FOREVER, LaunchedRun, Team
from tests.lab import Desktop, HostSpec
from torchyard_core.errors import AgentRefused, RunFailed

pytestmark = pytest.mark.lab

ONE_GPU = "[{name: workers, role: worker, replicas: 1, gpus: 1}]"
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture
def ann_and_bob(lab: Callable, make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[list[Team]]:
    """Yields a team for each of two users of one host. A fake NVML library reports the only GPU of the host."""
    inside = "/tmp/nvml"
    spec = HostSpec(
        "gpu-a",
        users=("ann", "bob"),
        ssh_environment={"LD_LIBRARY_PATH": inside, "FAKE_NVML_FILE": f"{inside}/gpus"},
    )
    there = lab(hosts=[spec])
    folder = there["gpu-a"].tmp / "nvml"
    build_fake_nvml(folder)
    write_gpus(folder / "gpus", [FakeGpu(UUID, memory_used_mb=0, utilisation=0)])
    teams = []
    for user in ("ann", "bob"):
        (tmp_path / user).mkdir()
        teams.append(Team(there, make_desktop(there, python=None, user=user), tmp_path / user))
    yield teams
    for team in teams:
        team.close()


def launched(team: Team) -> LaunchedRun | AgentRefused | RunFailed:
    try:
        return team.launch(team.topology(FOREVER, "launcher: command\ncommand: [python3, script.py]", ONE_GPU))
    except (AgentRefused, RunFailed) as refused:
        return refused


def test_of_two_simultaneous_launches_one_gets_the_gpu_and_the_other_names_its_user(ann_and_bob: list[Team]) -> None:
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(launched, ann_and_bob))

    (winner,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, LaunchedRun)]
    name = ("ann", "bob")[winner]
    run, refused = outcomes[winner], outcomes[1 - winner]
    assert isinstance(run, LaunchedRun)
    assert isinstance(refused, (AgentRefused, RunFailed))
    assert name in str(refused), refused
    assert run.run_id in str(refused) or "faults" in str(refused), refused
    team = ann_and_bob[winner]
    team.call("gpu-a", "run.stop", run_id=run.run_id, reason="enough", force=True)
    team.nothing_is_left()
    second = launched(ann_and_bob[1 - winner])
    assert isinstance(second, LaunchedRun), second
    ann_and_bob[1 - winner].call("gpu-a", "run.stop", run_id=second.run_id, reason="enough", force=True)
    team.nothing_is_left()
