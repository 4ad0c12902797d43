"""Tests of `runs stop` and of failures under five strategies: replicas of each role are killed during training.

All failures of a strategy occur one after another in a single run, because each process takes seconds to import torch.
"""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.end_to_end.running import Event
from tests.faults.runs import LaunchedRun, Team, environment_of, outside_pids
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files

pytestmark = [pytest.mark.lab, pytest.mark.train]

SCRIPT = """
    import os, pathlib, sys, time
    import torch
    import torchyard_roles as ty

    steps, saved_at = int(sys.argv[1]), int(sys.argv[2])
    cluster = ty.join()
    torch.manual_seed(1 + (cluster.rank or 0))
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )
    if cluster.role == "evaluator":
        for step in cluster.evaluations(model):
            print("scored", step, flush=True)
        sys.exit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = cluster.distribute(model, optimizer)
    data = torch.randn(240, 8, generator=torch.Generator().manual_seed(3))
    loader = cluster.loader(data, batch_size=4, shuffle=True, seed=0)
    counter = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)
    cluster.checkpoint(counter=counter)
    hurry = pathlib.Path(os.path.expanduser("~/enough"))
    print("begins", flush=True)
    while counter.last_epoch < steps:
        for batch in loader:
            loss = (model(batch) - batch.sum(dim=1, keepdim=True).sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counter.step()
            print("step", counter.last_epoch, loss.item().hex(), flush=True)
            if counter.last_epoch == saved_at:
                cluster.checkpoint(counter=counter, now=True)
            if counter.last_epoch >= steps:
                break
            time.sleep(0 if hurry.exists() else 0.04)
"""
CHIEF = "{name: chief, role: chief, replicas: 1, hosts: [gpu-a]}"
ONE_WORKER = "{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}"
TWO_WORKERS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-b]}"
TWO_GROUPS = "{name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}"
SERVER = "{name: servers, role: ps, replicas: 1, hosts: [gpu-c]}"
REDUCER = "{name: reducers, role: reducer, replicas: 1, hosts: [gpu-c]}"
EVALUATOR = "{name: scorer, role: evaluator, replicas: 1, hosts: [gpu-c]}"
KILLED = re.compile(r"was killed by SIGKILL")
FOREVER = 100_000
GRACE_S = 15
SOON_S = 60.0
"""Timeout in seconds for processes that import torch, on a loaded machine."""


@pytest.fixture
def desktop(desktop: Desktop, lab3: Lab, warm_python: str) -> Desktop:
    """Returns a desktop whose hosts use an interpreter that has already imported torch."""
    desktop.use(lab3, python=warm_python)
    return desktop


def launch(
    team: Team, strategy: str, *pools: str, steps: int = FOREVER, saved_at: int = 0, every_s: float = 0.4
) -> LaunchedRun:
    program = f"""
        args: ["{steps}", "{saved_at}"]
        env: {{OMP_NUM_THREADS: "1"}}
        checkpoint_every_s: {every_s}
        max_restarts: 5
        failure_grace_s: 1
        stop_grace_s: {GRACE_S}
    """
    file = team.topology(SCRIPT, program, f"[{', '.join(pools)}]")
    text = file.read_text().replace("pools:", f"strategy: {{{strategy}}}\npools:", 1)
    file.write_text(text)
    return team.launch(file)


def steps_of(run: LaunchedRun, replica: str) -> list[tuple[int, str]]:
    """Returns the steps and losses of all generations of a replica, in the order of execution."""
    return [(int(step), loss) for step, loss in re.findall(r"^step (\d+) (\S+)$", run.log(replica), re.MULTILINE)]


def starts_of(run: LaunchedRun, replica: str) -> int:
    return run.log(replica).count("begins\n")


def wait_for_steps(run: LaunchedRun, *replicas: str, more: int = 10) -> None:
    """Waits until each replica has made `more` additional steps."""
    enough = {name: len(steps_of(run, name)) + more for name in replicas}
    wait_until(
        lambda: all(len(steps_of(run, name)) >= enough[name] for name in replicas),
        SOON_S,
        what=lambda: f"{more} more steps of {replicas}: { ({name: run.log(name)[-800:] for name in run.places}) }",
    )


def wait_for_starts(run: LaunchedRun, number: int, *replicas: str) -> None:
    """Waits until each replica has been started `number` times and is training."""
    wait_until(lambda: all(starts_of(run, name) == number for name in replicas), SOON_S)
    wait_for_steps(run, *replicas)


def kill(team: Team, run: LaunchedRun, *replicas: str) -> None:
    for name in replicas:
        pids = [
            pid
            for pid in outside_pids(team.lab[run.places[name]], "script.py")
            if environment_of(pid).get("TORCHYARD_REPLICA") == name
        ]
        assert len(pids) == 1, (name, pids)
        os.kill(pids[0], signal.SIGKILL)


def restarts(run: LaunchedRun, gang: str) -> list[str]:
    """Returns the causes of the gang's restarts so far."""
    return [str(event["cause"]) for event in run.of("gang_restart") if event["gang"] == gang]


def checkpoint_steps(team: Team, run: LaunchedRun) -> list[int]:
    """Returns the steps of the complete checkpoints on the chief's host, newest first."""
    return [one.step for one in checkpoint_files.complete(run.folder("gpu-a") / "outputs" / "checkpoints")]


def wait_for_checkpoint(team: Team, run: LaunchedRun) -> int:
    """Waits for a checkpoint that is newer than all existing ones; returns its step."""
    before = max(checkpoint_steps(team, run), default=0)
    wait_until(lambda: max(checkpoint_steps(team, run), default=0) > before, SOON_S)
    return checkpoint_steps(team, run)[0]


def losses(run: LaunchedRun, *replicas: str) -> dict[tuple[str, int], str]:
    """Returns losses by replica and step. Asserts that a step that is repeated after a restart has exactly the same
    loss.
    """
    found: dict[tuple[str, int], str] = {}
    for name in replicas:
        for step, loss in steps_of(run, name):
            assert found.setdefault((name, step), loss) == loss, f"{name}'s step {step} has another loss"
    return found


def succeeds(team: Team, run: LaunchedRun) -> Event:
    for host in team.lab.hosts:
        (host.home / "enough").touch()
    ended = run.ended(SOON_S)
    assert ended["state"] == "succeeded", (ended, {name: run.log(name)[-600:] for name in run.places})
    ends = {one["name"]: one["exit_code"] for one in ended["replicas"]}
    assert set(ends.values()) == {0}, ends
    return ended


def stop_gracefully(team: Team, run: LaunchedRun, *trainers: str) -> None:
    """Runs `runs stop`; asserts that the trainers report a checkpoint, and that all replicas exit with 0 in time."""
    began = time.monotonic()
    done = team.desktop.torchyard("runs", "stop", run.run_id, timeout=60)
    assert done.returncode == 0, done.stderr
    ended = run.ended(SOON_S)
    took_s = time.monotonic() - began
    logs = {name: run.log(name)[-800:] for name in run.places}
    assert ended["state"] == "stopped", (ended, logs)
    ends = {one["name"]: (one["state"], one["exit_code"]) for one in ended["replicas"]}
    assert all(code == 0 for _, code in ends.values()), (ends, logs)
    assert took_s < GRACE_S, (took_s, logs)
    for name in trainers:
        assert "; a checkpoint is saved." in logs[name], logs[name]
    said = re.search(r"stopped after step (\d+); a checkpoint is saved", logs[trainers[0]])
    assert said is not None
    assert checkpoint_steps(team, run)[0] == int(said[1])
    assert not any("Traceback" in log.rpartition("begins")[2] for log in logs.values()), logs


def test_all_reduce_restarts_its_gang_from_the_newest_checkpoint_after_any_failure(team: Team) -> None:
    run = launch(team, "kind: all_reduce", CHIEF, ONE_WORKER)
    wait_for_starts(run, 1, "chief-0", "worker-0")
    saved = wait_for_checkpoint(team, run)
    kill(team, run, "worker-0")
    wait_for_starts(run, 2, "chief-0", "worker-0")
    assert int(re.findall(r"resumed from .*: (\d+) steps", run.log("chief-0"))[-1]) >= saved
    wait_for_checkpoint(team, run)
    kill(team, run, "chief-0")
    wait_for_starts(run, 3, "chief-0", "worker-0")

    causes = restarts(run, "trainers")
    assert [cause.partition(":")[0] for cause in causes] == ["worker-0 on gpu-b", "chief-0 on gpu-a"]
    assert all(KILLED.search(cause) for cause in causes)
    assert losses(run, "chief-0", "worker-0")
    stop_gracefully(team, run, "chief-0", "worker-0")


def test_sandblaster_resumes_bit_for_bit_after_any_failure_and_after_all(team: Team) -> None:
    whole = launch(team, "kind: sandblaster", CHIEF, ONE_WORKER, SERVER)
    for host in team.lab.hosts:
        (host.home / "enough").touch()
    wait_for_starts(whole, 1, "chief-0", "worker-0")
    wait_for_steps(whole, "chief-0", "worker-0", more=400)
    stop_gracefully(team, whole, "chief-0", "worker-0")
    uninterrupted = losses(whole, "chief-0", "worker-0")
    for host in team.lab.hosts:
        (host.home / "enough").unlink()

    run = launch(team, "kind: sandblaster", CHIEF, ONE_WORKER, SERVER, EVALUATOR, steps=400)
    trainers = ("chief-0", "worker-0")
    wait_for_starts(run, 1, *trainers)
    wait_for_checkpoint(team, run)
    kill(team, run, "worker-0")
    wait_for_starts(run, 2, *trainers)
    assert restarts(run, "ps-0") == []
    wait_for_checkpoint(team, run)
    kill(team, run, "ps-0")
    wait_for_starts(run, 3, *trainers)
    wait_until(lambda: "scored" in run.log("evaluator-0"), SOON_S)
    kill(team, run, "evaluator-0")
    wait_for_steps(run, *trainers)
    wait_for_checkpoint(team, run)
    kill(team, run, "chief-0", "worker-0", "ps-0")
    wait_for_starts(run, 4, *trainers)
    succeeds(team, run)

    causes = restarts(run, "trainers")
    assert [cause.partition(":")[0] for cause in causes[:2]] == ["worker-0 on gpu-b", "ps-0 on gpu-c"]
    assert len(causes) == 3
    assert [cause.partition(":")[0] for cause in restarts(run, "ps-0")] == ["ps-0 on gpu-c"] * 2
    assert all(KILLED.search(cause) for cause in causes)
    resumed = [int(step) for step in re.findall(r"resumed from .*: (\d+) steps", run.log("chief-0"))]
    assert len(resumed) == 3
    assert all(step > 0 for step in resumed)
    now = losses(run, *trainers)
    assert max(step for _, step in now) == 400
    assert {key: uninterrupted[key] for key in now} == now


def test_a_killed_reducer_is_replaced_while_trainers_wait_with_the_same_result(team: Team) -> None:
    run = launch(team, "kind: reduction_server", CHIEF, TWO_WORKERS, REDUCER, saved_at=10, every_s=600)
    trainers = ("chief-0", "worker-0", "worker-1")
    wait_for_starts(run, 1, *trainers)
    wait_until(lambda: checkpoint_steps(team, run), SOON_S)
    (saved,) = checkpoint_steps(team, run)
    wait_for_steps(run, *trainers)
    kill(team, run, "reducer-0")
    wait_for_steps(run, *trainers, more=20)
    assert restarts(run, "trainers") == []
    (cause,) = restarts(run, "reducer-0")
    assert cause.startswith("reducer-0 on gpu-c: ")
    assert KILLED.search(cause)
    assert "reducer-0 is back" in run.log("chief-0")

    # The trainers restart from a checkpoint that is older than the reducer's failure, so later sums are repeated.
    kill(team, run, "worker-1")
    wait_for_starts(run, 2, *trainers)
    assert len(restarts(run, "reducer-0")) == 1
    (cause,) = restarts(run, "trainers")
    assert cause.startswith("worker-1 on gpu-b: ")
    assert f": {saved} steps" in run.log("chief-0")
    again = max(step for step, _ in steps_of(run, "chief-0"))
    wait_until(lambda: steps_of(run, "chief-0")[-1][0] > again, SOON_S)
    assert losses(run, *trainers)
    stop_gracefully(team, run, *trainers)


def test_in_downpour_a_group_and_a_server_restart_alone(team: Team) -> None:
    run = launch(team, "kind: downpour", TWO_GROUPS, SERVER)
    wait_for_starts(run, 1, "worker-0", "worker-1")
    kill(team, run, "worker-1")
    wait_for_starts(run, 2, "worker-1")
    assert starts_of(run, "worker-0") == 1

    kill(team, run, "ps-0")
    wait_until(lambda: all("is connected to ps-0 again" in run.log(name) for name in ("worker-0", "worker-1")), SOON_S)
    wait_for_steps(run, "worker-0", "worker-1")
    assert "ps-0 resumes at version" in run.log("ps-0")
    assert (starts_of(run, "worker-0"), starts_of(run, "worker-1")) == (1, 2)

    wait_for_checkpoint(team, run)
    kill(team, run, "worker-0")
    wait_for_steps(run, "worker-1")
    wait_for_starts(run, 2, "worker-0")
    assert starts_of(run, "worker-1") == 2

    for gang, replica in (
        ("group-0", "worker-0 on gpu-a"),
        ("group-1", "worker-1 on gpu-b"),
        ("ps-0", "ps-0 on gpu-c"),
    ):
        (cause,) = restarts(run, gang)
        assert cause.startswith(f"{replica}: ")
        assert KILLED.search(cause)
    assert run.states()[-1] == "running"
    stop_gracefully(team, run, "worker-0", "worker-1")


def test_in_hogwild_each_group_restarts_alone(team: Team) -> None:
    run = launch(team, "kind: hogwild, sync_every: 4", TWO_GROUPS)
    wait_for_starts(run, 1, "worker-0", "worker-1")
    kill(team, run, "worker-1")
    wait_for_steps(run, "worker-0")
    wait_for_starts(run, 2, "worker-1")
    assert starts_of(run, "worker-0") == 1
    wait_for_checkpoint(team, run)
    kill(team, run, "worker-0")
    wait_for_steps(run, "worker-1")
    wait_for_starts(run, 2, "worker-0")
    assert starts_of(run, "worker-1") == 2

    for gang, replica in (("group-0", "worker-0 on gpu-a"), ("group-1", "worker-1 on gpu-b")):
        (cause,) = restarts(run, gang)
        assert cause.startswith(f"{replica}: ")
        assert KILLED.search(cause)
    stop_gracefully(team, run, "worker-0", "worker-1")
