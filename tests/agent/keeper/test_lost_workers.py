"""Tests of `on_worker_loss: continue`. Keepers and training processes are real; gradients are exchanged over gloo on
the loopback interface.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica
from tests.ports import free_port
from tests.roles.on_gpus import gpu_environment
from tests.roles.processes import ROOT

pytestmark = [pytest.mark.train, pytest.mark.timeout(500)]

PROGRAM = ROOT / "tests" / "roles" / "programs" / "lost_workers" / "loses_workers.py"
END_S = 400
"""Timeout in seconds for a run on a busy machine, in which processes import torch up to three times in sequence."""
REDUCER = ROOT / "tests" / "roles" / "programs" / "served.py"
EPOCHS = PROGRAM.with_name("returns_to_epochs.py")


async def train(
    cluster: KeeperCluster,
    host: Host,
    workers: int,
    *arguments: object,
    least: int = 1,
    how: str = "continue",
    max_restarts: int = 0,
    program: Path = PROGRAM,
    reducers: int = 0,
    reducer: list[str] | None = None,
    on_gpu: bool = False,
    **options: object,
) -> dict[str, Any]:
    """Runs the program with all workers, and returns the `run_ended` event.

    Args:
        reducers: The number of reducers; if it is 0, the strategy is `all_reduce`.
        reducer: The command of a reducer, if it is not REDUCER.
        on_gpu: Whether all workers train on this computer's first GPU.
        options: Options of the strategy.
    """
    environment = {
        "PYTHONPATH": str(ROOT / "agent"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHYARD_ROLE": "worker",
        "TORCHYARD_RUN_ID": cluster.run_id,
        "TORCHYARD_GANG": "trainers",
    }
    python = sys.executable if on_gpu else cluster.python
    command = [python, str(program), *map(str, arguments)]
    commands = {f"worker-{number}": command for number in range(workers)}
    commands |= {f"reducer-{number}": reducer or [python, str(REDUCER)] for number in range(reducers)}
    own = {name: {"TORCHYARD_REPLICA": name, "TORCHYARD_ROLE": name.partition("-")[0]} for name in commands}
    if on_gpu:
        for worker in range(workers):
            own[f"worker-{worker}"] |= gpu_environment()
    if reducers:
        environment["TORCHYARD_STRATEGY"] = "reduction_server"
    await cluster.begin(
        *(
            replica(name, host.name, command, env={**environment, **own[name]}, address=f"127.0.0.1:{free_port()}")
            for name, command in commands.items()
        ),
        options={"kind": "reduction_server" if reducers else "all_reduce", "on_worker_loss": how, **options},
        on_worker_loss=how,
        min_replicas={"worker": least},
        max_restarts=max_restarts,
        failure_grace_s=0.2,
    )
    return await cluster.end(END_S)


def lines(host: Host, worker: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in host.output(f"worker-{worker}").splitlines() if line.startswith("{")]


def check_survivors(host: Host, survivors: list[int], steps: int) -> None:
    """Checks that all survivors end with the parameters that a single process computes."""
    results = [lines(host, worker)[-1] for worker in survivors]
    assert len({result["digest"] for result in results}) == 1
    assert all(result["far"] <= 1e-12 for result in results)
    histories = [[line["ranks"] for line in lines(host, worker)[:-1]] for worker in survivors]
    assert all(history == histories[0] and len(history) == steps for history in histories)


@pytest.mark.proof
def test_survivors_of_a_worker_and_of_the_chief_continue_as_one_process_would(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 4, 14, "2:4:backward", "0:9:step")
        states = {one["name"]: one["state"] for one in ended["replicas"]}
        assert ended["state"] == "succeeded", ended
        assert states == {"worker-0": "failed", "worker-1": "succeeded", "worker-2": "failed", "worker-3": "succeeded"}
        check_survivors(a, [1, 3], 14)
        ranks = [line["ranks"] for line in lines(a, 1)[:-1]]
        assert ranks == [[0, 1, 2, 3]] * 4 + [[0, 1, 3]] * 6 + [[1, 3]] * 4
        assert [line["chief"] for line in lines(a, 1)[:-1]] == [False] * 9 + [True] * 5
        memberships = [event for event in a.journal() if event["event"] == "membership"]
        assert [(one["number"], one["members"], one["lost"]) for one in memberships] == [
            (1, ["worker-0", "worker-1", "worker-3"], ["worker-2"]),
            (2, ["worker-1", "worker-3"], ["worker-0", "worker-2"]),
        ]
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("arguments", "reducers"),
    [
        ([], 0),
        pytest.param(["like-nccl"], 0, marks=pytest.mark.proof),
        pytest.param([], 1, marks=pytest.mark.proof),
    ],
    ids=["gloo", "like NCCL", "reducers"],
)
def test_averages_that_some_workers_already_use_are_copied_to_the_others(
    run_scenario: RunScenario, arguments: list[str], reducers: int
) -> None:
    """In step 5, worker 1 gets the averages from another. In step 9, all workers that have them are lost."""

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        kills = ["3:5:step", "1:5:miss", "2:9:step", "1:9:miss", "0:9:copy"]
        ended = await train(cluster, a, 4, 12, *arguments, *kills, reducers=reducers)
        assert ended["state"] == "succeeded", ended
        check_survivors(a, [1], 12)
        ranks = [line["ranks"] for line in lines(a, 1)[:-1]]
        assert ranks == [[0, 1, 2, 3]] * 6 + [[0, 1, 2]] * 3 + [[1]] * 3
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


def check_all_are_equal(host: Host, workers: int) -> list[list[int]]:
    """Checks that all workers end with the parameters that a single process computes.

    Returns the ranks that took part in each step.
    """
    results = [lines(host, worker)[-1] for worker in range(workers)]
    assert len({result["digest"] for result in results}) == 1
    assert all(result["far"] <= 1e-12 for result in results)
    return [line["ranks"] for line in lines(host, workers - 1) if "ranks" in line]


def memberships_of(host: Host) -> list[tuple[int, list[str], list[str]]]:
    events = [event for event in host.journal() if event["event"] == "membership"]
    return [(one["number"], one["members"], one["lost"]) for one in events]


def test_a_lost_worker_returns_with_the_state_of_a_peer(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 5, "returns=1", "1:4:backward", max_restarts=1)
        assert ended["state"] == "succeeded", ended
        assert {one["name"]: one["state"] for one in ended["replicas"]} == dict.fromkeys(
            ("worker-0", "worker-1", "worker-2"), "succeeded"
        )
        history = check_all_are_equal(a, 3)
        assert history[:5] == [*[[0, 1, 2]] * 4, [0, 2]]
        assert history[-5:] == [[0, 1, 2]] * 5
        assert memberships_of(a) == [
            (1, ["worker-0", "worker-2"], ["worker-1"]),
            (2, ["worker-0", "worker-1", "worker-2"], []),
        ]
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]
        assert all(line["seed"] == 17 for line in lines(a, 1) if "seed" in line)
        assert [
            line for rank in range(3) for line in a.output(f"worker-{rank}").splitlines() if "Warning" in line
        ] == []

    run_scenario(scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        ["returns=1", "1:4:backward"],
        pytest.param(["returns=2", "1:3:forward", "0:5:step"], marks=pytest.mark.proof),
        pytest.param(["returns=2", "1:2:60", "2:4:join"], marks=pytest.mark.proof),
    ],
    ids=" ".join,
)
def test_gradients_that_take_the_way_of_nccl_are_used_only_if_none_was_aborted(
    run_scenario: RunScenario, arguments: list[str]
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 5, "like-nccl", *arguments, max_restarts=2)
        assert ended["state"] == "succeeded", ended
        assert check_all_are_equal(a, 3)[-5:] == [[0, 1, 2]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.proof
def test_a_worker_returns_to_its_share_of_the_data_in_the_epoch_of_the_others(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, max_restarts=1, program=EPOCHS)
        assert ended["state"] == "succeeded", ended
        outputs = [lines(a, worker) for worker in range(3)]
        assert len({output[-1]["digest"] for output in outputs}) == 1
        steps = [{(one["epoch"], tuple(one["samples"])): one for one in output[:-1]} for output in outputs]
        for (epoch, samples), step in steps[1].items():
            share = epoch_share(1, epoch)
            at = share.index(samples)
            others = [steps[rank][epoch, epoch_share(rank, epoch)[at]] for rank in (0, 2)]
            assert all(other["lr"] == step["lr"] and other["ranks"] == step["ranks"] for other in others)
        last = outputs[1][-2]["epoch"]
        assert [samples for epoch, samples in steps[1] if epoch == last] == epoch_share(1, last)

    run_scenario(scenario)


def epoch_share(rank: int, epoch: int) -> list[tuple[int, ...]]:
    """Returns the batches that torch's sampler assigns to a worker in an epoch of the program."""
    sampler = DistributedSampler(range(48), 3, rank, shuffle=True)
    sampler.set_epoch(epoch)
    numbers = list(sampler)
    return [tuple(numbers[start : start + 4]) for start in range(0, len(numbers), 4)]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("arguments", "returned"),
    [
        (["returns=1", "0:3:step"], [0]),
        (["returns=2", "1:3:forward", "2:5:backward"], [1, 2]),
        (["returns=1", "1:3:forward", "1:1:back"], [1]),
        (["returns=1", "1:3:forward", "1:1:other"], [1]),
    ],
    ids=["the chief", "two workers", "one that is lost again in the transfer", "one whose model differs at first"],
)
def test_lost_workers_return(run_scenario: RunScenario, arguments: list[str], returned: list[int]) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 5, *arguments, max_restarts=2)
        assert ended["state"] == "succeeded", ended
        history = check_all_are_equal(a, 3)
        assert history[-5:] == [[0, 1, 2]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]
        reasons = [event.get("reason", "") for event in a.journal() if event["event"] == "replica_state"]
        refusal = "`more.weight` (1×1 float32, in no parameter group) exists here, but not there"
        assert any(refusal in reason for reason in reasons) == (arguments[-1] == "1:1:other")
        assert all(f"worker-{rank} is back at step" in a.output(f"worker-{rank}") for rank in returned)
        assert lines(a, 0)[-2]["chief"]

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kills", "survivors"),
    [
        (["1:3:forward", "2:3:backward"], [0, 3]),
        (["1:3:step", "0:3:step"], [2, 3]),
        (["1:3:backward", "3:0:join"], [0, 2]),
        (["0:2:forward", "1:4:forward", "2:6:forward"], [3]),
    ],
    ids=["two at once", "two after a step", "one while it joins", "all but one"],
)
def test_several_losses(run_scenario: RunScenario, kills: list[str], survivors: list[int]) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 4, 10, *kills)
        assert ended["state"] == "succeeded", ended
        check_survivors(a, survivors, 10)

    run_scenario(scenario)


@pytest.mark.proof
def test_without_losses_the_result_is_bitwise_that_of_all_reduce(tmp_path: Path) -> None:
    digests = []
    for how in ("restart", "continue"):
        (tmp_path / how).mkdir()
        cluster = KeeperCluster(tmp_path / how, os.urandom(6).hex())

        async def scenario(cluster: KeeperCluster = cluster, how: str = how) -> None:
            (a,) = await cluster.add("gpu-a")
            ended = await train(cluster, a, 3, 20, how=how)
            assert ended["state"] == "succeeded", ended
            check_survivors(a, [0, 1, 2], 20)
            digests.append(lines(a, 0)[-1]["digest"])

        try:
            asyncio.run(scenario())
        finally:
            cluster.close()
    assert digests[0] == digests[1]


@pytest.mark.proof
def test_below_min_replicas_the_run_ends_as_without_the_setting(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 200, "1:3:forward", "2:6:forward", least=2)
        assert ended["state"] == "failed"
        assert "SIGKILL" in ended["reason"]
        assert len([event for event in a.journal() if event["event"] == "membership"]) == 1

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(8))
def test_workers_that_are_killed_at_random_return(run_scenario: RunScenario, seed: int) -> None:
    random = Random(seed)
    killed = random.sample(range(4), 2)
    places = [random.choice(["forward", "backward", "step", str(random.randrange(200))]), "join"]
    kills = [f"{rank}:{random.randrange(2, 12)}:{place}" for rank, place in zip(killed, places, strict=True)]
    if random.random() < 0.5:
        kills.append(f"{killed[0]}:1:back")

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 4, 5, f"returns={len(killed)}", *kills, max_restarts=2)
        assert ended["state"] == "succeeded", (kills, ended)
        assert check_all_are_equal(a, 4)[-5:] == [[0, 1, 2, 3]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


def test_workers_whose_gradients_reducers_sum_continue_without_a_lost_one(run_scenario: RunScenario) -> None:
    """Both the reducer and the workers sum parts of the gradients. Other processes take over the lost worker's part."""

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 8, "1:4:backward", reducers=1)
        states = {one["name"]: one["state"] for one in ended["replicas"]}
        assert ended["state"] == "succeeded", ended
        assert (states["worker-1"], states["reducer-0"]) == ("failed", "succeeded")
        check_survivors(a, [0, 2], 8)
        assert "the exchange goes through the reducers and the workers, which all sum a share" in a.output("worker-0")
        assert [line["ranks"] for line in lines(a, 0)[:-1]] == [[0, 1, 2]] * 4 + [[0, 2]] * 4
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("workers", "reducers", "order", "kills", "survivors"),
    [
        (4, 4, "rank", ["2:4:backward", "0:9:step"], [1, 3]),
        (4, 2, "rank", ["2:4:backward", "0:9:step"], [1, 3]),
        (4, 2, "arrival", ["1:3:forward", "2:3:backward"], [0, 3]),
        (4, 1, "rank", ["1:3:backward", "3:0:join"], [0, 2]),
        (4, 1, "rank", ["0:2:forward", "1:4:backward", "2:6:step"], [3]),
        (2, 1, "rank", ["0:3:backward"], [1]),
    ],
    ids=["reducers", "mixed, then reducers", "two at once", "one while it joins", "all but one", "the ring"],
)
def test_survivors_whose_gradients_reducers_sum_continue_as_one_process_would(
    run_scenario: RunScenario, workers: int, reducers: int, order: str, kills: list[str], survivors: list[int]
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, workers, 14, *kills, reducers=reducers, reduction_order=order)
        assert ended["state"] == "succeeded", ended
        check_survivors(a, survivors, 14)
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("reducers", "arguments"),
    [
        (1, ["returns=1", "1:4:backward"]),
        (3, ["returns=1", "0:3:step"]),
        (2, ["returns=2", "1:3:forward", "2:5:backward"]),
        (1, ["returns=1", "1:3:forward", "1:1:back"]),
    ],
    ids=["mixed", "the chief", "two workers", "one that is lost again in the transfer"],
)
def test_lost_workers_return_to_reducers(run_scenario: RunScenario, reducers: int, arguments: list[str]) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(cluster, a, 3, 5, *arguments, max_restarts=2, reducers=reducers)
        assert ended["state"] == "succeeded", ended
        assert check_all_are_equal(a, 3)[-5:] == [[0, 1, 2]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


DYING_REDUCER = """
import os, signal
import torchyard_roles
from torchyard_roles.strategies.reduction_server.reducer import Reducer

add = Reducer._add

def add_or_die(self, current, chunk, rank, at, *rest, **named):
    if at[0] == 3 and os.environ["TORCHYARD_GENERATION"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, current, chunk, rank, at, *rest, **named)

Reducer._add = add_or_die
torchyard_roles.join()
"""


@pytest.mark.proof
@pytest.mark.parametrize("reducers", [1, 3])
def test_a_reducer_and_a_worker_that_are_lost_in_one_step_both_return(run_scenario: RunScenario, reducers: int) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(
            cluster,
            a,
            3,
            5,
            "returns=1",
            "1:3:backward",
            max_restarts=1,
            reducers=reducers,
            reducer=[sys.executable, "-c", DYING_REDUCER],
        )
        assert ended["state"] == "succeeded", ended
        assert check_all_are_equal(a, 3)[-5:] == [[0, 1, 2]] * 5
        restarts = {event["gang"] for event in a.journal() if event["event"] == "gang_restart"}
        assert restarts == {f"reducer-{number}" for number in range(reducers)}

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(8))
def test_workers_that_are_killed_at_random_return_to_reducers(run_scenario: RunScenario, seed: int) -> None:
    random = Random(100 + seed)
    killed = random.sample(range(4), 2)
    places = [random.choice(["forward", "backward", "step", str(random.randrange(200))]), "join"]
    kills = [f"{rank}:{random.randrange(2, 12)}:{place}" for rank, place in zip(killed, places, strict=True)]

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        ended = await train(
            cluster, a, 4, 5, f"returns={len(killed)}", *kills, max_restarts=2, reducers=random.choice([1, 2])
        )
        assert ended["state"] == "succeeded", (kills, ended)
        assert check_all_are_equal(a, 4)[-5:] == [[0, 1, 2, 3]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.proof
@pytest.mark.parametrize("reducers", [1, 3])
def test_without_losses_the_result_is_bitwise_that_of_reduction_server(tmp_path: Path, reducers: int) -> None:
    digests = []
    for how in ("restart", "continue"):
        (tmp_path / how).mkdir()
        cluster = KeeperCluster(tmp_path / how, os.urandom(6).hex())

        async def scenario(cluster: KeeperCluster = cluster, how: str = how) -> None:
            (a,) = await cluster.add("gpu-a")
            ended = await train(cluster, a, 3, 20, how=how, reducers=reducers)
            assert ended["state"] == "succeeded", ended
            check_survivors(a, [0, 1, 2], 20)
            digests.append(lines(a, 0)[-1]["digest"])

        try:
            asyncio.run(scenario())
        finally:
            cluster.close()
    assert digests[0] == digests[1]


KILLS = 200
RUNS = 40
STEPS = 30
SOAK = ROOT / "docs" / "proof" / "lost-workers.md"


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_200_kills(tmp_path: Path) -> None:
    """In each run, all workers but one are killed. The test writes a table of the longest pauses between two steps."""
    rows = []
    for run in range(RUNS):
        random = Random(run)
        workers = KILLS // RUNS + 1
        survivor = random.randrange(workers)
        kills = []
        for worker in (each for each in range(workers) if each != survivor):
            place = random.choice(["forward", "backward", "step", str(random.randrange(200)), "join"])
            kills.append(f"{worker}:{random.randrange(2, STEPS - 5)}:{place}")
        if all(kill.endswith("join") for kill in kills):
            kills[0] = kills[0].replace("join", "forward")
        folder = tmp_path / str(run)
        folder.mkdir()
        cluster = KeeperCluster(folder, os.urandom(6).hex())

        async def scenario(
            cluster: KeeperCluster = cluster, kills: list[str] = kills, survivor: int = survivor
        ) -> None:
            (a,) = await cluster.add("gpu-a")
            ended = await train(cluster, a, len(kills) + 1, STEPS, *kills)
            assert ended["state"] == "succeeded", (kills, ended)
            check_survivors(a, [survivor], STEPS)
            memberships = [event for event in a.journal() if event["event"] == "membership"]
            assert len(memberships[-1]["lost"]) == len(kills), kills
            times = [line["at"] for line in lines(a, survivor)[:-1]]
            gap = max(after - before for before, after in pairwise(times))
            assert not cluster.left()
            rows.append(f"| {', '.join(kills)} | {len(memberships)} | {gap:.2f} |")

        try:
            asyncio.run(scenario())
        finally:
            cluster.close()
    SOAK.write_text(
        "# Lost workers\n\nWritten by `make proof` (`tests/agent/keeper/test_lost_workers.py`). "
        f"{RUNS} runs of {KILLS // RUNS + 1} workers with `on_worker_loss: continue`, in which {KILLS} workers were "
        "killed with SIGKILL. Kills are rank:step:place; a number is milliseconds after the step's beginning. In each "
        f"run the last worker took all {STEPS} steps, its parameters equal those of one process within 1e-12, and no "
        "process was left.\n\n| kills | memberships | longest time between two steps, s |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n",
        encoding="utf-8",
    )
