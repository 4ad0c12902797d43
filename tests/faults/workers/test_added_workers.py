"""Tests of `torchyard runs grow`: workers are added to a run on a host that it has not used before."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.running import Event
from tests.faults.runs import LaunchedRun, Team
from tests.faults.test_strategies import SOON_S, kill, steps_of, wait_for_steps
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.timeout(400)]

SCRIPT = """
    import hashlib, os, pathlib, time
    import torch
    import torchyard_roles as ty

    if pathlib.Path(os.path.expanduser("~/broken")).exists():
        raise RuntimeError("this host is broken")
    cluster = ty.join()
    torch.manual_seed(1 + (cluster.rank or 0))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    data = torch.randn(240, 8, generator=torch.Generator().manual_seed(3))
    loader = cluster.loader(data, batch_size=4, shuffle=True, seed=0)
    counter = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)
    cluster.checkpoint(counter=counter)
    try:
        while True:
            for batch in loader:
                loss = (model(batch) - batch.sum(dim=1, keepdim=True).sin()).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                counter.step()
                print("step", counter.last_epoch, loss.item().hex(), flush=True)
                time.sleep(0.04)
    finally:
        values = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
        print("parameters", counter.last_epoch, hashlib.sha256(values.numpy().tobytes()).hexdigest(), flush=True)
"""
TOPOLOGY = """
    strategy: {kind: all_reduce, on_worker_loss: continue}
    pools: [{name: workers, role: worker, replicas: 2, min_replicas: 2, placement: spread, hosts: [gpu-a, gpu-b]}]
    program:
      script: script.py
      env: {OMP_NUM_THREADS: "1"}
      checkpoint_every_s: 0.4
      max_restarts: 1
      failure_grace_s: 1
      stop_grace_s: 15
"""
FIRST = ("worker-0", "worker-1")
ALL = (*FIRST, "worker-2")


@pytest.fixture
def desktop(desktop: Desktop, lab3: Lab, warm_python: str) -> Desktop:
    """Returns a desktop whose hosts use an interpreter that has already imported torch."""
    desktop.use(lab3, python=warm_python)
    return desktop


def launch(team: Team, folder: Path, worker_2: str = "gpu-c") -> LaunchedRun:
    """Launches two workers on gpu-a and gpu-b with `torchyard run`, which adds the run to the desktop's history.

    Args:
        worker_2: The host on which the test will add a worker.
    """
    from tests.end_to_end.running import topology

    done = team.desktop.torchyard("run", topology(folder / "grows", TOPOLOGY, script_py=SCRIPT), "--detach", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    events: list[Event] = [json.loads(line) for line in done.stdout.splitlines()]
    [run_id] = [event["run_id"] for event in events if event["event"] == "run_submitted"]
    places = {"worker-0": "gpu-a", "worker-1": "gpu-b", "worker-2": worker_2}
    run = LaunchedRun(team, run_id, places, "gpu-a")
    wait_until(lambda: all(steps_of(run, name) for name in FIRST), 2 * SOON_S, what=lambda: run.log("worker-0"))
    return run


def check_parameters(run: LaunchedRun) -> None:
    """Stops the run, and checks that all workers end after the same step with equal parameters."""
    ended = run.stop(force=False)
    assert (ended["state"], {one["exit_code"] for one in ended["replicas"]}) == ("stopped", {0}), ended
    found = [re.findall(r"^parameters (\d+) (\w+)$", run.log(name), re.MULTILINE)[-1] for name in ALL]
    assert len(set(found)) == 1, found
    assert int(found[0][0]) > 0


def test_a_worker_is_added_on_another_host_and_has_the_parameters_of_the_others(team: Team, tmp_path: Path) -> None:
    run = launch(team, tmp_path)
    done = team.desktop.torchyard("runs", "grow", run.run_id, "--host", "gpu-c", "--json")
    assert done.returncode == 0, done.stderr + run.log("worker-2")
    added = json.loads(done.stdout)
    expected = {"run_id": run.run_id, "host": "gpu-c", "replicas": ["worker-2"], "workers": 3, "planned": 3}
    assert {name: value for name, value in added.items() if name != "step"} == expected
    wait_for_steps(run, *ALL)
    assert int(re.findall(r"has joined at step (\d+)", run.log("worker-2"))[0]) > 0
    shown = team.desktop.torchyard("runs", "show", run.run_id).stdout
    assert f"step {added['step']}: 3 of 3 workers" in shown, shown
    assert "gpu-c" in shown
    record = History(Home(team.desktop.home).history).load(run.run_id)
    assert record is not None
    assert record.hosts == ("gpu-a", "gpu-b", "gpu-c")
    assert not run.of("gang_restart")
    check_parameters(run)


@pytest.mark.proof
def test_a_failure_on_the_new_host_and_an_interruption_leave_the_run_as_it_was(team: Team, tmp_path: Path) -> None:
    run = launch(team, tmp_path)
    broken = team.lab["gpu-c"].home / "broken"
    broken.touch()
    done = team.desktop.torchyard("runs", "grow", run.run_id, "--host", "gpu-c")
    assert done.returncode == 1, done.stdout
    assert "continues as before" in done.stderr, done.stderr
    assert "this host is broken" in done.stderr
    wait_until(lambda: run.of("run_ended", "gpu-c"), SOON_S)

    broken.unlink()
    command = team.desktop.start("runs", "grow", run.run_id, "--host", "gpu-c")
    wait_until(lambda: "starting" in run.replica_states("worker-3"), SOON_S)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=SOON_S)
    assert (command.returncode, out) == (1, ""), err
    assert "continues as it was" in err
    time.sleep(2)
    assert run.of("membership") == run.of("gang_restart") == []
    wait_for_steps(run, *FIRST)
    ended = run.stop(force=False)
    assert {one["name"]: one["exit_code"] for one in ended["replicas"] if one["name"] in FIRST} == dict.fromkeys(
        FIRST, 0
    )


@pytest.mark.proof
def test_a_restart_includes_a_worker_that_was_added_on_a_host_of_the_run(team: Team, tmp_path: Path) -> None:
    run = launch(team, tmp_path, worker_2="gpu-b")
    done = team.desktop.torchyard("runs", "grow", run.run_id, "--host", "gpu-b")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"worker-2 has joined run {run.run_id}\.\nstep \d+: 3 of 3 workers\n", done.stdout), (
        done.stdout
    )
    wait_for_steps(run, *ALL)
    kill(team, run, "worker-1", "worker-2")  # Now only one worker is left, but `min_replicas` is 2.
    wait_until(lambda: run.of("gang_restart"), SOON_S)
    wait_for_steps(run, *ALL)
    check_parameters(run)
