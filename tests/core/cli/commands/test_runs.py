"""Tests of `torchyard runs`: how runs are found by short names, and the commands show, logs, stop and fetch."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import torch

from tests.core.cli.command_runner import answer, torchyard
from tests.core.cli.sample_runs import sleeping
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_agent.protocol.paths import runs_dir

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]

SHOWN_KEYS = {"run_id", "name", "state", "reason", "as_of", "fresh", "alive", "primary", "hosts", "submitted",
              "launched_from", "restarted_from", "asked", "memberships", "interruptions", "telemetry_problem",
              "jobs", "nodes", "replicas", "metrics", "timings", "comparison"}  # fmt: skip


def detached(desktop: Desktop, file: Path) -> str:
    """Starts a run with `--detach`; returns its ID."""
    return torchyard(desktop, "run", file, "--detach").stdout.strip()


def log_lines(name: str, count: int) -> list[str]:
    return [*(f"{name} line {number}" for number in range(count)), f"{name} no newline at the end"]


def test_a_run_that_is_over_is_found_shown_read_and_fetched(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    run_id = detached(desktop, sleeping(tmp_path / "talk", seconds=0, lines=3))
    names = ["worker-0", "worker-1", "worker-2"]

    # `-f` follows all logs to their end.
    followed = torchyard(desktop, "runs", "logs", "last", "-f").stdout.splitlines()
    assert sorted(followed) == sorted(f"{name} | {line}" for name in names for line in log_lines(name, 3))
    # The logs end with the run, but the keepers exit later.
    wait_until(lambda: answer(desktop, "runs", "show", "last")["alive"] is False)
    # The run is found by the last characters of its ID.
    logs = torchyard(desktop, "runs", "logs", run_id[-4:]).stdout.splitlines()
    assert sorted(logs) == sorted(followed)
    assert torchyard(desktop, "runs", "logs", "talk", "--tail", "1", "--replica", "worker-1").stdout == (
        "worker-1 no newline at the end\n"
    )
    as_json = torchyard(desktop, "runs", "logs", run_id, "--replica", "worker-2", "--tail", "2", "--json").stdout
    assert [json.loads(line) for line in as_json.splitlines()] == [
        {"replica": "worker-2", "local_rank": 0, "line": line} for line in log_lines("worker-2", 3)[-2:]
    ]
    assert "worker-0, worker-1, worker-2" in torchyard(
        desktop, "runs", "logs", run_id, "--replica", "worker-9", code=2
    ).stderr  # fmt: skip

    (listed,) = answer(desktop, "runs", "list")
    assert (listed["run_id"], listed["name"], listed["state"]) == (run_id, "talk", "succeeded")
    assert listed["hosts"] == ["gpu-a", "gpu-b", "gpu-c"]

    shown = answer(desktop, "runs", "show", "last")
    assert set(shown) == SHOWN_KEYS
    assert (shown["state"], shown["fresh"], shown["alive"]) == ("succeeded", True, False)
    assert [
        (replica["name"], replica["host"], replica["state"], replica["exit_code"], replica["restarts"])
        for replica in shown["replicas"]
    ] == [(name, host.name, "succeeded", 0, 0) for name, host in zip(names, lab3.hosts, strict=True)]
    assert "succeeded" in torchyard(desktop, "runs", "show", run_id).stdout

    assert "is over: it succeeded" in torchyard(desktop, "runs", "stop", run_id, code=1).stderr

    fetched = torchyard(desktop, "runs", "fetch", run_id, "*.bin").stdout.split()
    assert fetched == [
        f"{run_id}/{host.name}/outputs/worker-{number}/model.bin" for number, host in enumerate(lab3.hosts)
    ]
    assert (desktop.directory / fetched[1]).read_text() == "worker-1"
    assert "no file that matches *.pt" in torchyard(desktop, "runs", "fetch", run_id, "*.pt", code=1).stderr
    (tmp_path / "taken").write_text("a file, not a folder")
    assert "taken" in torchyard(desktop, "runs", "fetch", run_id, "-o", tmp_path / "taken", code=1).stderr


SAVING = """\
import json, os, pathlib, warnings
import torch
from torch.distributed import checkpoint
warnings.simplefilter("ignore")
root = pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"])
for step in (3, 5):
    place = root / f"step-{step:012d}"
    place.mkdir(parents=True)
    model = {"weight": torch.full((2,), float(step))}
    torch.save({}, place / "optimizer.pt")
    torch.save({}, place / "extra.pt")
    if step == 3:
        torch.save(model, place / "model.pt")
    else:
        writer = checkpoint.FileSystemWriter(place)
        checkpoint.save({"model.weight": model["weight"]}, storage_writer=writer, no_dist=True)
    about = {"step": step, "files": {path.name: path.stat().st_size for path in place.iterdir()}}
    (place / "checkpoint.json").write_text(json.dumps(about))
"""


def test_the_model_of_a_checkpoint_is_fetched_as_one_file(
    desktop: Desktop, lab3: Lab, warm_python: str, tmp_path: Path
) -> None:
    file = sleeping(tmp_path / "save", hosts=["gpu-b"])
    (file.parent / "save.py").write_text(SAVING)
    shared = lab3.hosts[1].home / "shared"
    file.write_text(
        "version: 1\nname: save\npools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]\n"
        f"program: {{script: save.py, python: {warm_python}, checkpoint_dir: ~/shared, stop_grace_s: 1}}\n"
    )
    run_id = detached(desktop, file)
    torchyard(desktop, "runs", "logs", run_id, "-f")
    wait_until(lambda: answer(desktop, "runs", "show", run_id)["state"] == "succeeded")

    # The files of the newest checkpoint are combined into one model file.
    fetched = answer(desktop, "runs", "fetch", run_id, "--model", "model.pt")
    size = (desktop.directory / "model.pt").stat().st_size
    assert fetched == {"run_id": run_id, "step": 5, "host": "gpu-b", "file": "model.pt", "bytes": size}
    assert torch.load(desktop.directory / "model.pt", weights_only=True)["weight"].tolist() == [5.0, 5.0]
    assert not list(Path(runs_dir(str(lab3.hosts[1].home / ".torchyard"), "gpu-b"), run_id).glob("exports"))

    # The command refuses to replace an existing file unless `--force` is given.
    refused = torchyard(desktop, "runs", "fetch", run_id, "--model", "model.pt", "--step", "3", code=2).stderr
    assert "model.pt exists already. Name another file, or add --force." in refused
    torchyard(desktop, "runs", "fetch", run_id, "--model", "model.pt", "--step", "3", "--force")
    assert torch.load(desktop.directory / "model.pt", weights_only=True)["weight"].tolist() == [3.0, 3.0]
    assert torchyard(desktop, "runs", "fetch", run_id, "--model").stdout == f"{run_id}.pt\n"
    assert "--step needs --model" in torchyard(desktop, "runs", "fetch", run_id, "--step", "3", code=2).stderr

    # A checkpoint with a missing file is not used, and the message names the file and the host.
    [folder] = shared.iterdir()
    (folder / "step-000000000005" / "__0_0.distcp").unlink()
    done = torchyard(desktop, "runs", "fetch", run_id, "--model", "older.pt")
    assert "step 5 is incomplete: __0_0.distcp is missing on gpu-b. The model is that of step 3." in done.stderr
    assert "no checkpoint of step 4 on gpu-b. There are those of steps 3, 5." in (
        torchyard(desktop, "runs", "fetch", run_id, "--model", "none.pt", "--step", "4", code=1).stderr
    )
    (folder / "step-000000000003" / "model.pt").unlink()
    none = torchyard(desktop, "runs", "fetch", run_id, "--model", "none.pt", code=1).stderr
    assert f"run {run_id} has no complete checkpoint." in none
    assert not (desktop.directory / "none.pt").exists()


TURNS = """\
import os, pathlib, time
name, folder = os.environ["TORCHYARD_REPLICA"], pathlib.Path(os.environ["TORCHYARD_RUN_DIR"])
log = folder.parents[1] / "logs" / f"{name}.log"
for turn in range(int(name[-1]), 8, 2):
    while not (folder / f"go-{turn}").exists():
        time.sleep(0.01)
    print("turn", turn, flush=True)
    index = log.with_name(log.name + ".times")
    # The file exists before its first entry is written.
    while not (index.exists() and (entry := index.read_bytes()[-32:]) and int(entry.split()[0]) >= log.stat().st_size):
        time.sleep(0.01)
    (folder / f"done-{turn}").touch()
"""


def test_lines_that_two_hosts_wrote_in_turns_are_printed_in_turns(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = sleeping(tmp_path / "talk", hosts=["gpu-a", "gpu-b"])
    (file.parent / "talk.py").write_text(TURNS)
    run_id = detached(desktop, file)
    for turn in range(8):
        host, replica = lab3.hosts[turn % 2], f"worker-{turn % 2}"
        folder = Path(runs_dir(str(host.home / ".torchyard"), host.name), run_id, "outputs", replica)
        wait_until(folder.exists)
        time.sleep(0.02)  # File times have a resolution of about 4 ms.
        (folder / f"go-{turn}").touch()
        wait_until((folder / f"done-{turn}").exists)
    torchyard(desktop, "runs", "logs", run_id, "-f")
    expected = [f"worker-{turn % 2} | turn {turn}" for turn in range(8)]

    printed = torchyard(desktop, "runs", "logs", run_id).stdout.splitlines()
    timed = torchyard(desktop, "runs", "logs", run_id, "--timestamps").stdout.splitlines()

    assert printed == expected
    times, lines = zip(*(line.split(" ", 1) for line in timed), strict=True)
    assert list(lines) == expected
    assert [datetime.fromisoformat(time) for time in times] == sorted(set(map(datetime.fromisoformat, times)))


def test_a_failed_run_is_shown_with_exit_code_0(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = sleeping(tmp_path / "bad", hosts=["gpu-b"])
    file.write_text(file.read_text().replace('"600.0"', '"soon"').replace('"600"', '"soon"'))
    torchyard(desktop, "run", "-", "--set", f"program.workdir={file.parent}", code=1, stdin=file)
    shown = torchyard(desktop, "runs", "show", "last").stdout
    assert "failed" in shown
    assert "ValueError" in shown


def test_following_ends_quietly_with_ctrl_c_and_the_run_goes_on(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    run_id = detached(desktop, sleeping(tmp_path / "long", hosts=["gpu-a", "gpu-b"]))
    following = desktop.start("runs", "logs", run_id, "-f", "--tail", "1")
    assert following.stdout is not None
    first = {following.stdout.readline() for _ in range(2)}
    assert len(first) == 2

    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=60)

    assert (following.returncode, errors) == (0, "")
    wait_until(lambda: answer(desktop, "runs", "show", run_id)["state"] == "running")
    assert answer(desktop, "runs", "show", run_id)["alive"]
    stopped = answer(desktop, "runs", "stop", run_id, "--force")
    assert (stopped["run_id"], stopped["state"]) == (run_id, "stopped")
    assert "stopped by " in stopped["reason"]


@pytest.mark.usefixtures("bare_hosts")
def test_a_run_whose_primary_is_gone_is_shown_as_it_was_known_here(
    desktop: Desktop, make_desktop: MakeDesktop, lab3: Lab, tmp_path: Path
) -> None:
    run_id = detached(desktop, sleeping(tmp_path / "long", hosts=["gpu-a", "gpu-b"]))
    elsewhere = make_desktop(lab3)
    lab3["gpu-a"].stop_sshd()

    shown = answer(desktop, "runs", "show", run_id, code=3)

    assert (shown["run_id"], shown["fresh"], shown["state"]) == (run_id, False, "starting")
    assert set(shown) == SHOWN_KEYS
    result = torchyard(desktop, "runs", "list", code=3)
    assert "gpu-a" in result.stderr
    assert "gpu-c" in result.stderr  # gpu-c no longer has an agent.
    assert run_id in result.stdout
    assert "refused" in torchyard(desktop, "runs", "logs", run_id, code=3).stderr
    assert "refused" in torchyard(desktop, "runs", "stop", run_id, code=3).stderr
    # Some hosts do not answer, so the command cannot say that the run does not exist.
    assert "not all do" in torchyard(elsewhere, "runs", "show", "nothing", code=3).stderr
    lab3["gpu-a"].start_sshd()
    torchyard(elsewhere, "runs", "stop", run_id[-4:])


@pytest.mark.usefixtures("bare_hosts")
def test_unknown_runs_and_names_that_fit_several(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    error = answer(desktop, "runs", "show", "nothing", code=2)["error"]
    assert error["code"] == "no_run"
    assert "torchyard runs list" in error["hint"]
    assert "last" in torchyard(desktop, "runs", "show", "last", code=2).stderr
    assert not (lab3["gpu-a"].home / ".torchyard").exists()  # A query must not install an agent.
    assert torchyard(desktop, "runs", "list").stdout == "No runs are known.\n"
    for number in range(2):
        detached(desktop, sleeping(tmp_path / f"talk-{number}", seconds=0, hosts=["gpu-a"]))
    assert answer(desktop, "runs", "stop", "20", code=2)["error"]["code"] == "ambiguous"
    assert answer(desktop, "runs", "stop", "", code=2)["error"]["code"] == "no_run"


def test_output_that_is_not_read_to_the_end_is_no_error(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    run_id = detached(desktop, sleeping(tmp_path / "much", seconds=0, hosts=["gpu-a"], lines=20_000))
    torchyard(desktop, "runs", "logs", run_id, "-f")
    reading = desktop.start("runs", "logs", run_id)
    assert reading.stdout is not None
    assert reading.stdout.readline() == "worker-0 line 0\n"
    reading.stdout.close()
    assert reading.wait(60) in (0, 1)
    assert reading.stderr is not None
    assert reading.stderr.read() == ""
    tail = torchyard(desktop, "runs", "logs", run_id, "--tail", "9000").stdout.splitlines()
    assert tail == log_lines("worker-0", 20_000)[-9000:]
