"""Tests of `runs restart` on three hosts, between which checkpoints are copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.agent.keeper.checkpoints.sample_checkpoints import there
from tests.end_to_end.running import Outcome, log_of, run, started, topology
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SCRIPT = """
    import json, os, pathlib, time
    home, role = pathlib.Path(os.path.expanduser("~")), os.environ["TORCHYARD_ROLE"]
    folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"])
    folder.mkdir(exist_ok=True)

    def steps():
        return sorted(int(path.name[5:]) for path in folder.glob("step-*"))

    def save(step):
        scratch, data = folder / f".saving-{step}", bytes([step]) * 300_000
        scratch.mkdir()
        (scratch / "model.pt").write_bytes(data)
        (scratch / "checkpoint.json").write_text(json.dumps({"step": step, "files": {"model.pt": len(data)}}))
        scratch.rename(folder / f"step-{step:012d}")

    step, scored = max(steps(), default=0), []
    print("begins at", step, flush=True)
    while not (home / "enough").exists() or role == "evaluator":
        if role == "chief" and (home / f"save-{step + 1}").exists():
            step += 1
            save(step)
        if role == "evaluator" and [new for new in steps() if new not in scored]:
            scored += [new for new in steps() if new not in scored]
            print("scored", scored, flush=True)
        time.sleep(0.02)
"""
POOLS = """\
    pools:
      - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
      - {name: workers, role: worker, replicas: 1, hosts: [gpu-b]}
      - {name: scorer, role: evaluator, replicas: 1, hosts: [gpu-c]}
    program: {script: train.py, secrets: [TOKEN], stop_grace_s: 1}
    """
TOKEN = {"TOKEN": "hush-hush-4f"}


def folder_on(host: LabHost, run_id: str) -> Path:
    return host.home / ".torchyard" / "hosts" / host.name / "runs" / run_id


def checkpoints(host: LabHost, run_id: str) -> list[str]:
    return there(folder_on(host, run_id) / "outputs" / "checkpoints")


def restarted(desktop: Desktop, run_id: str, *options: str) -> Outcome:
    """Runs `runs restart --json` and follows the run to its end."""
    done = desktop.torchyard("runs", "restart", run_id, "--json", *options, timeout=100, env=TOKEN)
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)


def test_checkpoints_are_replicated_and_a_run_resumes_from_them(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    chief, peer, scorer = lab3.hosts
    file = topology(tmp_path / "program", POOLS, train_py=SCRIPT)
    following = desktop.start("run", file, "--json", env=TOKEN)
    run_id = str(started(following, "run_submitted")["run_id"])
    started(following, "run_state", state="running")
    names = [f"step-{step:012d}" for step in (1, 2, 3)]

    # A run cannot be restarted while it is active.
    refused = desktop.torchyard("runs", "restart", run_id, env=TOKEN)
    assert refused.returncode == 1
    assert f"run {run_id} is still running on gpu-a" in refused.stderr

    # Each checkpoint is copied to the evaluator's host and to the peer, both of which keep the two newest checkpoints.
    for step, name in enumerate(names, 1):
        (chief.home / f"save-{step}").touch()
        wait_until(lambda name=name: name in checkpoints(scorer, run_id) and name in checkpoints(peer, run_id))
        wait_until(lambda step=step: f"scored {list(range(1, step + 1))}" in log_of(desktop, run_id, "evaluator-0"))
    wait_until(lambda: checkpoints(peer, run_id) == checkpoints(scorer, run_id) == names[1:])
    (chief.home / "enough").touch()
    (peer.home / "enough").touch()
    following.communicate(timeout=60)
    assert following.returncode == 0

    # `runs fetch` downloads each checkpoint exactly once, from the chief's host.
    fetched = desktop.torchyard("runs", "fetch", run_id, "*/checkpoints/*").stdout.split()
    assert sorted(fetched) == [
        f"{run_id}/gpu-a/outputs/checkpoints/{name}/{one}" for name in names for one in ("checkpoint.json", "model.pt")
    ]

    # Although a file of the program has been changed since the launch, the restarted run uses the original program.
    (file.parent / "train.py").write_text("raise SystemExit(9)")
    again = restarted(desktop, run_id)
    assert again.ended["state"] == "succeeded"
    (line,) = [check for check in again.of("check") if check["name"] == "resume"]
    assert line["message"] == f"resumes from step 3 of {run_id}, stored on gpu-a and gpu-b and gpu-c"
    assert log_of(desktop, again.run_id, "chief-0") == "begins at 3\n"
    shown = json.loads(desktop.torchyard("runs", "show", again.run_id, "--json").stdout)
    assert shown["restarted_from"] == run_id
    assert f"restart of {run_id}" in desktop.torchyard("runs", "show", again.run_id).stdout

    # This run starts from the beginning, without using a checkpoint.
    afresh = restarted(desktop, run_id, "--from-beginning")
    assert afresh.ended["state"] == "succeeded"
    (line,) = [check for check in afresh.of("check") if check["name"] == "resume"]
    assert line["message"] == f"begins at the first step, without the checkpoints of {run_id}"
    assert log_of(desktop, afresh.run_id, "chief-0") == "begins at 0\n"
    assert json.loads(desktop.torchyard("runs", "show", afresh.run_id, "--json").stdout)["restarted_from"] == run_id

    # The chief's host has lost its checkpoints and the snapshot. Both are copied from other hosts before the run
    # starts.
    shutil.rmtree(folder_on(chief, again.run_id) / "outputs" / "checkpoints")
    shutil.rmtree(chief.home / ".torchyard" / "store" / "snapshots")
    third = restarted(desktop, again.run_id)
    assert third.ended["state"] == "succeeded"
    assert log_of(desktop, third.run_id, "chief-0") == "begins at 3\n"
    assert checkpoints(chief, third.run_id) == names[2:]


def test_a_run_without_a_checkpoint_starts_over_and_reports_it(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = topology(
        tmp_path / "program",
        "pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]\nprogram: {script: train.py}\n",
        train_py="raise ValueError('bad')",
    )
    first = run(desktop, file)
    assert first.code == 1

    again = restarted(desktop, "last")

    assert again.code == 1
    assert again.run_id != first.run_id
    (line,) = [check for check in again.of("check") if check["name"] == "resume"]
    assert "it begins at the first step" in line["message"]
    shutil.rmtree(folder_on(lab3["gpu-b"], first.run_id))
    gone = desktop.torchyard("runs", "restart", first.run_id)
    assert gone.returncode == 1
    assert "no host that answers has a record of run" in gone.stderr
