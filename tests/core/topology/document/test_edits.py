from __future__ import annotations

import pytest

from tests.core.examples import topology
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.edits import (
    add_replicas,
    changed_block,
    empty_topology,
    pools_of,
    remove_replicas,
    set_layout,
    set_name,
    set_pins,
    set_pools,
    set_program,
    set_strategy,
    unpin,
)
from torchyard_core.topology.file import dump, topology_from_text
from torchyard_core.topology.model import PlacementRule, Role, StrategyKind, Topology
from torchyard_core.topology.replicas import replicas_of

TWO_POOLS = topology(
    "{name: a, role: worker, replicas: 2}",
    "{name: b, role: worker, replicas: 3}",
    pins="{worker-0: h0, worker-1: h1, worker-2: h2, worker-4: h4}",
)


def names(value: Topology) -> list[str]:
    return [replica.name for replica in replicas_of(value)]


def counts(value: Topology) -> dict[str, int]:
    return {pool.name: pool.replicas for pool in value.pools}


# Tests of adding replicas and pools


def test_the_first_replica_of_a_role_makes_its_pool() -> None:
    value, added = add_replicas(empty_topology("x"), Role.WORKER, gpus=2)
    assert added == ("worker-0",)
    assert dump(value) == (
        "version: 1\nname: x\npools:\n  - name: workers\n    role: worker\n    replicas: 1\n    gpus: 2\nprogram: {}\n"
    )


def test_more_of_a_role_join_its_last_pool() -> None:
    value, added = add_replicas(TWO_POOLS, Role.WORKER, 2)
    assert counts(value) == {"a": 2, "b": 5}
    assert added == ("worker-5", "worker-6")


def test_replicas_added_in_front_renumber_those_behind_and_their_pins() -> None:
    value, added = add_replicas(TWO_POOLS, Role.WORKER, 1, pool=0)
    assert added == ("worker-2",)
    assert value.pins == {"worker-0": "h0", "worker-1": "h1", "worker-3": "h2", "worker-5": "h4"}


def test_there_is_one_chief() -> None:
    value, _ = add_replicas(empty_topology("x"), Role.CHIEF)
    for attempt in (lambda: add_replicas(value, Role.CHIEF), lambda: add_replicas(empty_topology("x"), Role.CHIEF, 2)):
        with pytest.raises(UsageError, match="one chief"):
            attempt()


def test_ten_thousand_replicas_are_enough() -> None:
    value, _ = add_replicas(empty_topology("x"), Role.WORKER, 9_999)
    with pytest.raises(UsageError, match="limit of 10000"):
        add_replicas(value, Role.PS, 2)


def test_a_new_pool_s_name_is_new() -> None:
    taken = topology("{name: servers, role: worker, replicas: 1}")
    value, _ = add_replicas(taken, Role.PS)
    assert [pool.name for pool in value.pools] == ["servers", "servers-2"]


# Tests of removing replicas and pools


def test_pins_follow_their_replicas_when_others_are_removed() -> None:
    value = remove_replicas(TWO_POOLS, ["worker-0", "worker-3"])
    assert counts(value) == {"a": 1, "b": 2}
    assert value.pins == {"worker-0": "h1", "worker-1": "h2", "worker-2": "h4"}


def test_a_pool_without_replicas_is_gone() -> None:
    value = remove_replicas(TWO_POOLS, ["worker-0", "worker-1"])
    assert counts(value) == {"b": 3}
    assert value.pins == {"worker-0": "h2", "worker-2": "h4"}


def test_all_can_be_removed() -> None:
    value = remove_replicas(TWO_POOLS, names(TWO_POOLS))
    assert value.pools == ()
    assert "pins" not in dump(value)


def test_a_pin_of_an_unknown_replica_stays() -> None:
    value = topology("{name: a, role: worker, replicas: 2}", pins="{worker-9: h, worker-1: g}")
    assert remove_replicas(value, ["worker-0"]).pins == {"worker-9": "h", "worker-0": "g"}


def test_places_in_the_layout_follow_too() -> None:
    value = set_layout(TWO_POOLS, {"nodes": {"worker-0": [1, 2], "worker-4": [3, 4.5]}, "notes": ["hello"]})
    after = remove_replicas(value, ["worker-0", "worker-1"])
    assert after.layout == {"nodes": {"worker-2": [3, 4.5]}, "notes": ["hello"]}


def test_min_replicas_gives_way() -> None:
    value = topology("{name: a, role: worker, replicas: 4, min_replicas: 3}")
    assert remove_replicas(value, ["worker-0", "worker-1"]).pools[0].min_replicas == 2
    assert set_pools(value, [0], replicas=1).pools[0].min_replicas == 1


# Tests of changing the settings of pools


def test_many_pools_change_at_once() -> None:
    value = set_pools(TWO_POOLS, [0, 1], gpus=2, placement="spread", hosts=["x", "y"])
    assert [(pool.gpus, pool.placement, pool.hosts) for pool in value.pools] == [
        (2, PlacementRule.SPREAD, ("x", "y"))
    ] * 2


def test_a_pool_s_number_of_replicas_renumbers_the_pools_behind_it() -> None:
    value = set_pools(TWO_POOLS, [0], replicas=1)
    assert value.pins == {"worker-0": "h0", "worker-1": "h2", "worker-3": "h4"}


def test_a_pool_s_role_takes_its_pins_along() -> None:
    value = set_pools(TWO_POOLS, [1], role="ps")
    assert value.pins == {"worker-0": "h0", "worker-1": "h1", "ps-0": "h2", "ps-2": "h4"}


def test_a_value_set_to_its_default_leaves_the_file() -> None:
    value = topology("{name: a, role: worker, replicas: 1, gpus: 3, env: {A: b}}")
    assert dump(set_pools(value, [0], gpus=0, env={})).count("gpus") == 0
    assert "env" not in dump(set_pools(value, [0], gpus=0, env={}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replicas": 0}, "replicas must be a whole number from 1 to 10000, not 0"),
        ({"gpus": -1}, "gpus must be a whole number from 0 to 1024, not -1"),
        ({"placement": "spraed"}, "did you mean `spread`"),
        ({"cpus": 0}, "cpus must be a number above 0"),
        ({"name": "b"}, "another pool is called `b`"),
        ({"role": "chief", "replicas": 2}, "one chief"),
        ({"role": "chief"}, "one chief"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        set_pools(TWO_POOLS, [0], **changes)


def test_no_folder_to_send_differs_from_the_default_folder() -> None:
    value = set_program(TWO_POOLS, workdir=None)
    assert "workdir: null" in dump(value)
    assert "workdir" not in dump(set_program(value, workdir="."))


def test_what_an_edit_writes_reads_back_as_the_same() -> None:
    value = set_strategy(set_name(TWO_POOLS, "2026"), kind="none", bucket_mb=32)
    value = set_program(value, args=["--lr", "1e-3", "yes"], env={"A": "1"}, stop_grace_s=5)
    assert value.strategy.kind is StrategyKind.NONE
    assert topology_from_text(dump(value)).topology == value


def test_an_empty_or_endless_name_is_refused() -> None:
    for name in ("", "  ", "x" * 101):
        with pytest.raises(UsageError):
            set_name(TWO_POOLS, name)


# Tests of changing pins


def test_pins_come_and_go() -> None:
    value = set_pins(TWO_POOLS, {"worker-3": "h3", "worker-0": None})
    assert value.pins == {"worker-1": "h1", "worker-2": "h2", "worker-4": "h4", "worker-3": "h3"}
    assert unpin(value, names(value)).pins == {}


def test_the_pools_of_a_selection() -> None:
    assert pools_of(TWO_POOLS, ["worker-1", "worker-4"]) == (0, 1)
    assert pools_of(TWO_POOLS, ["worker-2", "nobody-7"]) == (1,)


def test_edits_leave_what_they_were_given_as_it_is() -> None:
    before = dump(TWO_POOLS)
    remove_replicas(TWO_POOLS, ["worker-0"])
    set_pins(TWO_POOLS, {"worker-0": None})
    changed_block(TWO_POOLS.pools[0], {"env": {"A": "b"}})
    assert dump(TWO_POOLS) == before
