"""Tests of the strategy that docs/how-to-add-a-strategy.md describes, with real processes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.roles.processes import ROOT, Start, Train, output_of
from tests.roles.programs import averages
from torchyard_roles.environment import Environment
from torchyard_roles.errors import UsageProblem
from torchyard_roles.strategies import registry
from torchyard_roles.strategies.single_process import SingleProcess
from torchyard_roles.strategies.strategy import Strategy

pytestmark = pytest.mark.train

EXAMPLE = ROOT / "examples" / "local_sgd"
PROGRAM = ROOT / "tests" / "roles" / "programs" / "averages.py"
EVERY = 8


def alone(workers: list[dict[str, Any]]) -> tuple[list[list[list[float]]], list[float]]:
    """Computes the strategy's definition in one process.

    Returns:
        The parameters of each worker before each step, and the parameters at the end.
    """
    dataset = averages.data()
    models = [averages.model_of() for _ in workers]
    for model in models:
        torch.nn.utils.vector_to_parameters(torch.tensor(workers[0]["before"][0]).double(), model.parameters())
    optimizers = [averages.optimizer_of(model) for model in models]
    before: list[list[list[float]]] = [[] for _ in workers]
    for number in range(averages.STEPS):
        if number and number % EVERY == 0:
            take_the_mean(models)
        for seen, model, optimizer, worker in zip(before, models, optimizers, workers, strict=True):
            seen.append(averages.flat(model))
            inputs, targets, _ = dataset[worker["fed"][number]]
            averages.step(model, optimizer, inputs, targets)
    take_the_mean(models)
    return before, averages.flat(models[0])


@torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
def take_the_mean(models: list[torch.nn.Module]) -> None:
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack(parameters).mean(dim=0)
        for parameter in parameters:
            parameter.copy_(mean)


def test_the_example_matches_its_definition(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    workers = [json.loads(output) for output in train(PROGRAM, 2)]
    before, after = alone(workers)
    for worker, expected in zip(workers, before, strict=True):
        assert torch.allclose(torch.tensor(worker["before"]), torch.tensor(expected), rtol=0, atol=1e-12)
        assert torch.allclose(torch.tensor(worker["after"]), torch.tensor(after), rtol=0, atol=1e-12)
    first, second = (worker["before"] for worker in workers)
    assert [number for number in range(averages.STEPS) if first[number] == second[number]] == [0, 8, 16]


def test_with_a_strategy_of_its_own_a_script_runs_by_hand_too(start: Start) -> None:
    output = output_of(start(EXAMPLE / "train.py"))
    assert float(output.split()[-1]) > 0.85


@pytest.mark.parametrize("kind", ["sandblaster", "downpour", "reduction_server", "hogwild", "diloco"])
def test_it_is_refused_where_servers_or_groups_would_wait_in_vain(kind: str) -> None:
    with pytest.raises(UsageProblem, match=f"the place of all_reduce, but the topology says {kind}"):
        registry.choose(Environment(strategy=kind, world_size=2), own)


def test_processes_that_do_not_train_take_no_part_in_it() -> None:
    for environment in (Environment(role="evaluator", rank=None, world_size=2), Environment(world_size=1)):
        assert isinstance(registry.choose(environment, own), SingleProcess)


def own(environment: Environment) -> Strategy:
    raise AssertionError("made in vain")


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to-add-a-strategy.md").read_text(encoding="utf-8")
    for name in ("local_sgd.py", "two-workers.yaml"):
        assert (EXAMPLE / name).read_text(encoding="utf-8") in page, name
