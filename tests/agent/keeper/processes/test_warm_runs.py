"""Tests of runs whose ranks get interpreters that were started early, and of spares that wait for a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica
from tests.waiting import eventually
from torchyard_agent.keeper.processes import process_control
from torchyard_agent.keeper.processes.rank_process import ARCHIVE
from torchyard_agent.protocol.paths import gpu_socket

IMPORTED = "colorsys"
"""A module that interpreters import early in place of torch. Nothing else in these tests imports it."""
TELLS = f"""
import os, sys
print(os.environ["TORCHYARD_GENERATION"], {IMPORTED!r} in sys.modules, os.getpid(), os.environ["TOKEN"], flush=True)
"""
FAILS_ONCE = (
    TELLS
    + """
import time
while not os.path.exists("fail"):
    time.sleep(0.01)
sys.exit(os.environ["TORCHYARD_GENERATION"] == "0")
"""
)
SPARES = {"spares_after_s": 0.2}


def python(name: str, *arguments: str) -> list[str]:
    return [sys.executable, name, *arguments]


def wanted(name: str) -> dict[str, Any]:
    """Returns the parameters of the `warm` call for gpu-a and its replica worker-0."""
    env = {"TORCHYARD_RUN_DIR": "<folder>/outputs", "TORCHYARD_REPLICA": "worker-0"}
    rank = {"rank": 0, "local_rank": 0, "argv": python("script.py", "--out=<folder>"), "env": env}
    replicas = [{"name": "worker-0", "ranks": [rank]}]
    return {"replicas": replicas, "run_dir": "<folder>", "imports": [IMPORTED]}


async def waiting(host: Host) -> int:
    """Waits until a host has an interpreter with the rank's command line; returns its PID."""

    def found() -> list[int]:
        return [pid for pid in process_control.descendants(host.process.pid) if b"script.py" in command(pid)]

    (pid,) = await eventually(found)
    return int(pid)


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def write(host: Host, source: str) -> None:
    (host.run_dir / "work" / "script.py").write_text(source)


def words(host: Host, replica: str = "worker-0") -> list[list[str]]:
    return [line.split() for line in host.output(replica).splitlines()]


def test_a_run_begins_in_the_interpreter_that_was_started_before_it_was_prepared(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", warm=wanted)
        pid = await waiting(a)
        await a.prepare()
        write(a, TELLS + "print(sys.argv)")
        argv = python("script.py", f"--out={a.run_dir}")
        env = {"TORCHYARD_RUN_DIR": f"{a.run_dir}/outputs", "TORCHYARD_REPLICA": "worker-0"}
        await cluster.begin(replica("worker-0", "gpu-a", argv, env=env))
        assert (await cluster.end())["state"] == "succeeded"
        assert words(a)[0] == ["0", "True", str(pid), "hush"]
        assert a.output("worker-0").endswith(f"['script.py', '--out={a.run_dir}']\n")

    run_scenario(scenario)


def test_a_changed_command_line_is_the_one_that_runs(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", warm=wanted)
        pid = await waiting(a)
        await a.prepare()
        write(a, TELLS)
        await cluster.begin(replica("worker-0", "gpu-a", python("script.py", "--other")))
        assert (await cluster.end())["state"] == "succeeded"
        assert words(a) == [["0", "False", str(pid), "hush"]]

    run_scenario(scenario)


@pytest.mark.parametrize("how", ["abort", "stop", "no start comes", "keeper killed", "daemon gone", "refused"])
def test_an_aborted_launch_leaves_no_interpreter(run_scenario: RunScenario, how: str) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add(
            "gpu-a", warm=wanted, timeouts={"launch_lease_s": 3.0} if how == "no start comes" else {}
        )
        await waiting(a)
        if how == "abort":
            await a.call("abort")
        elif how == "stop":
            await a.call("stop")
        elif how == "keeper killed":
            a.process.kill()
        elif how == "daemon gone":
            assert a.connection is not None
            a.connection.close()
        elif how == "refused":
            with contextlib.closing(_bound(f"GPU-{cluster.mark}")), pytest.raises(Exception, match="is held by"):
                await a.prepare(gpus=[f"GPU-{cluster.mark}"])
        await a.exit_code()
        await eventually(lambda: cluster.left() == [])
        assert how == "keeper killed" or not a.run_dir.exists()

    run_scenario(scenario)


def _bound(gpu: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(gpu_socket(gpu))
    listener.listen()
    return listener


async def fail(host: Host) -> None:
    (host.run_dir / "work" / "fail").touch()


async def spares_wait(host: Host, times: int = 1) -> None:
    await eventually(lambda: host.log().count("each rank has a spare interpreter") == times)


def spare_of(host: Host) -> int:
    live = {int(line[2]) for line in words(host)}
    found = [pid for pid in process_control.descendants(host.process.pid) if b"script.py" in command(pid)]
    (pid,) = [pid for pid in found if pid not in live]
    return pid


async def begin(cluster: KeeperCluster, source: str, **options: Any) -> Host:
    (a,) = await cluster.add("gpu-a", timeouts=SPARES)
    write(a, source)
    await cluster.begin(replica("worker-0", "gpu-a", python("script.py")), spare_imports=[IMPORTED], **options)
    await eventually(lambda: words(a))
    return a


def test_a_restart_takes_over_the_spare_that_waits(run_scenario: RunScenario) -> None:
    """The orphans of the first generation are killed, but the spare is not."""

    async def scenario(cluster: KeeperCluster) -> None:
        a = await begin(cluster, FAILS_ONCE, max_restarts=1)
        await spares_wait(a)
        spare = spare_of(a)
        await fail(a)
        assert (await cluster.end())["state"] == "succeeded"
        assert [line[:3] for line in words(a)][1:] == [["1", "True", str(spare)]]
        assert words(a)[0][1] == "False"

    run_scenario(scenario)


def test_a_spare_that_was_killed_leaves_the_restart_to_a_new_interpreter(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a = await begin(cluster, FAILS_ONCE, max_restarts=1)
        await spares_wait(a)
        os.kill(spare_of(a), signal.SIGKILL)
        await eventually(lambda: "the interpreter that was started early has ended" in a.log())
        await fail(a)
        assert (await cluster.end())["state"] == "succeeded"
        assert [line[:2] for line in words(a)] == [["0", "False"], ["1", "False"]]

    run_scenario(scenario)


def test_ranks_that_will_not_start_again_have_no_spare(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a = await begin(cluster, TELLS + "import time; time.sleep(600)", max_restarts=0)
        await spares_wait(a)
        assert len(process_control.descendants(a.process.pid)) == 1
        await a.call("stop", force=True)
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_spares_end_with_their_run(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a = await begin(cluster, TELLS + "import time; time.sleep(600)", max_restarts=1)
        await spares_wait(a)
        assert spare_of(a)
        await a.call("stop", force=True)
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


def test_spares_die_with_their_keeper(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a = await begin(cluster, TELLS + "import time; time.sleep(600)", max_restarts=1)
        await spares_wait(a)
        spare = spare_of(a)
        a.process.kill()
        await a.exit_code()
        await eventually(lambda: cluster.left() == [])
        assert not command(spare)

    run_scenario(scenario)


def test_each_rank_of_several_replicas_has_its_own_spare(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts=SPARES)
        for host in (a, b):
            write(host, FAILS_ONCE)
        pairs = [("worker-0", "gpu-a"), ("worker-1", "gpu-a"), ("worker-2", "gpu-b")]
        await cluster.begin(
            *(replica(name, host, python("script.py")) for name, host in pairs),
            spare_imports=[IMPORTED],
            max_restarts=1,
        )
        for host in (a, b):
            await spares_wait(host)
        await fail(a)
        await eventually(lambda: all(len(words(cluster.hosts[host], name)) == 2 for name, host in pairs))
        assert [words(cluster.hosts[host], name)[1][:2] for name, host in pairs] == [["1", "True"]] * 3
        await fail(b)
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


def test_the_folder_that_interpreters_import_from_is_in_the_archive() -> None:
    assert (Path(ARCHIVE) / "torchyard_agent" / "warm_start" / "sitecustomize.py").is_file()
