"""Tests of parameter servers with scripts that change torch's process-wide settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import batches, momentum

pytestmark = pytest.mark.train

CPU = torch.device("cpu")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def model_of() -> nn.Module:
    with SEEDING:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 3)).double()


def whole_batches(model: nn.Module, optimizer: torch.optim.Optimizer, data: list) -> None:
    """Trains in one process with the mean of the gradients of both halves of a batch.

    Batch norm treats each half separately.
    """
    for inputs, targets in data:
        losses = [nn.functional.mse_loss(model(inputs[part::2]), targets[part::2]) for part in range(2)]
        (sum(losses) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["sandblaster", "downpour"])
@pytest.mark.parametrize(
    "setting",
    [
        lambda: default_dtype(torch.float64),
        lambda: default_dtype(torch.bfloat16),
        deterministic,
        lambda: torch.autograd.set_detect_anomaly(True),
    ],
    ids=["default dtype float64", "default dtype bfloat16", "deterministic algorithms", "anomaly mode"],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_the_result_is_the_same_under_what_the_script_has_set(setting: object, strategy: str) -> None:
    data = batches(6, 16)
    with setting():
        run = Run(2, 2, strategy=strategy)

        def act(rank: int) -> tuple[nn.Module, torch.Tensor]:
            served, model = run.worker(rank), model_of()
            model, optimizer = served.distribute(model, torch.optim.AdamW(model.parameters(), lr=0.01), CPU)
            for inputs, targets in data[:-1]:
                descend(model, optimizer, [(inputs, targets)], rank, 2)
                with torch.inference_mode():
                    model.eval()(inputs)
                model.train()
            nn.functional.mse_loss(model(data[-1][0][rank::2]), data[-1][1][rank::2]).backward()
            norm = served.clip_gradients(list(model.parameters()), 100.0)
            optimizer.step()
            served.leave()
            return model, norm

        with run.serving():
            (trained, norm), (other, _) = run.on_workers(act)
        expected = model_of()
        whole_batches(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), data)
    parameters = dict(trained.named_parameters())
    assert difference(parameters, dict(expected.named_parameters())) < 1e-12
    assert difference(trained.state_dict(), other.state_dict()) == 0
    assert norm.dtype == torch.float32


def test_a_default_device_of_the_script_s_is_not_the_exchange_s() -> None:
    """The script's default device is `meta`, on which the exchange's tensors would have no values."""
    run, data = Run(1, 2), batches(5, 8)
    with run.serving():
        served, model = run.worker(0), model_of()
        optimizer = momentum(model)
        torch.set_default_device("meta")
        try:
            model, optimizer = served.distribute(model, optimizer, CPU)
            descend(model, optimizer, data)
            nn.functional.mse_loss(model(data[0][0]), data[0][1]).backward()
            assert served.clip_gradients(list(model.parameters()), 100.0) > 0
            optimizer.step()
            served.leave()
        finally:
            torch.set_default_device(None)
    expected = model_of()
    descend(expected, momentum(expected), [*data, data[0]])
    assert difference(model.state_dict(), expected.state_dict()) < 1e-12


def test_several_backward_passes_and_sparse_gradients() -> None:
    from torchyard_roles.errors import UsageProblem

    run = Run(1, 1)
    with run.serving():
        served = run.worker(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
        model, optimizer = served.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), CPU)
        before = model[1].bias.detach().clone()
        for _ in range(3):
            model[1](torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert (before - model[1].bias).item() == 6
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(UsageProblem, match=r"gradient of 0\.weight is sparse.* sparse=False"):
            optimizer.step()
        served.abandon()
