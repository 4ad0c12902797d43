"""Tests of choosing the hosts that receive copies of a checkpoint."""

from __future__ import annotations

from tests.agent.keeper.keeper_cluster import replica
from torchyard_agent.keeper.decisions import replication_policy
from torchyard_agent.keeper.decisions.replication_policy import Replication, Transfer

ONE, TWO, THREE = "step-000000000001", "step-000000000002", "step-000000000003"
HOSTS = ["gpu-a", "cpu", "gpu-b", "gpu-c"]
REPLICAS = [
    replica("chief-0", "gpu-a"),
    replica("ps-0", "cpu"),
    replica("worker-0", "gpu-b"),
    replica("evaluator-0", "gpu-c"),
]


def replication(*hosts: str, newest: str = "") -> Replication:
    """Returns the state of a replication between `hosts`, all of which have joined; none of them has checkpoints."""
    made = replication_policy.begin(HOSTS, REPLICAS)
    for host in hosts:
        made, _ = replication_policy.on_host(made, host, "")
    return made._replace(newest=newest)


def test_the_newest_goes_to_the_evaluators_host_and_to_the_next_host_that_trains() -> None:
    _, orders = replication_policy.on_saved(replication("cpu", "gpu-b", "gpu-c"), ONE)

    assert orders == [Transfer("gpu-c", ONE), Transfer("gpu-b", ONE)]


def test_without_another_trainer_the_next_host_is_the_peer() -> None:
    made = replication_policy.begin(
        ["a", "b", "c"], [replica("chief-0", "a"), replica("ps-0", "b"), replica("ps-1", "c")]
    )
    for host in ("c", "b"):
        made, _ = replication_policy.on_host(made, host, "")

    assert replication_policy.receivers(made) == ["b"]


def test_an_evaluators_host_that_trains_too_is_the_peer_and_gets_it_once() -> None:
    made = replication_policy.begin(
        ["a", "b"], [replica("chief-0", "a"), replica("worker-0", "b"), replica("evaluator-0", "b")]
    )
    made, _ = replication_policy.on_host(made, "b", "")

    assert replication_policy.on_saved(made, ONE)[1] == [Transfer("b", ONE)]


def test_nothing_is_copied_to_an_evaluator_on_the_chiefs_host() -> None:
    made = replication_policy.begin(["a"], [replica("chief-0", "a"), replica("evaluator-0", "a")])

    assert replication_policy.on_saved(made, ONE)[1] == []


def test_while_the_peer_is_lost_another_host_takes_its_place() -> None:
    made, _ = replication_policy.on_saved(replication("cpu", "gpu-b"), ONE)

    made, orders = replication_policy.on_host_lost(made, "gpu-b")

    assert orders == [Transfer("cpu", ONE)]
    assert replication_policy.on_host(made, "gpu-b", "")[1] == [Transfer("gpu-b", ONE)]


def test_a_host_that_joins_with_the_newest_gets_no_copy() -> None:
    assert replication_policy.on_host(replication(newest=TWO), "gpu-c", TWO)[1] == []


def test_a_newer_checkpoint_replaces_a_transfer_but_not_twice_in_a_row() -> None:
    made, _ = replication_policy.on_saved(replication("gpu-c"), ONE)
    made, orders = replication_policy.on_saved(made, TWO)
    assert orders == [Transfer("gpu-c", TWO)]

    made, orders = replication_policy.on_saved(made, THREE)
    assert orders == []

    made, orders = replication_policy.on_copied(made, "gpu-c", TWO)
    assert orders == [Transfer("gpu-c", THREE)]


def test_a_refused_checkpoint_is_not_retried_and_the_next_one_is() -> None:
    made, _ = replication_policy.on_saved(replication("gpu-c"), ONE)
    made, orders = replication_policy.on_refused(made, "gpu-c", ONE)
    assert orders == []

    assert replication_policy.on_saved(made, TWO)[1] == [Transfer("gpu-c", TWO)]


def test_a_late_report_of_a_replaced_transfer_changes_nothing() -> None:
    made, _ = replication_policy.on_saved(replication("gpu-c"), ONE)
    made, _ = replication_policy.on_saved(made, TWO)

    made, orders = replication_policy.on_refused(made, "gpu-c", ONE)

    assert orders == []
    route = made.route("gpu-c")
    assert route is not None
    assert route.under_way == TWO


def test_a_chief_with_an_older_checkpoint_gets_the_newest() -> None:
    made = replication(newest=ONE)
    made, _ = replication_policy.on_host(made, "gpu-b", TWO)
    made, _ = replication_policy.on_host(made, "gpu-c", THREE)

    assert replication_policy.newest_elsewhere(made) == Transfer("gpu-c", THREE)
    assert replication_policy.newest_elsewhere(made, excluded=["gpu-c"]) == Transfer("gpu-b", TWO)
    assert replication_policy.newest_elsewhere(made._replace(newest=THREE)) is None
