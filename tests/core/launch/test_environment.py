"""The command line and environment of every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from tests.core.examples import host, topology
from torchyard_agent.protocol.contract import Contract
from torchyard_agent.protocol.placeholders import NAMES, fill
from torchyard_agent.protocol.shapes import RankShare, ReplicaShare
from torchyard_core.launch.environment import Site, blueprint, shares
from torchyard_core.launch.plan import plan
from torchyard_core.launch.ports import ports_needed
from torchyard_core.topology.hosts import HostFacts
from torchyard_core.topology.model import Program, Strategy, StrategyKind, Topology
from torchyard_roles.environment import Options, read

CHIEF = "{name: c, role: chief, replicas: 1}"
WORKERS = "{name: w, role: worker, replicas: 2}"
SERVERS = "{name: s, role: ps, replicas: 2}"
REDUCERS = "{name: r, role: reducer, replicas: 1}"
EVALUATORS = "{name: e, role: evaluator, replicas: 1}"
TRAINERS_ONLY = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)

STORE = "10.0.0.1:4000"

# Host number n is at 10.0.0.n, and holds ports from n000 on.
HOSTS = [host("one", 8), host("two", 8), host("three")]


def launched(
    what: Topology,
    hosts: list[HostFacts] | None = None,
    trial: str | None = None,
    sites: Mapping[str, Site] | None = None,
) -> dict[str, ReplicaShare]:
    """Every replica's share, by name."""
    hosts = HOSTS if hosts is None else hosts
    planned = plan(what, hosts)
    assert planned.problems == ()
    needed = ports_needed(planned)
    made = {
        known.name: Site(
            f"10.0.0.{number}",
            "ib0",
            f"/runs/{known.name}",
            "/usr/bin/python3",
            tuple(range(number * 1000, number * 1000 + needed.get(known.name, 0))),
        )
        for number, known in enumerate(hosts, 1)
    }
    return {share["name"]: share for share in shares(planned, sites or made, "run-1", trial, STORE)}


def env(share: ReplicaShare, local_rank: int = 0) -> dict[str, str]:
    return share["ranks"][local_rank]["env"]


# torchrun's contract


def test_trainers_see_torchrun_s_contract_with_a_replica_for_a_node() -> None:
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


# Threads


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (["{name: w, role: worker, replicas: 1}"], None),
        (["{name: w, role: worker, replicas: 1, gpus: 2}"], "1"),
        (["{name: w, role: worker, replicas: 1}", "{name: e, role: evaluator, replicas: 1}"], "1"),
        (["{name: w, role: worker, replicas: 1, env: {OMP_NUM_THREADS: 7}}", EVALUATORS], "7"),
    ],
)
def test_threads_are_limited_where_ranks_share_a_host_and_the_user_has_not_said(
    pools: list[str], expected: str | None
) -> None:
    run = launched(topology(*pools), [host("one", 8)])
    assert env(run["worker-0"]).get("OMP_NUM_THREADS") == expected


def test_the_program_s_own_thread_count_wins() -> None:
    run = launched(topology(WORKERS, program="{script: a, env: {OMP_NUM_THREADS: 4}}"), [host("one")])
    assert env(run["worker-0"])["OMP_NUM_THREADS"] == "4"


# GPUs and network


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
    sites = {"one": Site("127.0.0.1", "", "/r", "python3", (1, 2))}
    found = env(launched(topology("{name: w, role: worker, replicas: 1}"), [host("one")], sites=sites)["worker-0"])
    assert "NCCL_SOCKET_IFNAME" not in found
    assert "GLOO_SOCKET_IFNAME" not in found


# The user's variables


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
    # Checking refuses such a file; should one get here all the same, the run still holds together.
    what = topology(WORKERS, program="{script: a, env: {RANK: 9, TORCHYARD_REPLICA: me, CUDA_VISIBLE_DEVICES: 3}}")
    found = env(launched(what)["worker-1"])
    assert (found["RANK"], found["TORCHYARD_REPLICA"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "worker-1", "")


def torchyard_s(share: ReplicaShare) -> dict[str, str]:
    return {name.removeprefix("TORCHYARD_"): value for name, value in env(share).items() if "TORCHYARD_" in name}


def test_torchyard_s_own_variables() -> None:
    found = torchyard_s(launched(topology(CHIEF, WORKERS))["worker-1"])
    options, peers = json.loads(found.pop("OPTIONS")), json.loads(found.pop("PEERS"))
    assert found == {
        "RUN_ID": "run-1",
        "REPLICA": "worker-1",
        "ROLE": "worker",
        "INDEX": "1",
        "RUN_DIR": "/runs/three/outputs",
        "CHECKPOINTS": "/runs/three/outputs/checkpoints",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "STRATEGY": "all_reduce",
        "GROUP": "0",
        "GROUPS": "1",
        "GROUP_RANK": "2",
        "GROUP_SIZE": "3",
        "GENERATION": "0",
        "STORE": "10.0.0.1:4000",
    }
    assert [trainer[0] for trainer in peers["trainers"]] == ["chief-0", "worker-0", "worker-1"]
    assert all(isinstance(port, int) and ranks == 1 and group == 0 for _, _, port, ranks, group in peers["trainers"])
    assert (options["kind"], options["push_every"], options["checkpoint_every_s"]) == ("all_reduce", 1, 600.0)


def test_the_roles_read_all_options_that_a_topology_has() -> None:
    """What the topology says of the strategy, `torchyard_roles` knows by the same names and with the same defaults."""
    said = {name: field.default for name, field in Strategy.model_fields.items()}
    said |= {name: Program.model_fields[name].default for name in ("checkpoint_every_s", "stop_grace_s")}
    assert {**asdict(Options()), "kind": StrategyKind.NONE} == said
    what = topology(WORKERS, SERVERS, strategy="{kind: downpour, push_every: 4, worker_groups: 2, on_nan: skip}")
    options = read(env(launched(what)["ps-0"])).options
    assert (options.kind, options.push_every, options.worker_groups, options.on_nan) == ("downpour", 4, 2, "skip")
    assert options.stop_grace_s == 30.0


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
        name: Site(name, "", "/run", "python3", tuple(range(1, 1 + count)))
        for name, count in ports_needed(planned).items()
    }
    cluster, replicas = blueprint(planned, sites, "run-1")
    without = [replica for replica in replicas if replica["name"] != "worker-1"]
    share = Contract(cluster, without, "10.0.0.1:4000").share(without[0], generation=2)
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


# CLUSTER_SPEC and TF_CONFIG


def variable(share: ReplicaShare, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(env(share)[name])
    return value


ALL_ROLES = (CHIEF, WORKERS, SERVERS, "{name: e, role: evaluator, replicas: 2}")


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


def test_a_trial_is_told_only_where_there_is_one() -> None:
    plain = launched(topology(WORKERS))["worker-0"]
    tried = launched(topology(WORKERS), trial="3")["worker-0"]
    for name in ("CLUSTER_SPEC", "TF_CONFIG"):
        assert "trial" not in variable(plain, name)["task"]
        assert variable(tried, name)["task"]["trial"] == "3"


def test_an_address_of_ipv6_has_brackets_before_its_port() -> None:
    sites = {"one": Site("fd00::1", "eth0", "/r", "python3", (7, 8))}
    found = launched(topology("{name: w, role: worker, replicas: 1}"), [host("one")], sites=sites)["worker-0"]
    assert variable(found, "CLUSTER_SPEC")["cluster"] == {"workerpool0": ["[fd00::1]:7"]}
    assert env(found)["MASTER_ADDR"] == "fd00::1"


# The command line


def test_a_script_and_a_module_are_started_by_the_host_s_python_or_the_program_s() -> None:
    def argv(program: str) -> list[str]:
        return launched(topology("{name: w, role: worker, replicas: 1}", program=program))["worker-0"]["ranks"][0][
            "argv"
        ]

    assert argv("{script: a.py, args: [--x, 1]}") == ["/usr/bin/python3", "a.py", "--x", "1"]
    assert argv("{module: pkg.train}") == ["/usr/bin/python3", "-m", "pkg.train"]
    assert argv("{script: a.py, python: /opt/p}") == ["/opt/p", "a.py"]


def test_a_pool_s_arguments_follow_the_program_s() -> None:
    what = topology("{name: w, role: worker, replicas: 1, args: [--b]}", program="{script: a.py, args: [--a]}")
    assert launched(what)["worker-0"]["ranks"][0]["argv"][1:] == ["a.py", "--a", "--b"]


TENSORFLOW_1 = "[python, t.py, '--ps_hosts={ps_hosts}', '--worker_hosts={worker_hosts}', '{job_name}', '{task_index}']"
TORCHRUN = (
    "[torchrun, '--nnodes={nnodes}', '--node-rank={node_rank}', '--nproc-per-node={nproc}', "
    "'--master-addr={master_addr}', '--master-port={master_port}', train.py]"
)


def test_distributed_tensorflow_s_flags_are_filled_in() -> None:
    run = launched(topology(WORKERS, SERVERS, program=f"{{launcher: command, command: {TENSORFLOW_1}}}"), [host("one")])
    hosts = ["--ps_hosts=10.0.0.1:1002,10.0.0.1:1003", "--worker_hosts=10.0.0.1:1000,10.0.0.1:1001"]
    assert run["worker-1"]["ranks"][0]["argv"] == ["python", "t.py", *hosts, "worker", "1"]
    assert run["ps-0"]["ranks"][0]["argv"] == ["python", "t.py", *hosts, "ps", "0"]


def test_real_torchrun_can_be_the_command() -> None:
    what = topology(
        "{name: c, role: chief, replicas: 1, gpus: 2}",
        "{name: w, role: worker, replicas: 1, gpus: 4}",
        program=f"{{launcher: command, command: {TORCHRUN}}}",
        pins="{chief-0: two, worker-0: one}",
    )
    run = launched(what)
    assert [len(share["ranks"]) for share in run.values()] == [1, 1]
    assert run["worker-0"]["ranks"][0]["argv"] == [
        "torchrun",
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=4",
        "--master-addr=10.0.0.2",
        "--master-port=2001",
        "train.py",
    ]


def test_a_command_s_framework_sets_its_ranks_itself() -> None:
    found = env(launched(topology(CHIEF, WORKERS, program="{launcher: command, command: [a]}"))["worker-0"])
    assert not [name for name in (*TRAINERS_ONLY, "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS") if name in found]
    assert (found["TORCHYARD_RANK"], found["TORCHYARD_WORLD_SIZE"]) == ("1", "3")
    assert {"TF_CONFIG", "CLUSTER_SPEC", "CUDA_VISIBLE_DEVICES"} <= found.keys()


def test_who_does_not_train_is_a_world_of_its_own_to_the_same_command() -> None:
    what = topology(WORKERS, EVALUATORS, program=f"{{launcher: command, command: {TORCHRUN}}}")
    assert launched(what)["evaluator-0"]["ranks"][0]["argv"][1:6] == [
        "--nnodes=1",
        "--node-rank=0",
        "--nproc-per-node=1",
        "--master-addr=10.0.0.3",
        "--master-port=3000",
    ]


def test_rank_run_folder_and_trial_are_filled_in_per_process() -> None:
    what = topology(
        "{name: w, role: worker, replicas: 1, gpus: 2}",
        program="{script: a.py, args: ['{rank}/{world_size}', '{run_dir}/out', 't{trial}']}",
    )
    run = launched(what, trial="2")
    assert [rank["argv"][2:] for rank in run["worker-0"]["ranks"]] == [
        ["0/2", "/runs/one/outputs/out", "t2"],
        ["1/2", "/runs/one/outputs/out", "t2"],
    ]
    assert launched(what)["worker-0"]["ranks"][0]["argv"][-1] == "t"


def test_all_other_braces_stay() -> None:
    values = dict.fromkeys(NAMES, "X")
    kept = ["{}", "{x}", "{ rank }", "{Rank}", "{rank", "rank}", "{rank!r}", "{{x}}", '{"a": {"b": 1}}', "%s"]
    assert fill(kept, values) == kept
    assert fill(["{rank}{rank}", "a{trial}b", "{{rank}}"], values) == ["XX", "aXb", "{X}"]


def test_a_value_that_looks_like_a_placeholder_is_not_filled_in_again() -> None:
    values = dict.fromkeys(NAMES, "X") | {"run_dir": "/runs/{rank}"}
    assert fill(["{run_dir}"], values) == ["/runs/{rank}"]


# Size


def test_a_plan_with_a_replica_that_has_no_host_cannot_be_launched() -> None:
    planned = plan(topology("{name: w, role: worker, replicas: 1, gpus: 1}"), [host("one")])
    with pytest.raises(ValueError, match="worker-0 has no host"):
        shares(planned, {}, "run-1")


def test_every_variable_is_text_without_a_nul() -> None:
    ranks: list[RankShare] = [rank for share in launched(topology(*ALL_ROLES)).values() for rank in share["ranks"]]
    for rank in ranks:
        for word in (*rank["argv"], *rank["env"], *rank["env"].values()):
            assert isinstance(word, str)
            assert "\0" not in word
