"""Tests of the text example under each strategy: its validation loss must equal that of a single process or of the
strategy's definition.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from benchmarks.training import learning

from tests.end_to_end.running import REPOSITORY
from tests.end_to_end.training.example_runs import Place
from tests.end_to_end.training.test_examples import this_computer
from tests.fork_server import ForkServer
from tests.lab.commands import Commands

pytestmark = [pytest.mark.lab, pytest.mark.train]

TEXT = REPOSITORY / "examples" / "text"
TOPOLOGIES = sorted(path.stem for path in TEXT.glob("*.yaml"))
SYNCHRONOUS = ("all-reduce", "reduction-server", "sandblaster")
SAMPLE = ("single-process", "all-reduce", "diloco")
"""The topologies that run by default. `make proof` runs the others, too."""
STEPS, BATCH, INNER_STEPS, WARMUP_STEPS = 14, 4, 5, 4
"""A short run: the steps of each of two workers, the text windows per step, and the inner and warm-up steps of DiLoCo.
"""
UNTRAINED_LOSS = 4.6
"""The loss before training, when each of 103 characters has the same probability."""


@pytest.fixture(scope="module")
def place(
    torch_for_hosts: ForkServer, _commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with this_computer(tmp_path_factory.mktemp("here"), torch_for_hosts, _commands) as here:
        yield here


@pytest.fixture(scope="module")
def loss_of(place: Place) -> Callable[[str], float]:
    """Returns a function that returns the validation loss of a topology's chief. Each topology runs at most once."""
    return cache(partial(validation_loss, place))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Makes torch compute in one thread. On a busy machine, several threads would wait for each other and be much
    slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def validation_loss(place: Place, name: str) -> float:
    single = name == "single-process"
    settings: dict[str, Any] = {
        "program.args": ["--windows", str(2 * STEPS * BATCH), "--batch-size", str(BATCH * (1 + single))]
    }
    if name in ("diloco", "local-sgd"):
        settings["strategy.inner_steps"] = INNER_STEPS
    if name == "diloco":
        settings["strategy.warmup_steps"] = WARMUP_STEPS
    options = [f"--set={path}={json.dumps(value)}" for path, value in settings.items()]
    done = place.desktop.torchyard("run", TEXT / f"{name}.yaml", *options, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = re.findall(r"validation loss ([0-9.]+)$", done.stdout, re.MULTILINE)
    return float(found)


def the_script() -> ModuleType:
    """Imports the example's script, whose model and data the definition of DiLoCo uses."""
    spec = importlib.util.spec_from_file_location("text_example", TEXT / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def defined_loss(*, outer_lr: float, outer_momentum: float, warmup_steps: int) -> float:
    """Returns the validation loss of DiLoCo's definition: two models, and torch.optim.SGD as the outer optimizer."""
    script = the_script()
    torch.manual_seed(0)
    train, validation = script.load(2 * STEPS * BATCH, 0)
    outer = script.Transformer()
    groups = [deepcopy(outer), deepcopy(outer)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.002) for model in groups]
    plain = torch.optim.SGD(outer.parameters(), lr=1.0)
    nesterov = torch.optim.SGD(outer.parameters(), lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(groups, optimizers, strict=True)):
            inputs, targets = train[range(rank, len(train), 2)[step * BATCH : (step + 1) * BATCH]]
            optimizer.zero_grad()
            script.cross_entropy(model, inputs, targets).backward()
            optimizer.step()
        after_warmup = step + 1 - warmup_steps
        if after_warmup <= 0 or after_warmup % INNER_STEPS == 0 or step + 1 == STEPS:
            for parameter, *each in zip(*(model.parameters() for model in (outer, *groups)), strict=True):
                parameter.grad = parameter.detach() - sum(one.detach() for one in each) / len(each)
            (plain if after_warmup <= 0 else nesterov).step()
            for model in groups:
                model.load_state_dict(outer.state_dict())
    loss: float = script.evaluate(outer, validation)
    return loss


def test_there_is_a_topology_for_every_way_to_train() -> None:
    assert set(TOPOLOGIES) == {"single-process", *SYNCHRONOUS, "downpour", "hogwild", "local-sgd", "diloco"}


def with_sample(names: Iterable[str]) -> list[ParameterSet]:
    """Returns the names as test parameters. Names outside SAMPLE run only in `make proof`."""
    return [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.proof) for name in names]


@pytest.mark.parametrize("name", with_sample(TOPOLOGIES))
def test_the_model_learns(loss_of: Callable[[str], float], name: str) -> None:
    """This is the only test of the asynchronous strategies here, because their results depend on timing."""
    assert loss_of(name) < 0.9 * UNTRAINED_LOSS


@pytest.mark.parametrize("name", with_sample(SYNCHRONOUS))
def test_synchronous_strategies_equal_one_process_with_all_windows(loss_of: Callable[[str], float], name: str) -> None:
    assert loss_of(name) == pytest.approx(loss_of("single-process"), abs=2e-5)


@pytest.mark.proof
@pytest.mark.usefixtures("one_thread")
def test_local_sgd_equals_its_definition(loss_of: Callable[[str], float]) -> None:
    assert loss_of("local-sgd") == pytest.approx(defined_loss(outer_lr=1, outer_momentum=0, warmup_steps=0), abs=2e-5)


@pytest.mark.usefixtures("one_thread")
def test_diloco_equals_its_definition(loss_of: Callable[[str], float]) -> None:
    defined = defined_loss(outer_lr=0.7, outer_momentum=0.9, warmup_steps=WARMUP_STEPS)
    assert loss_of("diloco") == pytest.approx(defined, abs=2e-5)


@pytest.mark.proof
def test_diloco_learns_as_well_as_data_parallel_training(place: Place, tmp_path: Path) -> None:
    """A short form of `python -m benchmarks learning`, which trains for 1,000 steps and allows a difference of 1 %."""
    sample = {"kind": "diloco", "inner_steps": 5, "warmup_steps": 20}
    windows = 40 * learning.GROUPS * 16
    data_parallel = learning.train(place.desktop, tmp_path, learning.ARMS["DDP"], 0, windows)
    assert learning.train(place.desktop, tmp_path, sample, 0, windows) < 1.05 * data_parallel


def test_no_topology_needs_another_script() -> None:
    scripts = {re.search(r"^  script: (.*)$", (TEXT / f"{name}.yaml").read_text(), re.MULTILINE) for name in TOPOLOGIES}
    assert {found and found[1] for found in scripts} == {"train.py"}
