"""Tests that a run counts as stopped only once all its processes have exited."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.agent.keeper.conftest import RunScenario
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
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved", "in a stop" if os.path.exists(os.environ["TORCHYARD_STOP"]) else "after a failure", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(1000)
"""


def test_stop_gives_ranks_time_to_save(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(
            replica("chief-0", "gpu-a", python(SAVING)), replica("worker-0", "gpu-b", shell("sleep 1000; true"))
        )
        await eventually(lambda: "running" in a.states() and "ready" in a.output("chief-0"))
        await b.call("stop", reason="lee pressed Stop")
        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "lee pressed Stop")
        assert [(one["state"], one["exit_code"]) for one in ended["replicas"]] == [("stopped", 0), ("stopped", -15)]
        assert a.output("chief-0") == "ready\nsaved in a stop\n"
        assert a.states() == ["waiting", "starting", "running", "stopping", "stopped"]

    run_scenario(scenario)


def test_the_end_after_a_failure_is_no_stop(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        fails = shell("while [ ! -e go ]; do sleep 0.05; done; exit 1")
        await cluster.begin(replica("chief-0", "gpu-a", fails), replica("worker-0", "gpu-a", python(SAVING)))
        await eventually(lambda: "ready" in a.output("worker-0"))
        (a.run_dir / "work" / "go").touch()
        assert (await cluster.end())["state"] == "failed"
        assert a.output("worker-0") == "ready\nsaved after a failure\n"

    run_scenario(scenario)


def test_children_of_a_shell_have_the_grace(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        (a.run_dir / "work" / "save.py").write_text(SAVING)
        wrapped = shell(f"{python('')[0]} save.py; true")
        await cluster.begin(replica("chief-0", "gpu-a", wrapped))
        await eventually(lambda: "running" in a.states() and "ready" in a.output("chief-0"))
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"
        assert a.output("chief-0") == "ready\nsaved in a stop\n"

    run_scenario(scenario)


def test_a_daemon_that_ignores_sigterm_is_killed(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", python(STUBBORN)), stop_grace_s=0.3)
        await eventually(lambda: (a.run_dir / "work" / "orphan").exists())
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_a_daemon_of_a_successful_run_is_killed(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("setsid sh -c 'trap \"\" TERM; sleep 1000' & exit 0")))
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


def test_a_second_stop_with_force_ends_the_grace(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(
            replica("chief-0", "gpu-a", python(STUBBORN)),
            replica("worker-0", "gpu-b", python(STUBBORN)),
            stop_grace_s=600,
        )
        await eventually(lambda: all((host.run_dir / "work" / "orphan").exists() for host in (a, b)))
        await a.call("stop", reason="enough")
        await eventually(lambda: "stopping" in b.states())
        began = time.monotonic()
        await b.call("stop", reason="now", force=True)
        ended = await cluster.end()
        assert time.monotonic() - began < 30, "and not the grace of ten minutes"
        assert (ended["state"], ended["reason"]) == ("stopped", "enough")

    run_scenario(scenario)


def test_a_stopped_process_is_ended_as_well(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("kill -STOP $$")))
        await eventually(lambda: "running" in a.states())
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs root, and cgroup v1's freezer")
def test_a_process_that_cannot_be_killed_is_named_and_waited_for(run_scenario: RunScenario) -> None:
    frozen = FREEZER / f"torchyard-test-{os.getpid()}"

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", timeouts={"stuck_after_s": 0.5})
        await cluster.begin(replica("worker-0", "gpu-a", shell("exec sleep 1000")))
        await eventually(lambda: "running" in a.states())
        [pid] = (await a.call("metrics"))["pids"]["worker-0"]
        # The kernel keeps the process in state D, as it keeps a process that waits for a failed disk or NFS server.
        (frozen / "cgroup.procs").write_text(str(pid))
        (frozen / "freezer.state").write_text("FROZEN")
        await a.call("stop", reason="enough", force=True)

        await eventually(lambda: "which the kernel has not ended yet" in a.journal()[-1].get("reason", ""))
        assert f"waiting on gpu-a for PID {pid} (" in a.journal()[-1]["reason"]
        assert a.states()[-1] == "stopping"

        (frozen / "freezer.state").write_text("THAWED")
        assert (await cluster.end())["state"] == "stopped"

    frozen.mkdir()
    try:
        run_scenario(scenario)
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (frozen / "cgroup.procs").read_text())
        frozen.rmdir()


def test_stop_before_the_run_has_begun_ends_it_as_stopped(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await a.call("stop", reason="changed my mind")
        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "changed my mind")

    run_scenario(scenario)


def test_stop_while_members_are_awaited_does_not_wait_for_them(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts={"join_within_s": 20})
        b.process.kill()
        await cluster.begin(replica("worker-0", "gpu-a", FOREVER), replica("worker-1", "gpu-b", FOREVER), joining=False)
        await a.call("stop", reason="enough")
        assert await a.exit_code(15) == 0
        assert a.ended()["state"] == "stopped"

    run_scenario(scenario)


def test_sigterm_to_a_keeper_stops_the_run(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER))
        await eventually(lambda: "running" in b.states())
        b.process.terminate()
        ended = await cluster.end()
        assert ended["state"] == "stopped"
        assert "gpu-b" in ended["reason"]
        assert a.states()[-1] == "stopped"

    run_scenario(scenario)


def test_a_member_that_joins_after_the_stop_exits(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER), joining=False)
        await a.call("stop", reason="changed my mind", force=True)
        await eventually(a.ended)

        await b.call("join", primary=a.member)

        assert await b.exit_code() == 0
        assert (b.ended()["state"], b.ended()["reason"]) == ("stopped", "changed my mind")
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_a_host_is_swept_only_once_its_gpus_are_released(run_scenario: RunScenario, tmp_path: Path) -> None:
    library, values = build_fake_nvml(tmp_path / "nvml"), tmp_path / "values"
    write_gpus(values, [FakeGpu("GPU-1")])
    environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_FILE": str(values)}

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", environment=environment)
        await cluster.begin(replica("worker-0", "gpu-a", shell("exec sleep 1000"), gpus=["GPU-1"]))
        await eventually(lambda: "running" in a.states())
        [pid] = (await a.call("metrics"))["pids"]["worker-0"]
        stranger = os.getpid()
        write_gpus(values, [FakeGpu("GPU-1", compute=[(pid, 600), (stranger, 100)])])
        await a.call("stop", reason="enough", force=True)
        await eventually(lambda: not cluster.left())
        with pytest.raises(AssertionError, match="not within"):
            await eventually(a.ended, within_s=1.0)
        write_gpus(values, [FakeGpu("GPU-1", compute=[(stranger, 100)])])
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)
