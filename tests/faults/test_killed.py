"""Tests of killing every kind of process of a run with SIGKILL."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.faults.generation_watch import GenerationWatch
from tests.faults.runs import (
    BUSY_S,
    COUNTING,
    FOREVER,
    QUICK,
    Team,
    daemon_of,
    environment_of,
    keeper_of,
    kill,
    outside_pids,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

COUNTING_UNTIL_FILE = """
    import os, pathlib, sys, time
    number = 0
    while not pathlib.Path(os.path.expanduser("~/enough")).exists():
        print(os.environ["TORCHYARD_REPLICA"], number, flush=True)
        number += 1
        time.sleep(0.02)
    print("the last line", flush=True)
    if os.environ["TORCHYARD_REPLICA"] == "worker-1":
        sys.exit(7)
    time.sleep(600)
"""
WITH_A_STRAY = """
    import os, subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    time.sleep(600)
"""
IGNORES_SIGTERM = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    time.sleep(600)
"""
LOADING = """
    import os, time
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 1_000_000
        def __getitem__(self, index):
            time.sleep(0.05)
            return index

    for batch in DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers=True):
        print("batch", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""
RENAMED = """
    import os, signal, time
    from setproctitle import setproctitle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        os.fork()
    setproctitle("innocent")
    print("up", flush=True)
    time.sleep(600)
"""
SOON = "max_restarts: 1\nhost_wait_s: 1\nfailure_grace_s: 0.5\nstop_grace_s: 1"
TWO_ARE_ENOUGH = "[{name: workers, role: worker, replicas: 3, min_replicas: 2, placement: spread}]"


def test_a_killed_daemon_loses_neither_exit_status_nor_log_of_a_run(team: Team) -> None:
    run = team.launch(team.topology(COUNTING_UNTIL_FILE, "max_restarts: 0\nfailure_grace_s: 0.5"))
    run.wait_for_output(" 5\n")

    for host in team.lab.hosts:
        os.kill(daemon_of(host), signal.SIGKILL)
    # These ranks print and exit while no daemon is running. The failing rank exits last, because its failure ends the
    # other ranks.
    for name in ("worker-0", "worker-2", "worker-1"):
        (team.lab[run.places[name]].home / "enough").touch()
        wait_until(lambda name=name: "the last line" in run.log(name))
    ended = run.ended()

    assert "worker-1 on gpu-b" in ended["reason"]
    assert {one["name"]: one["exit_code"] for one in ended["replicas"]}["worker-1"] == 7
    shown = team.call(run.primary, "run.show", run_id=run.run_id)
    assert (shown["state"], shown["reason"]) == ("failed", ended["reason"])
    for name, host in run.places.items():
        piece = team.call(host, "logs.read", run_id=run.run_id, replica=name, offset=0)
        lines = base64.b64decode(piece["data"]).decode().splitlines()
        assert piece["ended"]
        assert lines == [f"{name} {number}" for number in range(len(lines) - 1)] + ["the last line"]


def test_a_killed_keeper_of_a_member_ends_its_ranks_and_the_gang_restarts(team: Team) -> None:
    team.impatient(**QUICK)
    run = team.launch(team.topology(WITH_A_STRAY, SOON, TWO_ARE_ENOUGH))
    run.wait_for_output("up 0")

    os.kill(keeper_of(team.lab["gpu-b"]), signal.SIGKILL)

    # The daemon must kill this orphan, although it has its own session and its parent has exited.
    wait_until(lambda: not outside_pids(team.lab["gpu-b"], "time.sleep(600)"))
    wait_until(lambda: "up 1" in run.log("worker-0") and "up 1" in run.log("worker-2"))
    assert run.of("gang_restart")[0]["cause"].startswith("gpu-b was lost: its keeper was not heard")
    assert run.stop()["state"] == "stopped"


def test_a_killed_keeper_of_the_primary_ends_the_run_on_all_hosts(team: Team) -> None:
    team.impatient(**QUICK)
    run = team.launch(team.topology(COUNTING, SOON))
    run.wait_for_output(" 1\n")

    os.kill(keeper_of(team.lab[run.primary]), signal.SIGKILL)

    team.nothing_is_left()
    for name in ("gpu-b", "gpu-c"):
        assert run.ended(host=name)["state"] == "failed"
    assert not team.call(run.primary, "run.show", run_id=run.run_id)["alive"]


def test_a_killed_rank_restarts_its_gang_and_the_last_failure_ends_the_run(team: Team) -> None:
    run = team.launch(team.topology(WITH_A_STRAY, SOON))
    run.wait_for_output("up 0")
    with GenerationWatch(team.lab, run.run_id) as watch:
        kill(team.lab["gpu-c"], "script.py")
        run.wait_for_output("up 1")
        run.wait_for("running")
        assert re.fullmatch(r"worker-2 on gpu-c: .*SIGKILL.*", run.of("gang_restart")[0]["cause"])
        kill(team.lab["gpu-a"], "script.py")
        ended = run.ended()

    assert watch.overlaps == []
    assert ended["state"] == "failed"
    assert re.fullmatch(r"worker-0 on gpu-a: .*SIGKILL.*", ended["reason"])
    assert {one["name"]: one["restarts"] for one in ended["replicas"]} == dict.fromkeys(run.places, 1)


def test_a_rank_that_ignores_sigterm_has_ended_five_seconds_after_a_failure(team: Team) -> None:
    run = team.launch(team.topology(IGNORES_SIGTERM, "max_restarts: 1"))  # This run uses the default grace periods.
    run.wait_for_output("up 0")
    others = [pid for name in ("gpu-b", "gpu-c") for pid in outside_pids(team.lab[name], "script.py")]

    kill(team.lab["gpu-a"], "script.py")
    died = time.monotonic()

    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others))
    assert time.monotonic() - died < 5 + BUSY_S
    run.wait_for_output("up 1")
    assert run.stop()["state"] == "stopped"


@pytest.mark.train
def test_the_workers_of_a_data_loader_do_not_outlive_their_killed_parent(team: Team) -> None:
    """Slow, because two generations import torch."""
    run = team.launch(team.topology(LOADING, SOON, replicas=1))
    host = team.lab[run.places["worker-0"]]
    wait_until(lambda: "batch 0" in run.log("worker-0"), within_s=60)
    processes = outside_pids(host, "script.py")
    assert len(processes) == 3, "a rank and two workers"
    (rank,) = [pid for pid in processes if _parent(pid) not in processes]

    with GenerationWatch(team.lab, run.run_id) as watch:
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: "batch 1" in run.log("worker-0"), within_s=60)

    assert watch.overlaps == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    assert run.stop()["state"] == "stopped"


def test_a_script_that_takes_another_name_is_stopped_completely(team: Team) -> None:
    run = team.launch(team.topology(RENAMED, "stop_grace_s: 0.5"))
    wait_until(lambda: all(len(outside_pids(host, "innocent")) == 3 for host in team.lab.hosts))
    for host in team.lab.hosts:
        for pid in outside_pids(host, "innocent"):
            assert "TORCHYARD_RUN_ID" not in environment_of(pid), "the mark is what this test takes away"

    assert run.stop(force=False)["state"] == "stopped"

    assert not any(outside_pids(host, "innocent") for host in team.lab.hosts)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_run_whose_keeper_is_suspended_is_shown_with_the_time_of_its_last_answer(team: Team) -> None:
    """A suspended keeper does not answer, so its last known state must not be shown as the current state of the run."""
    run = team.launch(team.topology(FOREVER, replicas=1))
    run.wait_for("running")
    keeper = keeper_of(team.lab[run.primary])
    os.kill(keeper, signal.SIGSTOP)
    try:
        (line,) = json.loads(team.desktop.torchyard("runs", "list", "--json").stdout)
        assert (line["state"], line["fresh"]) == ("running", False)
        assert "running (as of " in team.desktop.torchyard("runs", "list").stdout
        assert "running (as of " in team.desktop.torchyard("runs", "show", "last").stdout
    finally:
        os.kill(keeper, signal.SIGCONT)
    run.stop()
