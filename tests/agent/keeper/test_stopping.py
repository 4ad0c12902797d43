"""Stopping: whatever a run has started is gone before it is called stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.agent.keeper.conftest import Play
from tests.agent.keeper.keeper_cluster import KeeperCluster, python, replica, shell
from tests.waiting import eventually, wait_until

FOREVER = shell("exec sleep 1000")
FREEZER = Path("/sys/fs/cgroup/freezer")
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open("orphan", "w").write(str(os.getpid()))
time.sleep(1000)
"""
SAVING = """
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(1000)
"""


def test_stop_gives_ranks_time_to_save(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b")
        await yard.begin(
            replica("chief-0", "gpu-a", python(SAVING)), replica("worker-0", "gpu-b", shell("sleep 1000; true"))
        )
        await eventually(lambda: "running" in a.states() and "ready" in a.output("chief-0"))
        await b.call("stop", reason="lee pressed Stop")
        ended = await yard.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "lee pressed Stop")
        assert [(one["state"], one["exit_code"]) for one in ended["replicas"]] == [("stopped", 0), ("stopped", -15)]
        assert a.output("chief-0") == "ready\nsaved\n"
        assert a.states() == ["waiting", "starting", "running", "stopping", "stopped"]

    play(story)


def test_what_a_shell_started_has_the_grace_too(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        (a.run_dir / "work" / "save.py").write_text(SAVING)
        wrapped = shell(f"{python('')[0]} save.py; true")
        await yard.begin(replica("chief-0", "gpu-a", wrapped))
        await eventually(lambda: "running" in a.states() and "ready" in a.output("chief-0"))
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"
        assert a.output("chief-0") == "ready\nsaved\n"

    play(story)


def test_nothing_survives_not_even_a_daemon_that_ignores_sigterm(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        await yard.begin(replica("worker-0", "gpu-a", python(STUBBORN)), stop_grace_s=0.3)
        await eventually(lambda: (a.run_dir / "work" / "orphan").exists())
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"

    play(story)


def test_a_daemon_left_by_a_run_that_succeeded_is_gone_too(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        await yard.add("gpu-a")
        await yard.begin(replica("worker-0", "gpu-a", shell("setsid sh -c 'trap \"\" TERM; sleep 1000' & exit 0")))
        assert (await yard.end())["state"] == "succeeded"

    play(story)


def test_a_second_stop_with_force_waits_no_longer(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b")
        await yard.begin(
            replica("chief-0", "gpu-a", python(STUBBORN)),
            replica("worker-0", "gpu-b", python(STUBBORN)),
            stop_grace_s=600,
        )
        await eventually(lambda: all((host.run_dir / "work" / "orphan").exists() for host in (a, b)))
        await a.call("stop", reason="enough")
        await eventually(lambda: "stopping" in b.states())
        began = time.monotonic()
        await b.call("stop", reason="now", force=True)
        ended = await yard.end()
        assert time.monotonic() - began < 30, "and not the grace of ten minutes"
        assert (ended["state"], ended["reason"]) == ("stopped", "enough")

    play(story)


def test_a_stopped_process_is_ended_as_well(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        await yard.begin(replica("worker-0", "gpu-a", shell("kill -STOP $$")))
        await eventually(lambda: "running" in a.states())
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"

    play(story)


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs root, and cgroup v1's freezer")
def test_a_process_that_cannot_be_killed_is_named_and_waited_for(play: Play) -> None:
    frozen = FREEZER / f"torchyard-test-{os.getpid()}"

    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", patience={"stuck_after_s": 0.5})
        await yard.begin(replica("worker-0", "gpu-a", shell("exec sleep 1000")))
        await eventually(lambda: "running" in a.states())
        [pid] = (await a.call("metrics"))["pids"]["worker-0"]
        # The kernel keeps it in state D, as it keeps one that waits for a dead disk or NFS server.
        (frozen / "cgroup.procs").write_text(str(pid))
        (frozen / "freezer.state").write_text("FROZEN")
        await a.call("stop", reason="enough", force=True)

        await eventually(lambda: "which the kernel has not ended yet" in a.journal()[-1].get("reason", ""))
        assert f"waiting on gpu-a for PID {pid} (" in a.journal()[-1]["reason"]
        assert a.states()[-1] == "stopping"

        (frozen / "freezer.state").write_text("THAWED")
        assert (await yard.end())["state"] == "stopped"

    frozen.mkdir()
    try:
        play(story)
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (frozen / "cgroup.procs").read_text())
        frozen.rmdir()


def test_stop_before_the_run_has_begun_ends_it_as_stopped(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        await a.call("stop", reason="changed my mind")
        ended = await yard.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "changed my mind")

    play(story)


def test_stop_while_members_are_awaited_does_not_wait_for_them(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b", patience={"join_within_s": 20})
        b.process.kill()
        await yard.begin(replica("worker-0", "gpu-a", FOREVER), replica("worker-1", "gpu-b", FOREVER), joining=False)
        await a.call("stop", reason="enough")
        assert await a.gone(15) == 0
        assert a.ended()["state"] == "stopped"

    play(story)


def test_sigterm_to_a_keeper_ends_the_run_in_good_order(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b")
        await yard.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER))
        await eventually(lambda: "running" in b.states())
        b.process.terminate()
        ended = await yard.end()
        assert ended["state"] == "stopped"
        assert "gpu-b" in ended["reason"]
        assert a.states()[-1] == "stopped"

    play(story)


def test_a_member_that_comes_after_the_run_was_stopped_leaves_at_once(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b")
        await yard.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER), joining=False)
        await a.call("stop", reason="changed my mind", force=True)
        await eventually(a.ended)

        await b.call("join", primary=a.member)

        assert await b.gone() == 0
        assert (b.ended()["state"], b.ended()["reason"]) == ("stopped", "changed my mind")
        assert (await yard.end())["state"] == "stopped"

    play(story)


def test_a_host_counts_as_stopped_only_once_its_gpus_have_let_go(play: Play, tmp_path: Path) -> None:
    library, values = build_fake_nvml(tmp_path / "nvml"), tmp_path / "values"
    write_gpus(values, [FakeGpu("GPU-1")])
    environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_FILE": str(values)}

    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", environment=environment)
        await yard.begin(replica("worker-0", "gpu-a", shell("exec sleep 1000"), gpus=["GPU-1"]))
        await eventually(lambda: "running" in a.states())
        [pid] = (await a.call("metrics"))["pids"]["worker-0"]
        stranger = os.getpid()
        write_gpus(values, [FakeGpu("GPU-1", compute=[(pid, 600), (stranger, 100)])])
        await a.call("stop", reason="enough", force=True)
        await eventually(lambda: not yard.left())
        with pytest.raises(AssertionError, match="not within"):
            await eventually(a.ended, within_s=1.0)
        write_gpus(values, [FakeGpu("GPU-1", compute=[(stranger, 100)])])
        assert (await yard.end())["state"] == "stopped"

    play(story)
