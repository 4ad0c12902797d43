"""Tests of dividing a model into fragments, and of the steps at which fragments are sent."""

from __future__ import annotations

import pytest
import torch

from torchyard_roles.exchange.quantization import WIRES, WireCodec
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.fragments import divide, steps_before
from torchyard_roles.strategies.diloco.outer_step import flats_of

pytestmark = pytest.mark.train


def tower(layers: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers)))


def test_fragments_take_equal_modules_in_turn() -> None:
    model = tower(8)
    found = divide([model], model.parameters(), 3)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [[names[id(each)] for each in part if each.dim() == 2] for part in found] == [
        ["0.weight", "3.weight", "6.weight"],
        ["1.weight", "4.weight", "7.weight"],
        ["2.weight", "5.weight"],
    ]


def test_fragments_are_similar_in_bytes_and_contain_each_parameter_once() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8 * (1 + number % 5), 32) for number in range(40)))
    model.append(model[3])
    alone = torch.nn.Parameter(torch.zeros(7))
    found = divide([model], [*model.parameters(), alone], 4)
    assert sorted(id(each) for part in found for each in part) == sorted(map(id, [*model.parameters(), alone]))
    sizes = [sum(each.nbytes for each in part) for part in found]
    assert max(sizes) - min(sizes) <= max(sum(each.nbytes for each in layer.parameters()) for layer in model)


def test_there_are_at_most_as_many_fragments_as_modules_with_trained_parameters() -> None:
    model = tower(3)
    model[1].requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    assert [len(part) for part in divide([model], trained, 8)] == [2, 2]
    assert divide([model], trained, 1) == [trained]


@pytest.mark.parametrize(("steps", "fragments"), [(50, 1), (50, 8), (7, 3), (4, 4)])
def test_each_fragment_is_sent_once_in_every_round_at_the_steps_of_the_definition(steps: int, fragments: int) -> None:
    at, sent = 0, []
    for number in range(3 * fragments):
        at += steps_before(number % fragments, fragments, steps)
        sent.append((number % fragments, at))
    expected = [
        (fragment, step)
        for step in range(1, 3 * steps + 1)
        for fragment in range(fragments)
        if step % steps == (fragment + 1) * steps // fragments % steps
    ]
    assert sent == expected


@pytest.mark.parametrize("wire", WIRES)
def test_fragments_together_send_the_bytes_of_the_whole(wire: str) -> None:
    model = tower(8)
    parts = [flats_of(part, (), number) for number, part in enumerate(divide([model], model.parameters(), 3))]
    whole, divided = flats_of(model.parameters(), ()), [flat for part in parts for flat in part]
    sizes = []
    for flats in (whole, divided):
        encoding = ErrorFeedbackCodec(WireCodec(wire), flats, has_feedback=False)
        numbers = range(len(flats))
        slices = [encoding.cut(numbers, encoding.empty(numbers), member, 3) for member in range(3)]
        sizes.append(sum(each.numel() for member in slices for each in member))
    # With an integer encoding, the last block of a fragment may be shorter, so a fragment needs one more scale of 4
    # bytes.
    blocks = len(divided) * 4
    assert sizes[0] == WireCodec(wire).size(whole[0].elements)
    assert 0 <= sizes[1] - sizes[0] <= (blocks if wire in ("int8", "int4") else 0)
