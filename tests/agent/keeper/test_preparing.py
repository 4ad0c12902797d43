"""Tests of preparing a host, and of launches that the desktop abandons."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import SECRET, Host, KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent import snapshot_store
from torchyard_agent.keeper.keeper import Keeper
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.paths import gpu_socket
from torchyard_agent.protocol.snapshot_manifest import root_of
from torchyard_core.launch import lease_renewal


def is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def test_a_prepared_host_holds_the_reported_resources(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        prepared = a.prepared
        assert prepared["pid"] == a.process.pid
        assert prepared["run_dir"] == str(a.run_dir)
        assert (prepared["address"], prepared["interface"]) == ("127.0.0.1", "lo")
        assert len(prepared["ports"]) == 1
        for port in (*prepared["ports"], prepared["gang_port"]):
            assert not is_free("127.0.0.1", port)
        assert sorted(path.name for path in a.run_dir.iterdir() if path.is_dir()) == [
            "errors",
            "logs",
            "outputs",
            "work",
        ]
        assert (await a.call("status"))["state"] == "waiting"

    run_scenario(scenario)


@pytest.mark.parametrize("how", ["abort", "no start"])
def test_an_aborted_launch_leaves_nothing(run_scenario: RunScenario, how: str) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        gpu = f"GPU-{cluster.mark}"
        waits = {} if how == "abort" else {"launch_lease_s": 1.0}
        (a,) = await cluster.add("gpu-a", timeouts=waits, gpus=[gpu])
        prepared = a.prepared
        if how == "abort":
            await a.call("abort")
            assert not a.run_dir.exists()
        assert await a.exit_code() == 0
        assert not a.run_dir.exists()
        for port in (*prepared["ports"], prepared["gang_port"]):
            assert is_free("127.0.0.1", port)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(gpu_socket(gpu))

    run_scenario(scenario)


def test_a_renewal_that_comes_late_or_is_lost_does_not_end_a_lease() -> None:
    assert Timeouts().launch_lease_s >= 4 * lease_renewal.RENEW_EVERY_S


LEASE_S = 3.0


def test_a_renewed_launch_outlives_its_lease_and_ends_with_it(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", timeouts={"launch_lease_s": LEASE_S})
        until = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until:
            await a.call("renew")
            await asyncio.sleep(LEASE_S / 30)
        assert await a.exit_code() == 0
        assert not a.run_dir.exists()
        assert "no start, join or renewal of the launch within 3 s" in a.log()
        assert "Traceback" not in a.log()

    run_scenario(scenario)


def test_a_run_that_has_begun_has_no_lease(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, _ = await cluster.add("gpu-a", "gpu-b", timeouts={"launch_lease_s": 1.0})
        await cluster.begin(*(replica(f"worker-{n}", f"gpu-{host}", shell("sleep 3")) for n, host in enumerate("ab")))
        await a.call("renew")  # After the run has started, a renewal has no effect.
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


def test_a_suspended_keeper_handles_waiting_calls_before_its_lease(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", timeouts={"launch_lease_s": LEASE_S})
        a.process.send_signal(signal.SIGSTOP)
        renewing = asyncio.get_running_loop().create_task(a.call("renew"))
        # The keeper stays suspended until its lease has expired.
        await asyncio.sleep(2 * LEASE_S)
        a.process.send_signal(signal.SIGCONT)
        await renewing
        await a.call("abort")

    run_scenario(scenario)


@pytest.mark.parametrize("method", ["warm", "prepare", "renew", "start", "join"])
def test_calls_after_the_end_of_the_lease_are_refused(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls may still arrive while the keeper exits."""

    async def scenario() -> None:
        keeper = Keeper(str(tmp_path), "gpu-a", "run", Timeouts(launch_lease_s=0.1))
        await asyncio.wait_for(keeper._run(), 60)
        with pytest.raises(
            RpcError, match="gpu-a gave up the launch of run run: its desktop had not renewed it"
        ) as refusal:
            await getattr(keeper, method)(None, {})
        assert refusal.value.code == "lease_lapsed"
        keeper._release()

    asyncio.run(scenario())
    assert caplog.messages == ["no start, join or renewal of the launch within 0 s: exiting"]
    caplog.clear()


def test_a_lease_that_ends_while_the_host_is_prepared_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        may_end, ground = asyncio.Event(), MagicMock()

        async def slow(*_: object) -> MagicMock:
            await may_end.wait()
            return ground

        monkeypatch.setattr("torchyard_agent.keeper.keeper.acquire", slow)
        keeper = Keeper(str(tmp_path), "gpu-a", "run", Timeouts(launch_lease_s=0.5))
        loop = asyncio.get_running_loop()
        living = loop.create_task(keeper._run())
        preparing = loop.create_task(keeper.prepare(MagicMock(), {"host": "gpu-a", "secret": SECRET}))
        # Renewals and the lease's timer share one event loop, so a busy machine cannot delay only the renewals.
        for _ in range(50):
            await keeper.renew(MagicMock(), {})
            await asyncio.sleep(0.02)
        assert not keeper._has_expired
        while not keeper._has_expired:
            await asyncio.sleep(0.01)
        assert not living.done()  # The keeper must release the resources that it is acquiring before it exits.
        may_end.set()
        with pytest.raises(RpcError, match="its desktop had not renewed it"):
            await preparing
        await asyncio.wait_for(living, 60)
        keeper._release()
        ground.release.assert_called_once_with()

    asyncio.run(scenario())
    assert caplog.messages == ["no start, join or renewal of the launch within 0 s: exiting"]
    caplog.clear()


def test_a_held_gpu_names_its_holder_and_nothing_is_left(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        gpu = f"GPU-{cluster.mark}"
        (a,) = await cluster.add("gpu-a", gpus=[gpu])
        rival = Host("gpu-b", cluster.folder / "gpu-b", "rival", *cluster.process)
        cluster.hosts["gpu-b"] = rival
        await rival.connect()
        with pytest.raises(RpcError, match=f"GPU {gpu} is held by .* for run test \\({cluster.run_id}\\)") as refusal:
            await rival.prepare(gpus=[gpu], data_address="127.0.0.2")
        assert refusal.value.code == "gpu_held"
        assert await rival.exit_code() == 0
        assert not rival.run_dir.exists()
        await a.call("abort")

    run_scenario(scenario)


def test_gpus_and_ports_are_free_once_the_run_has_ended(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        gpu = f"GPU-{cluster.mark}"
        (a,) = await cluster.add("gpu-a", gpus=[gpu])
        await cluster.begin(replica("worker-0", "gpu-a", shell("true")))
        await cluster.end()
        assert is_free("127.0.0.1", a.prepared["gang_port"])
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(gpu_socket(gpu))

    run_scenario(scenario)


def test_a_run_has_its_own_copy_of_the_code(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        source = cluster.folder / "train.sh"
        source.write_text("#!/bin/sh\necho trained >> result; cat train.sh > copy; echo '# changed' >> train.sh\n")
        sha256 = snapshot_store.hash_file(str(source))
        manifest = [
            {"path": "bin/train.sh", "mode": 0o755, "size": source.stat().st_size, "sha256": sha256},
            {"path": "train.sh", "link": "bin/train.sh"},
        ]
        agent_dir = str(cluster.folder / "gpu-a")
        snapshot_store.Incoming(agent_dir, "test").put(sha256, source.read_bytes(), last=True)
        root = snapshot_store.seal(agent_dir, manifest)
        assert root == root_of(manifest)
        (a,) = await cluster.add("gpu-a", snapshot=root)
        await cluster.begin(replica("worker-0", "gpu-a", ["./train.sh"]))
        assert (await cluster.end())["state"] == "succeeded"
        work = a.run_dir / "work"
        assert (work / "result").read_text() == "trained\n"
        assert (work / "train.sh").is_symlink()
        assert os.access(work / "bin" / "train.sh", os.X_OK)
        assert snapshot_store.hash_file(snapshot_store.blob(agent_dir, sha256)) == sha256

    run_scenario(scenario)


def test_a_snapshot_that_is_not_there_is_refused_and_nothing_is_left(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        with pytest.raises(RpcError, match="the snapshot 000000000000 is not on this host"):
            await cluster.add("gpu-a", snapshot="0" * 64)
        a = cluster.hosts["gpu-a"]
        assert await a.exit_code() == 0
        assert not a.run_dir.exists()

    run_scenario(scenario)


def test_a_second_keeper_for_the_same_run_leaves_at_once(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        second = Host("gpu-a", cluster.folder / "gpu-a", cluster.run_id, *cluster.process)
        cluster.hosts["second"] = second
        assert await second.exit_code() == 1
        assert "has a keeper on this host already" in second.log()
        await a.call("abort")

    run_scenario(scenario)


def test_an_invalid_plan_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        with pytest.raises(RpcError, match="the plan does not fit"):
            await cluster.begin(replica("worker-0", "gpu-z", shell("true")))
        with pytest.raises(RpcError, match="is prepared here already"):
            await a.prepare()
        await cluster.begin(replica("worker-0", "gpu-a", shell("while [ ! -e go ]; do sleep 0.01; done")))
        with pytest.raises(RpcError, match="has begun"):
            await a.call("abort")
        await eventually(lambda: "running" in a.states())
        (a.run_dir / "work" / "go").touch()
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


@pytest.mark.parametrize("how", ["abort", "the daemon goes"])
def test_a_launch_that_ends_during_its_preparation_leaves_nothing(run_scenario: RunScenario, how: str) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        manifest = [{"path": f"folder/{number}", "link": "nowhere"} for number in range(20000)]
        root = snapshot_store.seal(str(cluster.folder / "gpu-a"), manifest)
        a = Host("gpu-a", cluster.folder / "gpu-a", cluster.run_id, *cluster.process)
        cluster.hosts["gpu-a"] = a
        await a.connect()
        preparing = asyncio.get_running_loop().create_task(a.prepare(snapshot=root))
        await eventually(lambda: (a.run_dir / "work" / "folder").exists())
        if how == "abort":
            await a.call("abort")
        elif a.connection is not None:
            a.connection.close()
        with pytest.raises(RpcError, match=r"aborted while it was prepared|the connection ended before"):
            await preparing
        assert await a.exit_code() == 0
        assert not a.run_dir.exists()
        assert "Traceback" not in a.log()

    run_scenario(scenario)


def test_abort_before_prepare_does_not_wait(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a = Host("gpu-a", cluster.folder / "gpu-a", cluster.run_id, *cluster.process)
        cluster.hosts["gpu-a"] = a
        await a.connect()
        await a.call("abort")
        assert await a.exit_code(5) == 0

    run_scenario(scenario)


def test_a_stop_right_after_start_is_carried_out(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        forever = replica("worker-0", "gpu-a", shell("exec sleep 1000"))
        await asyncio.gather(cluster.begin(forever), a.call("stop", reason="at once"))
        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "at once")

    run_scenario(scenario)
