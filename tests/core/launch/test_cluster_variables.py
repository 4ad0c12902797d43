"""Tests of CLUSTER_SPEC and TF_CONFIG, which tell other frameworks the addresses of all processes."""

from __future__ import annotations

import json
from typing import Any

from tests.core.examples import host, topology
from tests.core.launch.launched import ALL_ROLES, CHIEF, EVALUATORS, REDUCERS, WORKERS, env, launched
from torchyard_agent.protocol.messages import ReplicaAssignment
from torchyard_core.launch.replica_plans import PreparedHost


def variable(share: ReplicaAssignment, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(env(share)[name])
    return value


def test_cluster_spec_names_worker_pools_by_position() -> None:
    run = launched(topology(*ALL_ROLES, strategy="{kind: sandblaster}"), [host("one")])
    spec = variable(run["ps-1"], "CLUSTER_SPEC")
    assert spec["cluster"] == {
        "workerpool0": ["10.0.0.1:1000"],
        "workerpool1": ["10.0.0.1:1001", "10.0.0.1:1002"],
        "workerpool2": ["10.0.0.1:1003", "10.0.0.1:1004"],
        "workerpool3": ["10.0.0.1:1005", "10.0.0.1:1006"],
    }
    assert (spec["environment"], spec["task"]) == ("cloud", {"type": "workerpool2", "index": 1})
    assert spec["job"]["name"] == "example"
    tasks = {name: variable(share, "CLUSTER_SPEC")["task"] for name, share in run.items()}
    assert tasks["chief-0"] == {"type": "workerpool0", "index": 0}
    assert tasks["evaluator-1"] == {"type": "workerpool3", "index": 1}


def test_an_unused_position_is_left_out() -> None:
    spec = variable(launched(topology(CHIEF, EVALUATORS))["chief-0"], "CLUSTER_SPEC")
    assert list(spec["cluster"]) == ["workerpool0", "workerpool3"]


def test_reducers_stand_where_servers_would() -> None:
    run = launched(topology(WORKERS, REDUCERS, strategy="{kind: reduction_server}"))
    assert variable(run["reducer-0"], "CLUSTER_SPEC")["task"] == {"type": "workerpool2", "index": 0}


def test_the_evaluator_is_never_in_tf_config_s_cluster_though_it_has_its_task() -> None:
    run = launched(topology(*ALL_ROLES, strategy="{kind: sandblaster}"))
    config = variable(run["evaluator-1"], "TF_CONFIG")
    assert list(config["cluster"]) == ["chief", "worker", "ps"]
    assert config["task"] == {"type": "evaluator", "index": 1}
    assert config["environment"] == "cloud"
    assert variable(run["worker-1"], "TF_CONFIG")["task"] == {"type": "worker", "index": 1}


def test_the_chief_can_be_called_master() -> None:
    run = launched(topology(CHIEF, WORKERS, program="{script: a, tf_master_name: master}"))
    config = variable(run["chief-0"], "TF_CONFIG")
    assert (list(config["cluster"]), config["task"]["type"]) == (["master", "worker"], "master")


def test_without_a_chief_pool_worker_0_is_the_chief_in_both() -> None:
    run = launched(topology("{name: w, role: worker, replicas: 3}"), [host("one")])
    config = variable(run["worker-0"], "TF_CONFIG")
    assert config["task"] == {"type": "chief", "index": 0}
    assert config["cluster"] == {"chief": ["10.0.0.1:1000"], "worker": ["10.0.0.1:1001", "10.0.0.1:1002"]}
    assert variable(run["worker-2"], "TF_CONFIG")["task"] == {"type": "worker", "index": 1}
    assert variable(run["worker-2"], "CLUSTER_SPEC")["task"] == {"type": "workerpool1", "index": 1}


def test_a_single_replica_has_no_tf_config() -> None:
    found = env(launched(topology("{name: w, role: worker, replicas: 1}"))["worker-0"])
    assert "TF_CONFIG" not in found
    assert "CLUSTER_SPEC" in found


def test_reducers_are_unknown_to_tensorflow() -> None:
    run = launched(topology(WORKERS, REDUCERS, strategy="{kind: reduction_server}"))
    assert "TF_CONFIG" not in env(run["reducer-0"])
    assert list(variable(run["worker-0"], "TF_CONFIG")["cluster"]) == ["chief", "worker"]


def test_a_trial_is_set_only_where_there_is_one() -> None:
    plain = launched(topology(WORKERS))["worker-0"]
    tried = launched(topology(WORKERS), trial="3")["worker-0"]
    for name in ("CLUSTER_SPEC", "TF_CONFIG"):
        assert "trial" not in variable(plain, name)["task"]
        assert variable(tried, name)["task"]["trial"] == "3"


def test_an_address_of_ipv6_has_brackets_before_its_port() -> None:
    sites = {"one": PreparedHost("fd00::1", "eth0", "/r", "python3", (7, 8))}
    found = launched(topology("{name: w, role: worker, replicas: 1}"), [host("one")], sites=sites)["worker-0"]
    assert variable(found, "CLUSTER_SPEC")["cluster"] == {"workerpool0": ["[fd00::1]:7"]}
    assert env(found)["MASTER_ADDR"] == "fd00::1"
