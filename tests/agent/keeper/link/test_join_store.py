"""Tests of the join store that keepers provide to real ranks, on one host or several, and over several generations."""

from __future__ import annotations

import hmac

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import SECRET, KeeperCluster, python, replica, shell
from torchyard_agent.keeper.link.join_store import MAX_KEYS, JoinStore, Refused

KEY = hmac.new(bytes.fromhex(SECRET), b"exchange", "sha256").hexdigest()
SERVED = {"kind": "sandblaster"}
ENTER = """
import os, sys
from torchyard_roles.environment import read
from torchyard_roles.coordination.join_store_client import JoinStore
environment = read(os.environ)
store = JoinStore.of(environment)
"""


def test_ranks_of_one_host_use_the_store_of_their_keeper(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(
            replica("worker-0", "gpu-a", python(ENTER + "print(store.get('place', 20).decode(), environment.store)")),
            replica("ps-0", "gpu-a", python(ENTER + "store.set('place', b'here'); store.get('never', 60)")),
            options=SERVED,
        )
        assert (await cluster.end())["state"] == "succeeded"
        assert a.output("worker-0") == f"here 127.0.0.1:{a.prepared['gang_port']}\n"

    run_scenario(scenario)


def test_ranks_of_several_hosts_use_the_store_of_the_primary(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        meet = "me, other = sys.argv[1:]; store.set(me, me.encode()); print(store.get(other, 20).decode())"
        await cluster.begin(
            replica("chief-0", "gpu-a", [*python(ENTER + meet), "a", "b"]),
            replica("worker-0", "gpu-b", [*python(ENTER + meet), "b", "a"]),
            options=SERVED,
        )
        assert (await cluster.end())["state"] == "succeeded"
        assert (a.output("chief-0"), b.output("worker-0")) == ("b\n", "a\n")

    run_scenario(scenario)


def test_the_store_outlives_the_generations_of_a_gang(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        work = "print(store.add('begun', 1), environment.generation, flush=True); sys.exit(environment.generation < 2)"
        await cluster.begin(replica("worker-0", "gpu-a", python(ENTER + work)), options=SERVED, max_restarts=2)
        assert (await cluster.end())["state"] == "succeeded"
        assert a.output("worker-0") == "1 0\n2 1\n3 2\n"

    run_scenario(scenario)


def test_the_key_is_in_the_ranks_environment_and_nowhere_on_disk(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        hosts = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(
            replica("chief-0", "gpu-a", shell(f'test "$TORCHYARD_KEY" = {KEY[:32]}{KEY[32:]} && echo right')),
            replica("worker-0", "gpu-b", shell("test ${#TORCHYARD_KEY} = 64 && echo right")),
            options=SERVED,
        )
        assert (await cluster.end())["state"] == "succeeded"
        assert [hosts[0].output("chief-0"), hosts[1].output("worker-0")] == ["right\n", "right\n"]
        written = [path for path in cluster.folder.rglob("*") if path.is_file()]
        assert any(path.name == "run.json" for path in written)
        assert not [
            path for path in written if KEY.encode() in path.read_bytes() or SECRET.encode() in path.read_bytes()
        ]

    run_scenario(scenario)


def test_without_a_strategy_there_is_no_store_and_no_key(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(
            replica("worker-0", "gpu-a", shell('echo "[$TORCHYARD_STORE$TORCHYARD_KEY]"')), options={"kind": "none"}
        )
        assert (await cluster.end())["state"] == "succeeded"
        assert a.output("worker-0") == "[]\n"

    run_scenario(scenario)


def test_a_full_store_refuses_new_keys_and_changes_existing_ones() -> None:
    store = JoinStore()
    for number in range(MAX_KEYS):
        store.set(str(number), b"")
    with pytest.raises(Refused, match="takes no more"):
        store.set("one more", b"")
    store.set("0", b"changed")
    assert store.get("0") == b"changed"
    assert store.delete("1")
    store.set("one more", b"")
    assert len(store) == MAX_KEYS


def test_ended_waits_and_watches_are_removed() -> None:
    store = JoinStore()
    woken: list[str] = []

    def wake() -> None:
        woken.append("waiting")

    def watch(key: str, value: bytes, version: int) -> None:
        woken.append(key)

    store.wait(["a", "b"], wake)
    store.watch("a", watch)
    store.set("a", b"1")
    assert woken == ["waiting", "a"]
    store.stop_waiting(["a", "b"], wake)
    store.unwatch("a", watch)
    store.set("a", b"2")
    store.set("b", b"2")
    assert woken == ["waiting", "a"]
    assert not store._waiting
    assert not store._watches
