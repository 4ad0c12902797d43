"""Tests of asynchronous training through parameter servers over real sockets: accounting, pacing, warm start."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, bytes_of, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import Odd, batches, momentum, network
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.errors import NotFinite, PeerLost
from torchyard_roles.strategies.parameter_server import server_group
from torchyard_roles.strategies.parameter_server.buffers_and_constants import ServerBuffers
from torchyard_roles.strategies.parameter_server.push_acceptance import ACCEPTED
from torchyard_roles.strategies.parameter_server.worker_session import Session

pytestmark = pytest.mark.train

CPU = torch.device("cpu")


def small() -> nn.Module:
    return network(torch.float32)


@pytest.mark.parametrize(("workers", "groups", "bound"), [(3, 3, 16), (4, 2, 0)])
def test_the_sum_of_the_servers_versions_equals_the_pushes_accepted(workers: int, groups: int, bound: int) -> None:
    run = Run(workers, 2, groups, "downpour", options={"max_staleness": bound})
    data = batches(15, 8 * workers, torch.float32)

    def act(rank: int) -> tuple[int, int, int]:
        strategy = run.worker(rank)
        model = small()
        model, optimizer = strategy.distribute(model, momentum(model), CPU)
        descend(model, optimizer, data, rank, workers)
        strategy.leave()
        figures = [link.figures for link in strategy.pairs[0]._links]
        return tuple(sum(getattr(one, name) for one in figures) for name in ("accepted", "stale", "late"))

    with run.serving():
        counts = run.on_workers(act)
        assert run.ended()
        versions = sum(server.pairs[0].shard.version for server in run.servers_now)
        dropped = sum(server.pairs[0].shard.ledger.counts.stale for server in run.servers_now)
    members = workers // groups
    assert versions == sum(accepted for accepted, _, _ in counts) / members
    assert dropped == sum(stale for _, stale, _ in counts) / members
    assert versions + dropped == 15 * groups * 2  # Each group pushes to both servers, and no push is lost.
    assert sum(late for _, _, late in counts) == 0


@pytest.mark.parametrize("model_of", [network, Odd], ids=["plain", "of every kind of parameter"])
def test_overlapped_exchanges_bring_the_last_step_s_parameters_at_the_next(model_of: Callable[[], nn.Module]) -> None:
    """Only group 0 pushes, so each gradient is applied exactly one step late."""
    run = Run(2, 2, 2, "downpour")
    data = batches(10, 8)

    def made() -> nn.Module:
        with SEEDING:
            return model_of()

    def act(rank: int) -> nn.Module:
        strategy, model = run.worker(rank), made()
        model, optimizer = strategy.distribute(model, torch.optim.AdamW(model.parameters(), lr=0.01), CPU)
        if rank == 0:
            descend(model, optimizer, data)
        strategy.leave()
        return model

    with run.serving():
        trained, _ = run.on_workers(act)
    expected, late = made(), made()  # With `late`, a gradient is computed from the parameters of the previous step.
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.01)
    for inputs, targets in data:
        late.zero_grad()
        nn.functional.mse_loss(late(inputs), targets).backward()
        pairs = list(zip(expected.parameters(), late.parameters(), strict=True))
        for parameter, other in pairs:
            parameter.grad = other.grad.clone() if other.grad is not None else None
            other.data.copy_(parameter.data)
        optimizer.step()
    assert difference(trained.state_dict(), expected.state_dict()) < (1e-12 if model_of is network else 1e-5)


def test_between_pulls_a_worker_steps_by_itself_and_what_it_pushes_is_the_sum() -> None:
    run = Run(1, 2, 1, "downpour", options={"push_every": 3, "pull_every": 3})
    data = batches(6, 8)

    def act(rank: int) -> tuple[nn.Module, tuple[int, int]]:
        strategy = run.worker(rank)
        model = network()
        model, optimizer = strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU)
        before = bytes_of(strategy)
        descend(model, optimizer, data)
        after = bytes_of(strategy)
        strategy.leave()
        return model, (after[0] - before[0], after[1] - before[1])

    with run.serving():
        ((trained, (sent, received)),) = run.on_workers(act)
    expected = network()
    # With plain SGD, one step with the sum of the gradients equals the local steps.
    descend(expected, torch.optim.SGD(expected.parameters(), lr=0.1), data)
    assert difference(trained.state_dict(), expected.state_dict()) < 1e-12
    size = sum(p.numel() * 8 for p in expected.parameters())
    # In six steps, there are two pushes. Headers are a large part of the traffic, because the chunks are small.
    assert size * 2 <= sent < size * 2 * 2
    assert size * 2 <= received < size * 2 * 3


def test_group_0_trains_alone_first_where_a_warm_start_is_wanted() -> None:
    run = Run(2, 1, 2, "downpour", options={"warm_start_steps": 5})
    steps: list[int] = []
    entered = threading.Event()

    def act(rank: int) -> int:
        strategy = run.worker(rank)
        model = small()
        model, optimizer = strategy.distribute(model, momentum(model), CPU)
        seen = run.servers_now[0].pairs[0].shard.version
        entered.set() if rank else None
        for number in range(8):
            if not rank and number < 5:
                assert not entered.is_set()
            descend(model, optimizer, batches(1, 4, torch.float32))
            steps.append(rank)
        strategy.leave()
        return seen

    with run.serving():
        _, seen = run.on_workers(act)
        assert run.ended()
    assert seen >= 5
    assert steps[:4] == [0, 0, 0, 0]


def distribute(run: Run, rank: int, model: nn.Module | None = None) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    strategy = run.worker(rank)
    model = model or small()
    model, optimizer = strategy.distribute(model, momentum(model), CPU)
    return strategy, model, optimizer


def test_the_slowest_worker_s_gradients_are_dropped_and_counted_and_it_keeps_up() -> None:
    run = Run(3, 2, options={"backup_workers": 1})
    data = batches(12, 9, torch.float32)
    come, ready = Counter[int](), threading.Barrier(3, timeout=60)

    def act(rank: int) -> float:
        strategy, model, optimizer = distribute(run, rank)
        # The workers start together. A worker that joined after a round had begun would take part only from the next
        # round on.
        ready.wait()
        for number, batch in enumerate(data):
            if rank == 2:
                wait_until(lambda: all(server.pairs[0].shard.version > number for server in run.servers_now))  # noqa: B023  # The lambda is called only in this iteration.
            else:
                wait_until(lambda: come[2] == number)  # noqa: B023  # The lambda is called only in this iteration.
            descend(model, optimizer, [batch], rank, 3)
            come[rank] += 1
        strategy.leave()
        return strategy.statistics()["dropped"]

    with run.serving():
        dropped = run.on_workers(act)
        assert run.ended()
        counts = [server.pairs[0].shard.ledger.counts for server in run.servers_now]
    # In each step, the push of worker 2 came one round late and was dropped.
    assert dropped == [0, 0, 12]
    assert [(count.late, count.accepted) for count in counts] == [(12, 12)] * 2


def test_the_others_go_on_without_a_worker_whose_data_has_ended() -> None:
    run = Run(3, 2)

    def act(rank: int) -> nn.Module:
        strategy, model, optimizer = distribute(run, rank)
        descend(model, optimizer, batches(4 + 3 * rank, 9, torch.float32), rank, 3)
        strategy.leave()
        return model

    with run.serving():
        *_, last = run.on_workers(act)
        assert run.ended()
        assert all(server.pairs[0].shard.version == 10 for server in run.servers_now)
    assert torch.isfinite(last[0].weight).all()


def test_a_group_s_buffers_are_installed_between_steps_as_parameters_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed buffers belong to the same step as the parameters.

    This also holds if another rank of the group joins after the first rank has begun, and if the first rank is one step
    ahead when the other ranks receive the buffers.
    """
    run = Run(4, 1, 2, "downpour")
    brought, pushed_by = Counter[int](), Counter[tuple[int, int]]()

    def take(rows: ServerBuffers, session: Session, values: torch.Tensor, groups: Iterable[int]) -> None:
        taken(rows, session, values, groups)
        brought[session.group] += 1  # Group 0 sends its buffers when it starts and in both steps.

    def push(session: Session, header: dict[str, Any]) -> None:
        pushing(session, header)
        pushed_by[session.group, session.rank] += 1

    def post(session: Session, header: dict[str, Any], payload: torch.Tensor | None = None) -> None:
        posting(session, header, payload)
        if (session.group, session.rank) == (0, 0) and header.get("outcome") == ACCEPTED:
            wait_until(lambda: brought[0] >= 3)

    taken, pushing, posting = ServerBuffers.take_buffers, Session._push, Session.post
    monkeypatch.setattr(ServerBuffers, "take_buffers", take)
    monkeypatch.setattr(Session, "_push", push)
    monkeypatch.setattr(Session, "post", post)

    def act(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        if rank == 1:
            wait_until(lambda: brought[0] >= 2)
        strategy, model, optimizer = distribute(run, rank, nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)))
        mean, seen = model[1].running_mean, []
        for inputs, _ in batches(2, 8, torch.float32) if rank < 2 else ():
            model(inputs * (1 + rank)).square().sum().backward()
            seen.append(mean.clone())
            if rank == 1:  # Rank 1 is the last to push, so the server steps in the thread of rank 1's session.
                wait_until(lambda: pushed_by[0, 0] >= len(seen))
            optimizer.step()
            strategy.pairs[0]._exchange.wait()
            assert len(seen) > 1 or torch.equal(mean, seen[0])  # The exchange has ended, but the server's step has not.
        after = mean.clone()
        strategy.leave()
        return (seen or [after])[0], after

    with run.serving():
        (pushed, _), (own, installed), *_ = run.on_workers(act)
    assert not torch.equal(own, pushed)
    assert torch.equal(installed, pushed)


def test_a_group_that_has_been_away_for_long_is_not_waited_for_anew_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_group, "SAY_WAITING_S", 0.1)
    run = Run(2, 1, 2, "downpour")
    with run.serving():
        chief, other = (distribute(run, rank)[0] for rank in range(2))
        other.abandon()
        (server,) = run.servers_now
        wait_until(lambda: 1 in server.pairs[0]._away_since)
        ending = threading.Thread(target=chief.finish, daemon=True)
        ending.start()
        ending.join(0.5)
        assert ending.is_alive()  # The other group may still be restarted, so the servers do not end.
        server.pairs[0]._away_since[1] -= server_group.AWAY_S
        ending.join(30)
        assert not ending.is_alive()
        chief.leave()


def test_gradients_that_are_not_finite_end_the_step_before_a_byte_is_sent() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy, model, optimizer = distribute(run, 0)
        sent, _ = bytes_of(strategy)
        next(model.parameters()).grad = torch.full((24, 12), float("nan"))
        with pytest.raises(NotFinite, match=r"worker-0 in step 1 are not finite, first in 0\.weight"):
            optimizer.step()
        assert bytes_of(strategy)[0] == sent
        strategy.leave()


def test_or_they_are_skipped_and_counted() -> None:
    run = Run(2, 1, options={"on_nan": "skip"})

    def act(rank: int) -> tuple[torch.Tensor, float]:
        strategy, model, optimizer = distribute(run, rank)
        weight = model[0].weight
        before = weight.detach().clone()
        weight.grad = torch.full((24, 12), float("nan") if rank else 1.0)
        optimizer.step()
        change = (weight.detach() - before).mean()
        weight.grad = torch.full((24, 12), float("inf"))
        optimizer.step()
        strategy.leave()
        return change, strategy.statistics()["skipped"]

    with run.serving():
        for rank, (change, skipped) in enumerate(run.on_workers(act)):
            assert change == pytest.approx(-0.02, rel=1e-4)  # Only the finite gradient is used.
            assert skipped == 1 + rank  # Each worker counts only the steps that the worker itself skipped.


def test_a_worker_s_own_skipped_steps_are_counted_where_it_pushes_only_now_and_then() -> None:
    run = Run(1, 1, 1, "downpour", options={"push_every": 2, "pull_every": 2, "on_nan": "skip"})
    with run.serving():
        strategy, model, optimizer = distribute(run, 0)
        for gradient in (1.0, float("nan"), float("nan"), 1.0):
            model[0].weight.grad = torch.full((24, 12), gradient)
            optimizer.step()
        assert strategy.statistics()["skipped"] == 2
        strategy.leave()


def test_the_chief_s_last_parameters_hold_what_slower_groups_have_pushed_after_its_own_end() -> None:
    run = Run(2, 2, 2, "downpour")
    finished = threading.Event()

    def act(rank: int) -> nn.Module:
        strategy, model, optimizer = distribute(run, rank)
        if not rank:
            descend(model, optimizer, batches(3, 4, torch.float32))
            finished.set()
            assert strategy.finish()
        else:
            assert finished.wait(30)
            descend(model, optimizer, batches(10, 4, torch.float32))
            assert not strategy.finish()
        strategy.leave()
        return model

    with run.serving():
        chief, _ = run.on_workers(act)
        assert run.ended()
        held = {
            number: state.parameters
            for server in run.servers_now
            for number, state in server.pairs[0].shard._chunks.items()
        }
        assert sum(server.pairs[0].shard.version for server in run.servers_now) == 13 * 2
    last = torch.cat([held[number] for number in sorted(held)])
    assert torch.equal(torch.cat([parameter.detach().reshape(-1) for parameter in chief.parameters()]), last)


def test_a_group_that_waits_for_the_warm_start_is_let_in_where_the_chief_ends_before_it() -> None:
    run = Run(2, 1, 2, "downpour", options={"warm_start_steps": 100})

    def act(rank: int) -> None:
        strategy, model, optimizer = distribute(run, rank)
        descend(model, optimizer, batches(3, 4, torch.float32))
        strategy.finish()
        strategy.leave()

    with run.serving():
        run.on_workers(act)
        assert run.ended()
        assert run.servers_now[0].pairs[0].shard.version == 6


@pytest.mark.parametrize("resumes", [False, True])
def test_a_server_that_dies_early_takes_up_no_goodbye_and_nothing_older_of_the_run_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], resumes: bool
) -> None:
    """A server that fails early starts again with the checkpoint from which the run resumes, or without any state."""
    left = threading.Event()
    dies = threading.Barrier(2, timeout=30)

    def first(rank: int) -> None:
        strategy, model, optimizer = distribute(run, rank)
        descend(model, optimizer, batches(3, 4, torch.float32))
        if not rank:
            strategy.save(tmp_path, 3)
        strategy.leave()

    def second(rank: int) -> None:
        strategy, model, optimizer = distribute(run, rank)
        if resumes:
            strategy.restore(tmp_path, 3)
        descend(model, optimizer, batches(4, 4, torch.float32))
        strategy.pairs[0]._exchange.wait()
        if dies.wait() == 0:
            run.replace_server(0)
        dies.wait()
        descend(model, optimizer, batches(1, 4, torch.float32))  # The push to the restarted server is lost.
        strategy.pairs[0]._finish()
        if not rank:
            assert left.wait(30)
        descend(model, optimizer, batches(3, 4, torch.float32))
        strategy.finish()
        strategy.leave()
        left.set()

    for number, act in enumerate((first, second)):
        # With this interval, servers save only when a worker leaves and after a restore.
        options = {"checkpoint_every_s": 600.0}
        run = Run(2, 1, 2, "downpour", folder=str(tmp_path), run_id=f"run-{number}", options=options)
        with run.serving():
            run.on_workers(act)
            assert run.ended()
    ledger = run.servers_now[0].pairs[0].shard.ledger
    saved = checkpoint_files.read_part(tmp_path, "ps-0", 3)
    before = saved["by_group"] if resumes else {}
    assert ledger.counts.by_group == {group: before.get(group, 0) + 3 for group in range(2)}
    assert ("ps-0 ignores its newest part, which belongs to another run" in capfd.readouterr().out) is not resumes


def test_the_chief_does_not_wait_for_ever_for_a_group_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_group, "AWAY_S", 0.2)
    monkeypatch.setattr(server_group, "SAY_WAITING_S", 0.1)
    run = Run(2, 1, 2, "downpour")
    with run.serving():
        strategy, model, optimizer = distribute(run, 0)
        descend(model, optimizer, batches(3, 4, torch.float32))
        assert strategy.finish()
        strategy.leave()


@pytest.mark.parametrize("strategy_name", ["sandblaster", "downpour"])
@pytest.mark.parametrize("end", ["gradient", "arrived"])
def test_an_error_of_torch_in_a_link_s_thread_is_the_training_thread_s(strategy_name: str, end: str) -> None:
    run = Run(1, 2, 1, strategy_name)

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    with run.serving():
        strategy, model, optimizer = distribute(run, 0)
        setattr(strategy.pairs[0]._staging, end, fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            descend(model, optimizer, batches(3, 4, torch.float32))
        strategy.abandon()


# serve() raises its error in its own thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_cannot_step_ends_and_its_workers_hear_of_it() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy, model, optimizer = distribute(run, 0)

        def fails(*_: object) -> None:
            raise RuntimeError("not enough memory")

        server = run.servers_now[0]
        server.pairs[0].shard.push = fails
        with pytest.raises(PeerLost, match="ps-0"):
            descend(model, optimizer, batches(3, 4, torch.float32))
        wait_until(lambda: isinstance(server._failure, RuntimeError))
        strategy.abandon()


def test_the_script_keeps_its_optimizer_with_hooks_schedulers_and_closures() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        model = small()
        optimizer = momentum(model)
        early = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        model, same = strategy.distribute(model, optimizer, CPU)
        assert same is optimizer
        assert isinstance(optimizer, torch.optim.SGD)
        late = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        calls: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 12)).square().sum()
            loss.backward()
            calls.append("closure")
            return loss

        assert optimizer.step(closure) > 0
        early.step()
        late.step()
        assert calls == ["before", "closure", "after"]
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
        assert optimizer.state_dict()["state"] == {}
        strategy.leave()


@pytest.mark.parametrize(("groups", "expected"), [(2, 4), (1, 16)])
def test_exchanges_behind_computing_have_few_chunks_on_both_sides(groups: int, expected: int) -> None:
    run = Run(groups, 1, groups, "downpour", chunk_bytes=None)

    def act(rank: int) -> int:
        strategy = run.worker(rank)
        model = nn.Linear(512, 512, bias=False)  # The weight takes 1 MiB.
        strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU)
        chunks = len(strategy.pairs[0]._links[0].chunks)
        strategy.leave()
        return chunks

    with run.serving():
        assert run.on_workers(act) == [expected] * groups
        assert run.ended()
        shard = run.servers_now[0].pairs[0].shard
        assert shard is not None
        assert len(shard.numbers) == expected
