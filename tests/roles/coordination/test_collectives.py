"""Tests of the collective calls of all trainers (mean, gather, any, barrier and broadcast) under every strategy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.processes import ROOT, Start, Train, free_port, output_of, trainer_environment

pytestmark = pytest.mark.train

PROGRAM = ROOT / "tests" / "roles" / "programs" / "collectives.py"


@pytest.fixture
def store() -> Iterator[Served]:
    served = serve_in_a_process()
    yield served
    served.end()


def expected(world_size: int) -> dict[str, Any]:
    ranks = range(world_size)

    def mean(numbers: list[float]) -> float:
        return sum(numbers) / world_size

    middle = mean(list(ranks))
    return {
        "half": ["torch.bfloat16", [[1.0 + middle] * 3] * 2, False],
        "loss": pytest.approx(mean([0.1 * (rank + 1) for rank in ranks]), abs=1e-15),
        "hits": ["torch.float64", 10 + middle],
        "pair": [middle, 1.0],
        "gathered": [[rank, f"é{rank}", list(range(rank + 1)), "(None, 1j)"] for rank in ranks],
        "large": [30_000, middle, middle],
        "sent": [0.5, [3, 1]],
        "any": [world_size > 1, False],
        "metric": pytest.approx([91 / 7, 7]),
        "metric of few": pytest.approx([0.5, 2]),
        "many": pytest.approx(20 * middle),
    }


def check(outputs: list[str]) -> None:
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    for each in found:
        assert each == expected(len(found))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("arguments", [(), ("defaults",), ("own",)])
def test_in_a_torch_world_of_all_trainers_or_at_its_master(train: Train, arguments: tuple[str, ...]) -> None:
    check(train(PROGRAM, 3, *arguments))


def test_with_strategy_none(train: Train) -> None:
    outputs = [json.loads(output) for output in train(PROGRAM, 2, TORCHYARD_STRATEGY="none")]
    for each in outputs:  # Without a strategy, each process evaluates all data.
        assert each == {**expected(2), "metric": [91 / 7, 14], "metric of few": [0.5, 4]}


def test_under_plain_torchrun(start: Start) -> None:
    port = free_port()
    processes = []
    for rank in range(2):
        whole = trainer_environment(rank, 2, port)
        own = {name: value for name, value in whole.items() if not name.startswith("TORCHYARD_")}
        processes.append(start(PROGRAM, environment=own))
    check([output_of(process) for process in processes])


def test_in_one_process_and_in_an_evaluator(start: Start) -> None:
    evaluator = {**trainer_environment(0, 3, free_port()), "TORCHYARD_ROLE": "evaluator"}
    del evaluator["RANK"], evaluator["TORCHYARD_RANK"]
    processes = [start(PROGRAM), start(PROGRAM, environment={**evaluator, "TORCHYARD_REPLICA": "evaluator-0"})]
    alone, evaluated = (json.loads(output_of(process)) for process in processes)
    assert alone == expected(1)
    assert evaluated == {**expected(1), "sent": None}  # Only the chief sends, and an evaluator is not the chief.


def through_the_store(
    store: Served, strategy: str, *, groups: int, ps: list[list[Any]] | None = None
) -> dict[str, str]:
    """Returns the environment that three trainers share. They form either three worker groups or one."""
    trainers = [[f"worker-{rank}", "127.0.0.1", free_port(), 1, rank if groups > 1 else 0] for rank in range(3)]
    return {
        "TORCHYARD_STRATEGY": strategy,
        "TORCHYARD_OPTIONS": json.dumps({"kind": strategy}),
        "TORCHYARD_GROUPS": str(groups),
        "TORCHYARD_PEERS": json.dumps({"ps": ps or [], "reducer": [], "trainers": trainers}),
        "TORCHYARD_STORE": store.address,
        "TORCHYARD_KEY": KEY.hex(),
    }


def group_environment(rank: int, groups: int) -> dict[str, str]:
    return {
        **trainer_environment(rank, 3, 1),
        "TORCHYARD_GROUP": str(rank if groups > 1 else 0),
        "TORCHYARD_GROUP_RANK": "0" if groups > 1 else str(rank),
        "TORCHYARD_GROUP_SIZE": "1" if groups > 1 else "3",
    }


@pytest.mark.parametrize("strategy", ["sandblaster", "downpour"])
def test_with_parameter_servers(start: Start, store: Served, strategy: str) -> None:
    from tests.roles.strategies.parameter_server.served_run import Run

    groups = 3 if strategy == "downpour" else 1
    run = Run(workers=3, strategy=strategy, groups=groups, key=KEY)
    with run.serving():
        ps = [[place.name, place.address, place.port] for place in run.peers.ps]
        common = through_the_store(store, strategy, groups=groups, ps=ps)
        processes = [start(PROGRAM, environment={**group_environment(rank, groups), **common}) for rank in range(3)]
        check([output_of(process) for process in processes])


def test_between_groups_of_hogwild(start: Start, store: Served) -> None:
    common = through_the_store(store, "hogwild", groups=3)
    processes = [start(PROGRAM, "defaults", environment={**group_environment(rank, 3), **common}) for rank in range(3)]
    check([output_of(process) for process in processes])


MISMATCHED = "import torchyard_roles as ty; c = ty.join(); c.barrier() if c.is_chief else c.mean(1)"
ALONE_IN_IT = "import torchyard_roles as ty; c = ty.join()\nif c.is_chief: c.mean(1)"


@pytest.mark.parametrize("strategy", ["all_reduce", "hogwild"])
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (MISMATCHED, r"UsageProblem: worker-\d called (barrier|mean)\(\), but worker-\d called (barrier|mean)\(\)"),
        (ALONE_IN_IT, r"PeerLost: .* is gone: it has"),
    ],
)
def test_calls_that_do_not_match_end_with_a_sentence(
    start: Start, store: Served, strategy: str, script: str, sentence: str
) -> None:
    import re

    port = free_port()
    groups = 3 if strategy == "hogwild" else 1
    common = {**through_the_store(store, strategy, groups=groups), "MASTER_PORT": str(port)}
    processes = [start("-c", script, environment={**group_environment(rank, groups), **common}) for rank in range(3)]
    chief, _ = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert re.search(sentence, chief), chief
