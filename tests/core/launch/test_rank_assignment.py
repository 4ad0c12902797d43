"""Tests of assigning hosts, gangs and ranks to replicas, and of the output of `torchyard plan --json`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.examples import EVERY_KEY, host, topology
from torchyard_core.launch.plan_preview import host_python, plan_as_json
from torchyard_core.launch.port_assignment import assign_ports, ports_needed
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts

CHIEF = "{name: c, role: chief, replicas: 1}"
SERVERS = "{name: s, role: ps, replicas: 2}"
EVALUATOR = "{name: e, role: evaluator, replicas: 1}"
COMMAND = "{launcher: command, command: [run]}"


def workers(count: int, more: str = "") -> str:
    return f"{{name: w, role: worker, replicas: {count}{', ' + more if more else ''}}}"


# Tests of the numbers of ranks


def test_ranks_count_the_chief_first_then_workers_one_rank_a_gpu_else_one() -> None:
    planned = plan(
        topology(
            "{name: w, role: worker, replicas: 2, gpus: 2}",
            "{name: x, role: worker, replicas: 1}",
            "{name: c, role: chief, replicas: 1, gpus: 3}",
            EVALUATOR,
        ),
        [host("a", 4), host("b", 4)],
    )
    assert [(replica.name, replica.first_rank, replica.ranks) for replica in planned.replicas] == [
        ("chief-0", 0, 3),
        ("worker-0", 3, 2),
        ("worker-1", 5, 2),
        ("worker-2", 7, 1),
        ("evaluator-0", None, 1),
    ]
    assert planned.world_size == 8


def test_launcher_command_starts_one_process_a_replica_and_that_is_its_rank() -> None:
    planned = plan(topology(CHIEF, workers(2, "gpus: 4"), program=COMMAND), [host("a", 8)])
    assert [(replica.first_rank, replica.ranks) for replica in planned.replicas] == [(0, 1), (1, 1), (2, 1)]


def test_an_evaluator_with_several_gpus_is_one_process() -> None:
    planned = plan(topology(workers(1), "{name: e, role: evaluator, replicas: 1, gpus: 2}"), [host("a", 2)])
    assert planned.replica("evaluator-0").ranks == 1


def test_rank_0_is_the_chief_and_its_host_is_the_primary_although_its_name_sorts_last() -> None:
    planned = plan(topology(CHIEF, workers(1), pins="{chief-0: z, worker-0: a}"), [host("a"), host("z")])
    assert (planned.primary, planned.hosts) == ("z", ("z", "a"))
    assert planned.replicas[0].first_rank == 0


def test_without_a_chief_worker_0_has_rank_0_and_the_primary() -> None:
    planned = plan(topology(SERVERS, workers(2), strategy="{kind: downpour}"), [host("a"), host("b")])
    assert planned.replicas[0].name == "worker-0"
    assert planned.primary == planned.replica("worker-0").host


# Tests of the assignment of trainers to gangs and process groups


@pytest.mark.parametrize("kind", ["none", "all_reduce", "sandblaster", "reduction_server"])
def test_synchronous_trainers_are_one_gang_and_all_others_one_each(kind: str) -> None:
    reducers = "{name: r, role: reducer, replicas: 1}"
    planned = plan(topology(CHIEF, workers(2), SERVERS, reducers, EVALUATOR, strategy=f"{{kind: {kind}}}"), [host("a")])
    assert {replica.name: replica.gang for replica in planned.replicas} == {
        "chief-0": "trainers",
        "worker-0": "trainers",
        "worker-1": "trainers",
        "ps-0": "ps-0",
        "ps-1": "ps-1",
        "reducer-0": "reducer-0",
        "evaluator-0": "evaluator-0",
    }
    assert [(world.gang, world.master, world.size) for world in planned.worlds] == [("trainers", "chief-0", 3)]


def test_asynchronous_kinds_have_a_gang_and_a_torch_world_a_worker_group() -> None:
    strategy = "{kind: downpour, worker_groups: 2}"
    planned = plan(topology(CHIEF, workers(3, "gpus: 2"), SERVERS, strategy=strategy), [host("a", 8)])
    assert [(world.gang, world.members, world.size) for world in planned.worlds] == [
        ("group-0", ("chief-0", "worker-0", "worker-1"), 5),
        ("group-1", ("worker-2",), 2),
    ]
    last = planned.replica("worker-2")
    assert (last.gang, last.first_rank, last.first_world_rank, last.node_rank) == ("group-1", 5, 0, 0)
    middle = planned.replica("worker-1")
    assert (middle.first_rank, middle.first_world_rank, middle.node_rank) == (3, 3, 2)


# Tests of the number of ports that a host needs


def test_each_replica_needs_a_port_and_each_world_one_more_where_its_first_replica_is() -> None:
    strategy = "{kind: hogwild, worker_groups: 2}"
    planned = plan(topology(workers(4), strategy=strategy), [host("a"), host("b")])
    assert ports_needed(planned) == {"a": 4, "b": 2}
    ports = assign_ports(planned, {"a": [1, 2, 3, 4], "b": [5, 6]})
    assert ports.replicas == {"worker-0": 1, "worker-2": 2, "worker-1": 5, "worker-3": 6}
    assert ports.masters == {"group-0": 3, "group-1": 4}


def test_too_few_ports_are_not_shared_in_silence() -> None:
    planned = plan(topology(workers(2)), [host("a")])
    with pytest.raises(ValueError, match="a holds 2 ports, and needs 3"):
        assign_ports(planned, {"a": [1, 2]})


# Tests of plans of topologies that have problems or do not fit


def test_the_plan_is_partial_where_something_does_not_fit() -> None:
    planned = plan(topology(workers(3, "gpus: 1")), [host("a", 2)])
    assert [replica.host for replica in planned.replicas] == ["a", "a", None]
    assert not planned.can_start
    assert plan(topology(workers(2, "gpus: 1")), [host("a", 2)]).can_start


def test_problems_of_the_topology_are_carried_along() -> None:
    read = topology_from_text(EVERY_KEY)
    assert read.topology is not None
    hosts = [host("gpu-a", 4), host("gpu-b", 4)]
    planned = plan(read.topology, hosts, found=read.check(hosts), line=read.line)
    assert [(problem.code, problem.line) for problem in planned.problems] == [("no-room", 20)]
    assert planned.problems[0].message == "evaluator-0 needs a host labelled rack=r1; the fleet has none"


def test_a_fleet_without_hosts_still_gives_a_plan() -> None:
    planned = plan(topology(workers(1)), [])
    assert (planned.primary, planned.hosts, planned.can_start) == (None, (), False)
    assert plan_as_json(planned, [])["replicas"][0]["host"] is None


# Tests of the JSON form of a plan (`torchyard plan --json`)


def shown(text: str, hosts: list[HostFacts]) -> dict[str, Any]:
    read = topology_from_text(text)
    assert read.topology is not None
    planned = plan(read.topology, hosts, found=read.check(hosts), line=read.line)
    result: dict[str, Any] = json.loads(json.dumps(plan_as_json(planned, hosts)))
    return result


def test_json_has_exactly_the_format_s_keys() -> None:
    hosts = [host("gpu-a", 4, labels={"rack": "r1"}), host("gpu-b", 4), host("cpu", 0)]
    answer = shown(EVERY_KEY, hosts)
    assert list(answer) == ["name", "strategy", "replicas", "problems"]
    assert (answer["name"], answer["strategy"], answer["problems"]) == ("digits-downpour", "downpour", [])
    keys = ["name", "role", "index", "gang", "rank", "ranks", "host", "gpus", "command", "env"]
    assert [list(replica) for replica in answer["replicas"]] == [keys] * 8
    worker = answer["replicas"][4]
    assert (worker["name"], worker["rank"], worker["ranks"], worker["host"]) == ("worker-3", 4, 1, "gpu-b")
    assert worker["gpus"] == ["GPU-gpu-b-2"]
    assert worker["command"] == ["/opt/venv/bin/python", "train.py", "--epochs", "2"]
    server = answer["replicas"][5]
    assert (server["name"], server["rank"], server["host"], server["gpus"]) == ("ps-0", None, "cpu", [])


def test_json_never_shows_a_secret() -> None:
    answer = shown(EVERY_KEY, [host("gpu-a", 8, labels={"rack": "r1"}), host("gpu-b", 8)])
    assert {replica["env"]["WANDB_API_KEY"] for replica in answer["replicas"]} == {"***"}


def test_values_chosen_at_launch_are_shown_as_placeholders() -> None:
    answer = shown(EVERY_KEY, [host("gpu-a", 8, labels={"rack": "r1"}), host("gpu-b", 8)])
    env = answer["replicas"][0]["env"]
    assert env["MASTER_ADDR"] == f"{answer['replicas'][0]['host']}.example"
    assert (env["MASTER_PORT"], env["TORCHYARD_RUN_ID"]) == ("<chosen at launch>", "<run id>")


def test_a_replica_without_a_host_leaves_the_others_commands_readable() -> None:
    answer = shown(
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 2, gpus: 1}]\nprogram: {script: a.py}\n",
        [host("a", 1)],
    )
    assert [(replica["host"], replica["command"][-1]) for replica in answer["replicas"]] == [
        ("a", "a.py"),
        (None, "a.py"),
    ]
    assert answer["problems"] == [
        {
            "severity": "error",
            "code": "no-room",
            "message": "worker-1 needs 1 GPU; all of them are taken",
            "line": 3,
            "path": "pools.w",
        }
    ]


@pytest.mark.parametrize(
    ("configured", "found", "setup", "python"),
    [
        ("/opt/p", "/usr/bin/python3", "[]", "/opt/p"),
        ("/opt/p", "/usr/bin/python3", "[activate]", "/opt/p"),
        (None, "/usr/bin/python3", "[]", "/usr/bin/python3"),
        (None, "/usr/bin/python3", "[activate]", "python3"),
        (None, None, "[]", "python3"),
    ],
)
def test_setup_lines_may_bring_their_own_python(
    configured: str | None, found: str | None, setup: str, python: str
) -> None:
    program = topology(workers(1), program=f"{{script: a.py, setup: {setup}}}").program
    assert host_python(HostFacts("a", python=configured, found_python=found), program) == python
