"""Tests of steps with NaN or infinite gradients, in one process."""

from __future__ import annotations

import pytest
import torch

from torchyard_roles.errors import NotFinite
from torchyard_roles.strategies.finite_gradients import FiniteGradients, all_finite

pytestmark = pytest.mark.train

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


class Net(torch.nn.Module):
    """A model with one parameter per dtype, and with an empty and an unused parameter."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(7, dtype=each)) for each in KINDS)
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.to(device)

    def gradients(self, of_each: float = 1.0) -> None:
        for part in self.parts:
            part.grad = torch.full_like(part, of_each)
        self.empty.grad = torch.ones_like(self.empty)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_one_bad_number_of_any_kind_leaves_the_step_out(bad: float, kind: int) -> None:
    model = Net()
    optimizer = sgd(model)
    watching = FiniteGradients(model, optimizer, "skip")
    model.gradients()
    model.parts[kind].grad[6] = bad
    optimizer.step()
    assert (watching.step, watching.skipped) == (1, 1)
    assert all((part == 1).all() for part in model.parts)
    assert not optimizer.state
    model.gradients()
    optimizer.step()
    assert (watching.step, watching.skipped) == (2, 1)
    assert all((part == 0.5).all() for part in model.parts)


def test_what_is_as_large_or_as_small_as_can_be_is_finite_and_stays_as_it_is_bit_by_bit() -> None:
    model = torch.nn.ParameterList()
    expected = []
    for dtype in KINDS[:4]:
        limits = torch.finfo(dtype)
        values = torch.tensor([limits.max, limits.min, limits.tiny, limits.tiny / 4, -0.0, 0.0], dtype=dtype).repeat(9)
        model.append(torch.nn.Parameter(torch.zeros_like(values)))
        model[-1].grad = values.clone()
        expected.append(values)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    FiniteGradients(model, optimizer, "fail")
    optimizer.step()
    for parameter, values in zip(model, expected, strict=True):
        assert torch.equal(parameter.grad.view(torch.uint8), values.view(torch.uint8))


def test_the_error_names_step_and_parameter_and_counts_on_from_a_resumed_step() -> None:
    model = Net()
    optimizer = sgd(model)
    watching = FiniteGradients(model, optimizer, "fail")
    watching.step = 1200
    model.gradients()
    optimizer.step()
    model.parts[1].grad[0] = float("nan")
    with pytest.raises(
        NotFinite, match=r"step 1202 are NaN or infinite in 1 of 6 parameters, the first being parts\.1"
    ):
        optimizer.step()
    assert (model.parts[0] == 0.5).all()


def test_sparse_gradients_are_looked_at_too() -> None:
    model = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = FiniteGradients(model, optimizer, "skip")
    (model(torch.tensor([1, 1, 4])).sum() * float("inf")).backward()
    optimizer.step()
    assert watching.skipped == 1
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradscaler_that_skips_by_itself_is_left_to_it_under_fail(fused: bool) -> None:
    """If gradients are infinite, the scaler calls step() only of a fused optimizer, and passes it a flag."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    watching = FiniteGradients(model, optimizer, "fail")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = model.weight.detach().clone()
    for factor, changed in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight, before) is not changed
    assert scaler.get_scale() == 2.0**7
    assert watching.skipped == 0
    optimizer.zero_grad()
    (model(torch.ones(1, 3)).sum() * float("nan")).backward()
    with pytest.raises(NotFinite):
        optimizer.step()  # Here, step() is called directly and not by the scaler.


def test_one_bad_number_is_found_at_any_place_and_numbers_whose_sum_overflows_are_finite() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        limits = torch.finfo(dtype)
        large = [torch.full((count,), limits.max, dtype=dtype) for count in (7_000, 3, 1)]
        assert all_finite(large).item(), dtype
        assert not all_finite([torch.tensor([float("inf"), -float("inf")], dtype=dtype)]).item(), dtype
        for bad in (float("nan"), float("inf"), -float("inf")):
            for value in (limits.max, 1.0):
                for gradient, place in ((0, 0), (0, 6_999), (1, 2), (2, 0)):
                    spoilt = [torch.full_like(each, value) for each in large]
                    spoilt[gradient][place] = bad
                    assert not all_finite(spoilt).item(), (dtype, bad, value, gradient, place)


def test_finite_gradients_on_a_cpu_are_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*arguments: object) -> None:
        raise AssertionError("GradScaler's function writes all gradients")

    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", write)
    assert all_finite([torch.ones(8), torch.ones(3, dtype=torch.float64)]).item()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_one_bad_number_of_any_kind_is_found_at_any_place_and_the_largest_are_finite() -> None:
    for dtype in KINDS:
        limits = torch.finfo(dtype)
        large = [torch.full((count,), limits.max, dtype=dtype, device="cuda") for count in (70_000, 3, 1)]
        assert all_finite(large).item()
        for bad in (float("nan"), float("inf"), -float("inf")):
            for gradient, place in ((0, 0), (0, 69_999), (0, 40_000), (1, 2), (2, 0)):
                spoilt = [each.clone() for each in large]
                spoilt[gradient][place] = bad
                flag = all_finite(spoilt)
                assert flag.is_cuda
                assert not flag.item(), (dtype, bad, gradient, place)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_error_comes_one_step_later_or_when_asked_for_and_does_not_go_away() -> None:
    model = Net("cuda")
    optimizer = sgd(model)
    watching = FiniteGradients(model, optimizer, "fail")
    model.gradients(float("nan"))
    optimizer.step()
    for again in (watching.check, watching.check, optimizer.step):
        with pytest.raises(NotFinite, match="step 1 are NaN"):
            again()
