"""Tests of the state that a returning worker receives from a peer: its structure, large tensors, and errors."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchyard_roles.checkpoints import peer_state
from torchyard_roles.errors import UsageProblem

LARGE = peer_state.LARGE // 4
"""The number of float32 elements of the smallest tensor that counts as large."""


def contents(**model: Any) -> dict[str, Any]:
    state = {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(LARGE)}}
    settings = torch.optim.Adam([torch.nn.Parameter(torch.zeros(LARGE))], betas=(0.9, 0.99)).state_dict()
    return {
        "model.pt": OrderedDict(model),
        "optimizer.pt": {**settings, "state": state},
        "extra.pt": {"stateful": {"rng": [torch.arange(LARGE), ("text", torch.ones(LARGE))]}, "models": {}},
    }


def encode(found: dict[str, Any]) -> list[torch.Tensor]:
    saver: Any = SimpleNamespace(contents=lambda *, copy: found)
    strategy: Any = SimpleNamespace(exchange_state=lambda: {"scale": torch.full((LARGE,), 2.0)})
    return peer_state.encode(saver, strategy, 7)


def test_the_state_is_restored_exactly() -> None:
    torch.manual_seed(1)
    weights = {"a": torch.randn(64, LARGE // 64), "small": torch.randn(3), "half": torch.randn(2 * LARGE).bfloat16()}
    weights |= {"column": torch.randn(LARGE, 2)[:, 0], "empty": torch.empty(0), "flag": torch.tensor(True)}
    before = contents(**weights)
    moments = before["optimizer.pt"]["state"][0]["exp_avg"]
    received = [each.clone() for each in encode(before)]
    after = peer_state.decode(received)
    assert after.step == 7
    assert list(after.model) == list(weights)
    for name, tensor in weights.items():
        assert torch.equal(after.model[name], tensor)
        assert after.model[name].dtype == tensor.dtype
    assert torch.equal(after.exchange["scale"], torch.full((LARGE,), 2.0))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(LARGE))], betas=(0.9, 0.99))
    after.resumed.into(optimizer, torch.device("cpu"))
    (state,) = optimizer.state.values()
    assert torch.equal(state["exp_avg"], moments)
    assert state["step"] == 3
    numbers, (text, ones) = after.resumed.stateful["rng"]
    assert torch.equal(numbers, torch.arange(LARGE))
    assert text == "text"
    assert torch.equal(ones, torch.ones(LARGE))


def test_large_tensors_are_sent_from_their_own_memory() -> None:
    weight = torch.randn(10 * LARGE)
    structure, *large = encode(contents(weight=weight))
    assert weight.data_ptr() in [each.data_ptr() for each in large]
    assert structure.numel() < weight.nbytes / 10


def test_the_reason_why_a_state_cannot_be_sent_reaches_the_worker() -> None:
    def refuse(*, copy: bool) -> dict[str, Any]:
        raise UsageProblem("the optimizer's state is a Socket, which a checkpoint cannot hold.")

    saver: Any = SimpleNamespace(contents=refuse)
    strategy: Any = SimpleNamespace(exchange_state=lambda: {"scale": torch.zeros(LARGE)})
    received = peer_state.encode(saver, strategy, 7)
    with pytest.raises(UsageProblem, match=r"could not be sent to this worker: .* is a Socket"):
        peer_state.decode(received)
