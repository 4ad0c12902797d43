"""Tests of the comparison of all trainers' models before training begins."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.coordination.model_consistency import agree, describe, difference
from torchyard_roles.environment import Environment, Peers, TrainerAddress
from torchyard_roles.errors import StoreTimeout, UsageProblem

torch = pytest.importorskip("torch", reason="the models compared are torch's")
TRAINERS = ("chief-0", "worker-0", "worker-1")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = serve_in_a_process()
    yield served
    served.end()


def trainer(rank: int, generation: int) -> Environment:
    peers = Peers(trainers=tuple(TrainerAddress(name, "127.0.0.1", 1, 1, 0) for name in TRAINERS))
    return Environment(
        role="chief" if rank == 0 else "worker",
        replica=TRAINERS[rank],
        rank=rank,
        world_size=3,
        group_rank=rank,
        group_size=3,
        generation=generation,
        peers=peers,
    )


def linear(outputs: int = 10, inputs: int = 64, **options: float) -> str:
    model = torch.nn.Sequential()
    model.add_module("fc", torch.nn.Linear(inputs, outputs))
    return describe(model, torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options}))


def met(
    served: Served, generation: int, texts: list[str | None], within_s: float = 60.0, **others: float
) -> list[Exception | None]:
    """Returns the exception that agree() raised on each rank, or None.

    Args:
        texts: The description of the model for each rank; a rank with None does not take part.
        within_s: The timeout of each rank.
        others: Different timeouts, by the trainer's name.
    """

    def take_part(rank: int, text: str | None) -> Exception | None:
        if text is None:
            return None
        store = JoinStore.connect(served.address, KEY, TRAINERS[rank], rank)
        try:
            agree(store, trainer(rank, generation), text, others.get(TRAINERS[rank].replace("-", "_"), within_s))
        except (UsageProblem, StoreTimeout) as problem:
            return problem
        finally:
            store.close()
        return None

    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(take_part, range(len(texts)), texts))


def test_trainers_with_the_same_model_agree(served: Served) -> None:
    assert met(served, 1, [linear(), linear(), linear()]) == [None, None, None]


def test_a_worker_whose_model_differs_raises_and_no_trainer_begins(served: Served) -> None:
    chief, differs, equal = met(served, 2, [linear(inputs=32), linear(), linear(inputs=32)], 2.0, worker_0=60.0)
    assert isinstance(differs, UsageProblem)
    assert differs.message == (
        "worker-0's model differs from the chief's: `fc.weight` is 10×64 float32 here and 10×32 float32 there."
    )
    assert isinstance(chief, StoreTimeout)
    assert isinstance(equal, StoreTimeout)


def test_a_worker_that_never_comes_is_named_after_the_deadline(served: Served) -> None:
    with closing(JoinStore.connect(served.address, KEY, TRAINERS[2], 2)) as store:
        # The test writes the other rank's key, because that rank's thread might write it too late.
        store.set("agree/trainers/3/met/2", b"")
    chief, _, worker = met(served, 3, [linear(), None, linear()], within_s=1.0)
    assert str(chief) == "worker-0 did not call distribute() within 1 s."
    assert isinstance(worker, StoreTimeout)


def test_a_chief_that_never_comes_is_named_after_the_deadline(served: Served) -> None:
    _, worker, _ = met(served, 4, [None, linear(), linear()], within_s=0.5)
    assert str(worker) == "chief-0 did not call distribute() within 0.5 s."


def test_a_description_larger_than_a_value_of_the_store_is_compared_too(served: Served) -> None:
    numbers = torch.randint(0, 10**9, (20_000,)).tolist()
    many = "\n".join(f"layer.{number}.weight: 10×{number} float32" for number in numbers)
    changed = f"{many}9"
    _, differs, _ = met(served, 5, [many, changed, many], 2.0, worker_0=60.0)
    assert isinstance(differs, UsageProblem)
    assert f"10×{numbers[-1]} float329 here" in differs.message


def test_the_optimizer_is_part_of_it() -> None:
    assert difference(linear(momentum=0.9), linear()) == "the optimizer's momentum is 0.9 here and 0 there"
    model = torch.nn.Linear(2, 1)
    sgd, adam = (describe(model, kind(model.parameters(), lr=0.1)) for kind in (torch.optim.SGD, torch.optim.Adam))
    assert difference(sgd, adam) == "the optimizer is SGD here and Adam there"


def test_frozen_surplus_and_reordered_parameters_are_differences() -> None:
    one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    two.bias.requires_grad_(False)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in (one, two)]
    texts = [describe(model, optimizer) for model, optimizer in zip((one, two), optimizers, strict=True)]
    assert difference(*texts) == "`bias` is 1 float32 here and 1 float32, frozen there"
    assert difference("a: 1\nb: 2", "a: 1") == "`b` (2) exists here, but not there"
    assert difference("a: 1", "a: 1\nb: 2") == "`b` (2) exists there, but not here"
    assert difference("a: 1\nb: 2", "b: 2\na: 1") == "`a` is here at the position of `b` there"
    assert difference(texts[0], texts[0]) == ""


def test_options_of_the_strategy_are_compared_as_they_are() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    here, there = (describe(model, optimizer, **{"strategy.push_every": every}) for every in (1, 4))
    assert difference(here, there) == "`strategy.push_every` is 1 here and 4 there"
