"""Tests of the command lines of ranks, and of the placeholders in them."""

from __future__ import annotations

from tests.core.examples import host, topology
from tests.core.launch.launched import CHIEF, EVALUATORS, SERVERS, TRAINERS_ONLY, WORKERS, env, launched
from torchyard_agent.protocol.placeholders import NAMES, fill


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
        ["0/2", "/runs/one/outputs/worker-0/out", "t2"],
        ["1/2", "/runs/one/outputs/worker-0/out", "t2"],
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


def test_a_sweep_s_parameters_are_filled_in_and_others_stay() -> None:
    values = dict.fromkeys(NAMES, "X") | {"params.lr": "0.1"}
    assert fill(["--lr={params.lr}", "{params.x}", "{params.}"], values) == ["--lr=0.1", "{params.x}", "{params.}"]
    assert fill(["{params.lr}"], {"params.lr": "{rank}"}) == ["{rank}"]
