from __future__ import annotations

import json

import pytest

from tests.core.examples import topology
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.clipboard import copy_replicas, duplicate_replicas, paste_replicas, read_copied
from torchyard_core.topology.document.edits import empty_topology, remove_replicas
from torchyard_core.topology.model import Topology
from torchyard_core.topology.replicas import replicas_of

CLUSTER = topology(
    "{name: chief, role: chief, replicas: 1}",
    "{name: workers, role: worker, replicas: 3, min_replicas: 3, gpus: 1}",
    "{name: servers, role: ps, replicas: 2}",
    pins="{worker-0: 'a:0', worker-1: b, ps-1: c}",
)


def counts(value: Topology) -> dict[str, int]:
    return {pool.name: pool.replicas for pool in value.pools}


def test_a_paste_joins_the_pool_it_came_from() -> None:
    value, names = paste_replicas(CLUSTER, read_copied(copy_replicas(CLUSTER, ["worker-1", "worker-2"])))
    assert counts(value) == {"chief": 1, "workers": 5, "servers": 2}
    assert names == ("worker-3", "worker-4")
    assert value.pins["worker-3"] == "b"
    assert "worker-4" not in value.pins


def test_a_pin_to_gpus_that_are_taken_is_not_pasted() -> None:
    value, names = duplicate_replicas(CLUSTER, ["worker-0"])
    assert names == ("worker-3",)
    assert "worker-3" not in value.pins


def test_cut_and_paste_gives_pins_back() -> None:
    text = copy_replicas(CLUSTER, ["worker-0", "ps-1"])
    value, names = paste_replicas(remove_replicas(CLUSTER, ["worker-0", "ps-1"]), read_copied(text))
    assert counts(value) == counts(CLUSTER)
    assert names == ("worker-2", "ps-1")
    assert value.pins == {"worker-0": "b", "worker-2": "a:0", "ps-1": "c"}


def test_another_topology_gets_pools_of_its_own() -> None:
    other = topology("{name: workers, role: worker, replicas: 1, gpus: 4}")
    value, names = paste_replicas(other, read_copied(copy_replicas(CLUSTER, ["worker-1", "ps-0"])))
    assert counts(value) == {"workers": 1, "workers-2": 1, "servers": 1}
    assert names == ("worker-1", "ps-0")
    assert value.pools[1].min_replicas == 1


def test_all_of_a_topology_pasted_into_an_empty_one_is_the_same() -> None:
    text = copy_replicas(CLUSTER, [replica.name for replica in replicas_of(CLUSTER)])
    value, _ = paste_replicas(empty_topology("other"), read_copied(text))
    assert value.pools == CLUSTER.pools
    assert value.pins == CLUSTER.pins


def test_a_second_chief_is_left_out() -> None:
    value, names = duplicate_replicas(CLUSTER, ["chief-0", "ps-0"])
    assert names == ("ps-2",)
    assert counts(value)["chief"] == 1
    with pytest.raises(UsageError, match="one chief"):
        duplicate_replicas(CLUSTER, ["chief-0"])


GOOD = json.loads(copy_replicas(CLUSTER, ["worker-0"]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        json.dumps({**GOOD, "torchyard-replicas": 2}),
        json.dumps({**GOOD, "replicas": []}),
        json.dumps({**GOOD, "replicas": [{"pool": {"name": "x"}, "pins": []}]}),
        json.dumps({**GOOD, "replicas": [{**GOOD["replicas"][0], "pins": [None, None]}]}),
        json.dumps({**GOOD, "replicas": [{**GOOD["replicas"][0], "pins": [7]}]}),
    ],
)
def test_other_text_on_the_clipboard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the clipboard holds no replicas"):
        read_copied(text)
