"""Tests of a server's shard without sockets: staleness, stability, backup workers, pushes without gradients, and saved
state.
"""

from __future__ import annotations

import io
import math

import pytest
import torch

from torchyard_roles.exchange.parameter_layout import Entry, Layout
from torchyard_roles.strategies.parameter_server import remote_optimizer
from torchyard_roles.strategies.parameter_server.chunk_state import ChunkState, Delivery
from torchyard_roles.strategies.parameter_server.push_acceptance import Push, Rules
from torchyard_roles.strategies.parameter_server.shard import Shard

pytestmark = pytest.mark.train


def shard_of(
    rules: Rules, size: int = 1, *, optimizer: str = "SGD", chunk_bytes: int = 1024, **options: object
) -> Shard:
    layout = Layout((Entry("weight", (size,), "float64", 0),))
    return Shard(layout, layout.chunks(1, chunk_bytes), optimizer, [{"lr": 0.1, **options}], rules)


def value(delivery: Delivery) -> float:
    assert delivery.payload is not None
    return float(delivery.payload[0])


class Worker:
    """A worker that is a group by itself and minimizes f(x) = λx²/2."""

    def __init__(self, shard: Shard, group: int, curvature: float) -> None:
        self.shard, self.group, self.curvature = shard, group, curvature
        shard.enter(group, 0, 1, 0)
        self.round = 0
        self.take(shard.pull(group, 0, 0))

    def take(self, delivery: Delivery) -> Delivery:
        self.value, self.base = value(delivery), delivery.header["version"]
        return delivery

    def push(self) -> Delivery:
        self.round += 1
        gradient = self.shard.buffer(0).fill_(self.curvature * self.value)
        (reply,) = self.shard.push(Push(self.group, 0, 0, self.round, 0, self.base), gradient)
        return self.take(reply)


@pytest.mark.parametrize(("workers", "bound"), [(1, 2.0), (2, 1.0), (4, 0.445), (8, 0.209)])
def test_round_robin_downpour_converges_exactly_below_its_bound(workers: int, bound: float) -> None:
    """With N workers in turn, each gradient is τ = N − 1 versions old.

    Training converges if η·λ < 2·sin(π / (2(2τ + 1))).
    """
    assert bound == pytest.approx(2 * math.sin(math.pi / (2 * (2 * (workers - 1) + 1))), abs=5e-4)

    def largest_at_the_end(rate: float) -> float:
        shard = shard_of(Rules(groups=workers), lr=rate)
        shard.assign(0, torch.ones(1, dtype=torch.float64))
        crew = [Worker(shard, group, curvature=1.0) for group in range(workers)]
        replies = [crew[turn % workers].push() for turn in range(4000)]
        assert all(reply.header["staleness"] == workers - 1 for reply in replies[workers:])
        assert shard.version == 4000
        return max(abs(value(reply)) for reply in replies[-50:])

    assert largest_at_the_end(0.98 * bound) < 1e-3
    assert largest_at_the_end(1.02 * bound) > 1e3


def test_a_push_that_is_too_stale_is_dropped_counted_and_answered_with_the_newest() -> None:
    shard = shard_of(Rules(groups=2, max_staleness=3), lr=1.0)
    fast, slow = Worker(shard, 0, 1.0), Worker(shard, 1, 1.0)
    shard.assign(0, torch.full((1,), 8.0, dtype=torch.float64))
    for worker in (fast, slow):
        worker.take(shard.pull(worker.group, 0, 0))
    for _ in range(4):
        fast.value = 1.0  # The value is reset, so that each gradient is 1.
        fast.push()
    reply = slow.push()
    assert reply.header["outcome"] == "stale"
    assert reply.header["staleness"] == 4
    assert value(reply) == 4.0
    assert shard.ledger.counts.stale == 1
    assert shard.version == shard.ledger.counts.accepted == 4
    assert slow.push().header["outcome"] == "accepted"  # The newest parameters are the base of this push.


def push(
    shard: Shard, rank: int, number: int, gradient: float | None, chunk: int = 0, **more: object
) -> list[Delivery]:
    buffer = None if gradient is None else shard.buffer(chunk).fill_(gradient)
    return shard.push(Push(0, rank, 0, number, chunk, 0, **more), buffer)  # type: ignore[arg-type]  # The fields have different types.


def enter(shard: Shard, size: int, generation: int = 0) -> None:
    for rank in range(size):
        shard.enter(0, rank, size, generation)


def test_only_the_first_of_a_round_count_where_there_are_backup_workers() -> None:
    # The shard consists of two chunks with one number each.
    shard = shard_of(Rules(backup_workers=1), size=2, chunk_bytes=8, lr=1.0)
    enter(shard, 3)
    assert push(shard, 2, 1, 3.0) == []
    first = push(shard, 0, 1, 1.0)
    assert sorted(delivery.rank for delivery in first) == [0, 2]
    assert value(first[0]) == -2.0  # The step used the mean of both pushes.
    # The first chunk decides, for all chunks, which workers take part in the round.
    (late,) = push(shard, 1, 1, 100.0, chunk=1)
    assert late.header["outcome"] == "late"
    assert value(late) == 0.0
    (late,) = push(shard, 1, 1, 100.0)
    assert value(late) == -2.0
    assert late.header["round"] == 1  # This worker's next push belongs to round 2.
    assert shard.ledger.counts.late == 1  # `late` counts pushes, not chunks.
    assert push(shard, 0, 1, 1.0, chunk=1) == []
    assert value(push(shard, 2, 1, 3.0, chunk=1)[0]) == -2.0
    assert push(shard, 1, 2, 1.0) == []
    assert value(push(shard, 2, 2, 1.0)[0]) == -3.0
    assert shard.version == 2


def test_void_pushes_count_for_nothing_and_a_round_of_them_changes_nothing() -> None:
    shard = shard_of(Rules(), lr=1.0)
    enter(shard, 2)
    assert push(shard, 0, 1, None, void=True) == []
    # The step used the mean of the other workers' gradients.
    assert value(push(shard, 1, 1, 4.0)[0]) == -4.0
    push(shard, 0, 2, None, void=True)
    replies = push(shard, 1, 2, None, void=True)
    assert [reply.header["outcome"] for reply in replies] == ["void", "void"]
    assert value(replies[0]) == -4.0
    assert shard.ledger.counts.void == 1
    assert shard.version == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_gradients_are_summed_in_rank_order_whenever_they_come(in_order: bool) -> None:
    values = [1e16, 1.0, -1e16]
    sums = {}
    for order in ((0, 1, 2), (2, 0, 1)):
        shard = shard_of(Rules(in_rank_order=in_order), lr=3.0)
        enter(shard, 3)
        for rank in order:
            replies = push(shard, rank, 1, values[rank])
        sums[order] = value(replies[0])
    assert (sums[0, 1, 2] == sums[2, 0, 1]) is in_order


def test_a_new_generation_of_a_group_replaces_what_the_old_one_left_half_done() -> None:
    shard = shard_of(Rules(), lr=1.0)
    enter(shard, 2)
    assert push(shard, 0, 1, 100.0) == []
    enter(shard, 2, generation=1)
    old = shard.push(Push(0, 1, 0, 1, 0, 0), shard.buffer(0).fill_(100.0))
    assert [delivery.header["outcome"] for delivery in old] == ["late"]
    for rank in range(2):
        replies = shard.push(Push(0, rank, 1, 1, 0, 0), shard.buffer(0).fill_(1.0))
    assert value(replies[0]) == -1.0


def test_the_others_wait_for_group_0_s_first_steps_but_not_for_a_group_that_has_ended() -> None:
    shard = shard_of(Rules(groups=2, warm_start_steps=2))
    worker = Worker(shard, 0, 1.0)
    warm = []
    for _ in range(3):
        warm.append(shard.ledger.is_warm)
        worker.push()
    assert warm == [False, False, True]
    ended = shard_of(Rules(groups=2, warm_start_steps=2))
    Worker(ended, 0, 1.0)
    ended.leave(0, 0, 0)
    assert ended.ledger.is_warm


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad", "RMSprop"])
def test_a_shard_goes_on_from_its_saved_state_as_if_nothing_had_happened(optimizer: str) -> None:
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    whole = shard_of(Rules(), 5, optimizer=optimizer, chunk_bytes=16, **options)
    enter(whole, 1)

    def step(shard: Shard, number: int) -> list[torch.Tensor | None]:
        return [push(shard, 0, number, 0.3 * number + chunk, chunk)[0].payload for chunk in shard.numbers]

    for number in (1, 2, 3):
        step(whole, number)
    file = io.BytesIO()
    torch.save(whole.state(), file)
    file.seek(0)
    again = shard_of(Rules(), 5, optimizer=optimizer, chunk_bytes=16, **options)
    again.load(torch.load(file, weights_only=True))
    enter(again, 1)
    assert again.version == 3
    for number in (4, 5):
        expected = step(whole, number)
        assert all(torch.equal(mine, its) for mine, its in zip(step(again, number), expected, strict=True))
    with pytest.raises(ValueError, match="another shard"):
        shard_of(Rules(), 6, optimizer=optimizer, chunk_bytes=16, **options).load(whole.state())


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_a_server_steps_as_the_same_optimizer_does_in_one_process(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    layout = Layout((Entry("weight", (3, 7), "float64", 0), Entry("bias", (11,), "float64", 0)))
    state = ChunkState(layout.chunks(1)[0], layout, name, {"lr": 0.1, "weight_decay": 0.01})
    state.parameters.fill_(1.0)
    alone = torch.nn.Parameter(torch.ones(32, dtype=torch.float64))
    optimizer = getattr(torch.optim, name)([alone], lr=0.1, weight_decay=0.01)
    for _ in range(20):
        gradient = torch.randn(32, generator=generator, dtype=torch.float64)
        state.step(gradient.clone(), frozenset(), state.options)
        alone.grad = gradient
        optimizer.step()
    assert torch.allclose(state.parameters, alone, rtol=0, atol=1e-12)
    for dtype in (torch.float32, torch.float64):
        server = remote_optimizer.build(name, {"lr": 0.1}, [torch.nn.Parameter(torch.ones(32, dtype=dtype))])
        assert bool(server.defaults.get("fused")) == (name != "SGD" and dtype is torch.float32)
