"""Tests of the environment of every rank."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.core.examples import host, topology
from tests.core.launch.launched import (
    ALL_ROLES,
    CHIEF,
    EVALUATORS,
    HOSTS,
    REDUCERS,
    SERVERS,
    TRAINERS_ONLY,
    WORKERS,
    env,
    launched,
)
from torchyard_agent.protocol.messages import RankAssignment, ReplicaAssignment
from torchyard_agent.protocol.rank_environment import RankEnvironment
from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.replica_plans import PreparedHost, cluster_plan, replica_specs
from torchyard_core.topology.model import Program, Strategy, StrategyKind
from torchyard_roles.environment import Options, read

# Tests of the variables that torchrun sets


def test_trainers_see_torchrun_s_contract_with_a_replica_with_gpus_for_a_node() -> None:
    run = launched(
        topology(
            "{name: c, role: chief, replicas: 1, gpus: 1}",
            "{name: w, role: worker, replicas: 2, gpus: 3}",
            pins="{chief-0: two, worker-0: one, worker-1: two}",
        )
    )
    contract = {name: value for name, value in env(run["worker-1"], 2).items() if name in TRAINERS_ONLY}
    assert contract == {
        "RANK": "6",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "7",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "default",
        "ROLE_RANK": "6",
        "ROLE_WORLD_SIZE": "7",
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "2002",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "2",
    }
    assert env(run["worker-1"], 2)["TORCHELASTIC_ERROR_FILE"] == "/runs/two/errors/worker-1.2.json"


def nodes(run: dict[str, ReplicaAssignment]) -> list[tuple[str, ...]]:
    """Returns LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE of each rank."""
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    ranks = [rank["env"] for share in run.values() if share["trainer"] for rank in share["ranks"]]
    return [tuple(env[name] for name in names) for env in ranks]


def test_replicas_without_gpus_on_one_host_are_one_node_of_torchrun_s() -> None:
    four = "{name: w, role: worker, replicas: 4}"
    run = launched(topology(four, pins="{worker-0: one, worker-1: two, worker-2: one, worker-3: one}"))
    assert nodes(run) == [("0", "3", "0", "2"), ("0", "1", "1", "2"), ("1", "3", "0", "2"), ("2", "3", "0", "2")]
    # In an assignment, `local_rank` numbers the processes of one replica, as reports, logs and checkpoints do.
    assert [rank["local_rank"] for share in run.values() for rank in share["ranks"]] == [0, 0, 0, 0]
    places = [read(env(share)) for share in run.values()]
    assert [(place.local_rank, place.local_world_size, place.name) for place in places] == [
        (0, 1, f"worker-{number}") for number in range(4)
    ]


def test_a_replica_with_gpus_is_a_node_of_its_own_beside_others_on_its_host() -> None:
    """Each rank can see only the GPUs of its replica, so `cuda:LOCAL_RANK` must be one of them."""
    pools = (
        "{name: g, role: worker, replicas: 2, gpus: 2, hosts: [one]}",
        "{name: c, role: worker, replicas: 2, hosts: [one]}",
    )
    run = launched(topology(*pools))
    assert nodes(run) == [
        *[(local, "2", group, "3") for group in "01" for local in "01"],
        ("0", "2", "2", "3"),
        ("1", "2", "2", "3"),
    ]
    assert [read(env(run["worker-1"], number)).local_rank for number in (0, 1)] == [0, 1]


def test_worker_groups_on_one_host_are_worlds_with_nodes_of_their_own() -> None:
    what = topology(
        "{name: w, role: worker, replicas: 2}",
        SERVERS,
        strategy="{kind: downpour}",
        pins="{worker-0: one, worker-1: one}",
    )
    assert nodes(launched(what)) == [("0", "1", "0", "1")] * 2


def test_ranks_and_the_master_are_the_same_to_all() -> None:
    run = launched(topology(CHIEF, WORKERS))
    ranks = [rank for share in run.values() for rank in share["ranks"]]
    assert [rank["env"]["RANK"] for rank in ranks] == ["0", "1", "2"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    assert len({(rank["env"]["MASTER_ADDR"], rank["env"]["MASTER_PORT"]) for rank in ranks}) == 1


def test_in_asynchronous_kinds_each_group_is_a_world_while_our_rank_counts_all_trainers() -> None:
    run = launched(
        topology(
            CHIEF,
            "{name: w, role: worker, replicas: 4}",
            SERVERS,
            strategy="{kind: downpour, worker_groups: 2}",
            pins="{worker-2: two}",
        )
    )
    first, last = env(run["chief-0"]), env(run["worker-3"])
    assert (first["RANK"], first["WORLD_SIZE"], first["TORCHYARD_RANK"]) == ("0", "3", "0")
    assert (last["RANK"], last["WORLD_SIZE"], last["GROUP_RANK"]) == ("1", "2", "1")
    assert (last["TORCHYARD_RANK"], last["TORCHYARD_WORLD_SIZE"]) == ("4", "5")
    assert last["MASTER_ADDR"] == "10.0.0.2"
    assert last["MASTER_PORT"] != first["MASTER_PORT"]
    assert (run["chief-0"]["gang"], run["worker-3"]["gang"]) == ("group-0", "group-1")


@pytest.mark.parametrize("name", ["ps-0", "reducer-0", "evaluator-0"])
def test_who_does_not_train_sees_nothing_of_the_trainers_world(name: str) -> None:
    run = launched(topology(WORKERS, SERVERS, REDUCERS, EVALUATORS))
    share = run[name]
    found = env(share)
    assert not [variable for variable in TRAINERS_ONLY if variable in found]
    assert "TORCHYARD_RANK" not in found
    assert (share["trainer"], share["ranks"][0]["rank"]) == (False, None)
    assert (found["TORCHYARD_REPLICA"], found["TORCHYARD_ROLE"]) == (name, name.split("-")[0])
    assert found["TORCHYARD_WORLD_SIZE"] == "2"
    assert found["TORCHELASTIC_ERROR_FILE"] == f"/runs/{share['host']}/errors/{name}.0.json"


# Tests of OMP_NUM_THREADS


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (["{name: w, role: worker, replicas: 1}"], None),
        (["{name: w, role: worker, replicas: 1, gpus: 2}"], "1"),
        (["{name: w, role: worker, replicas: 1}", "{name: e, role: evaluator, replicas: 1}"], "1"),
        (["{name: w, role: worker, replicas: 1, env: {OMP_NUM_THREADS: 7}}", EVALUATORS], "7"),
    ],
)
def test_threads_are_limited_where_ranks_share_a_host_and_the_user_has_not_set_them(
    pools: list[str], expected: str | None
) -> None:
    run = launched(topology(*pools), [host("one", 8)])
    assert env(run["worker-0"]).get("OMP_NUM_THREADS") == expected


def test_the_program_s_own_thread_count_wins() -> None:
    run = launched(topology(WORKERS, program="{script: a, env: {OMP_NUM_THREADS: 4}}"), [host("one")])
    assert env(run["worker-0"])["OMP_NUM_THREADS"] == "4"


# Tests of the variables for GPUs and network interfaces


def test_every_rank_of_a_replica_sees_all_its_gpus_by_uuid() -> None:
    run = launched(topology("{name: w, role: worker, replicas: 1, gpus: 2}"))
    uuids = "GPU-one-0,GPU-one-1"
    assert [rank["env"]["CUDA_VISIBLE_DEVICES"] for rank in run["worker-0"]["ranks"]] == [uuids, uuids]
    assert "CUDA_DEVICE_ORDER" not in env(run["worker-0"])
    assert run["worker-0"]["gpus"] == ["GPU-one-0", "GPU-one-1"]


def test_gpus_by_index_fix_the_order_of_indices() -> None:
    what = topology(
        "{name: w, role: worker, replicas: 1, gpus: 2}",
        pins="{worker-0: 'two:3,1'}",
        program="{script: a, gpu_ids: index}",
    )
    found = env(launched(what)["worker-0"])
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("3,1", "PCI_BUS_ID")


def test_who_has_no_gpu_sees_none() -> None:
    run = launched(topology(WORKERS, EVALUATORS))
    assert {env(share)["CUDA_VISIBLE_DEVICES"] for share in run.values()} == {""}


def test_the_interface_is_the_host_s_and_the_user_may_choose_another() -> None:
    run = launched(topology("{name: w, role: worker, replicas: 1, env: {NCCL_SOCKET_IFNAME: eth7}}"))
    found = env(run["worker-0"])
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("eth7", "ib0")


def test_an_unknown_interface_is_left_to_nccl_and_gloo() -> None:
    sites = {"one": PreparedHost("127.0.0.1", "", "/r", "python3", (1, 2))}
    found = env(launched(topology("{name: w, role: worker, replicas: 1}"), [host("one")], sites=sites)["worker-0"])
    assert "NCCL_SOCKET_IFNAME" not in found
    assert "GLOO_SOCKET_IFNAME" not in found


# Tests of the user's and Torchyard's own variables


def test_a_pool_s_variables_win_over_the_program_s() -> None:
    what = topology(
        "{name: w, role: worker, replicas: 1, env: {B: pool}}", program="{script: a, env: {A: program, B: program}}"
    )
    found = env(launched(what)["worker-0"])
    assert (found["A"], found["B"]) == ("program", "pool")


def test_output_is_unbuffered_unless_the_user_says_otherwise() -> None:
    assert env(launched(topology(WORKERS))["worker-0"])["PYTHONUNBUFFERED"] == "1"
    quiet = topology(WORKERS, program="{script: a, env: {PYTHONUNBUFFERED: ''}}")
    assert env(launched(quiet)["worker-0"])["PYTHONUNBUFFERED"] == ""


def test_no_variable_of_the_user_s_can_break_the_contract() -> None:
    # A check would refuse this topology, but the variables must be correct even without checks.
    what = topology(WORKERS, program="{script: a, env: {RANK: 9, TORCHYARD_REPLICA: me, CUDA_VISIBLE_DEVICES: 3}}")
    found = env(launched(what)["worker-1"])
    assert (found["RANK"], found["TORCHYARD_REPLICA"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "worker-1", "")


def torchyard_s(share: ReplicaAssignment) -> dict[str, str]:
    return {name.removeprefix("TORCHYARD_"): value for name, value in env(share).items() if "TORCHYARD_" in name}


def test_torchyard_s_own_variables() -> None:
    found = torchyard_s(launched(topology(CHIEF, WORKERS))["worker-1"])
    options, peers = json.loads(found.pop("OPTIONS")), json.loads(found.pop("PEERS"))
    assert found == {
        "RUN_ID": "run-1",
        "REPLICA": "worker-1",
        "ROLE": "worker",
        "INDEX": "1",
        "RUN_DIR": "/runs/three/outputs/worker-1",
        "CHECKPOINTS": "/runs/three/outputs/checkpoints",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "STRATEGY": "all_reduce",
        "GROUP": "0",
        "GROUPS": "1",
        "GROUP_RANK": "2",
        "GROUP_SIZE": "3",
        "GENERATION": "0",
        "PROCESS": "0",
        "PROCESSES": "1",
        "STORE": "10.0.0.1:4000",
    }
    assert [trainer[0] for trainer in peers["trainers"]] == ["chief-0", "worker-0", "worker-1"]
    assert all(isinstance(port, int) and ranks == 1 and group == 0 for _, _, port, ranks, group in peers["trainers"])
    assert (options["kind"], options["push_every"], options["checkpoint_every_s"]) == ("all_reduce", 1, 600.0)


def test_the_roles_read_all_options_that_a_topology_has() -> None:
    """All settings of the strategies exist in `torchyard_roles` with the same names and defaults as in topologies."""
    defaults = {name: field.default for name, field in Strategy.model_fields.items()}
    defaults["mixing"] = 0.0  # The desktop sends 0 if `mixing` is None.
    defaults["start_wait_s"] = 600.0  # Only a launch on a cluster sends this.
    defaults |= {name: Program.model_fields[name].default for name in ("checkpoint_every_s", "stop_grace_s")}
    assert {**asdict(Options()), "kind": StrategyKind.NONE} == defaults
    what = topology(WORKERS, SERVERS, strategy="{kind: downpour, push_every: 4, worker_groups: 2, on_nan: skip}")
    options = read(env(launched(what)["ps-0"])).options
    assert (options.kind, options.push_every, options.worker_groups, options.on_nan) == ("downpour", 4, 2, "skip")
    assert options.stop_grace_s == 30.0
    streaming = topology(WORKERS, strategy="{kind: diloco, fragments: 2, overlap_steps: 1}")
    assert read(env(launched(streaming)["worker-0"])).options.mixing == 0.5


def test_groups_of_an_asynchronous_strategy_count_their_own_ranks() -> None:
    what = topology(
        CHIEF, "{name: w, role: worker, replicas: 4}", SERVERS, strategy="{kind: downpour, worker_groups: 2}"
    )
    shares = launched(what)
    read_by = {name: read(env(share)) for name, share in shares.items()}
    places = {
        name: (one.rank, one.group, one.groups, one.group_rank, one.group_size)
        for name, one in read_by.items()
        if one.trains
    }
    assert places == {
        "chief-0": (0, 0, 2, 0, 3),
        "worker-0": (1, 0, 2, 1, 3),
        "worker-1": (2, 0, 2, 2, 3),
        "worker-2": (3, 1, 2, 0, 2),
        "worker-3": (4, 1, 2, 1, 2),
    }
    server = read_by["ps-0"]
    assert (server.rank, server.groups, server.gang, read_by["worker-3"].gang) == (None, 2, "ps-0", "group-1")
    assert [trainer.name for trainer in server.peers.trainers if trainer.group == 1] == ["worker-2", "worker-3"]
    assert server.peers.ps[0].name == "ps-0"
    assert server.store == "10.0.0.1:4000"


def test_only_those_who_take_part_are_peers() -> None:
    planned = plan(topology(WORKERS, SERVERS, strategy="{kind: sandblaster}"), HOSTS)
    sites = {
        name: PreparedHost(name, "", "/run", "python3", tuple(range(1, 1 + count)))
        for name, count in ports_needed(planned).items()
    }
    cluster, replicas = cluster_plan(planned, sites, "run-1")
    without = [replica for replica in replicas if replica["name"] != "worker-1"]
    share = RankEnvironment(cluster, without, "10.0.0.1:4000").share(without[0], generation=2)
    found = read(env(share))
    assert [trainer.name for trainer in found.peers.trainers] == ["worker-0"]
    assert (found.generation, found.group_size) == (2, 1)


def test_strategy_none_has_no_store() -> None:
    found = torchyard_s(launched(topology(WORKERS, strategy="{kind: none}"))["worker-0"])
    assert "STORE" not in found
    assert "PEERS" not in found
    assert found["CHECKPOINTS"].endswith("/checkpoints")


@pytest.mark.parametrize(("name", "folder"), [("digits", "digits"), ("a/../b", "a_.._b"), ("..", "__")])
def test_a_shared_folder_has_one_for_each_run(name: str, folder: str) -> None:
    what = topology(WORKERS, program="{script: a, checkpoint_dir: /shared/points/}").model_copy(update={"name": name})
    assert torchyard_s(launched(what)["worker-0"])["CHECKPOINTS"] == f"/shared/points/{folder}-run-1"


def test_a_plan_with_a_replica_that_has_no_host_cannot_be_launched() -> None:
    planned = plan(topology("{name: w, role: worker, replicas: 1, gpus: 1}"), [host("one")])
    with pytest.raises(ValueError, match="worker-0 has no host"):
        replica_specs(planned, {}, "run-1")


def test_every_variable_is_text_without_a_nul() -> None:
    ranks: list[RankAssignment] = [rank for share in launched(topology(*ALL_ROLES)).values() for rank in share["ranks"]]
    for rank in ranks:
        for word in (*rank["argv"], *rank["env"], *rank["env"].values()):
            assert isinstance(word, str)
            assert "\0" not in word
