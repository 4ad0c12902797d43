"""Tests of synchronous training with parameter servers, by comparison with one process that computes whole batches."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, bytes_of, descend, difference, train
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.strategies.parameter_server.remote_optimizer import UNSERVED

pytestmark = pytest.mark.train


def batches(count: int, size: int, dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn(size, 12, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]
    return [(row, torch.sin(row[:, :3])) for row in rows]


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    with SEEDING:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3)).to(dtype)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def alone(model: nn.Module, optimizer: torch.optim.Optimizer, data: list, **more: object) -> dict[str, torch.Tensor]:
    descend(model, optimizer, data, **more)
    return model.state_dict()


@pytest.mark.parametrize(
    ("workers", "servers", "dtype", "tolerance"),
    [(3, 2, torch.float64, 1e-12), (2, 3, torch.float32, 1e-5)],
)
def test_300_steps_equal_one_process_on_the_whole_batch(
    workers: int, servers: int, dtype: torch.dtype, tolerance: float
) -> None:
    data = batches(300, 6 * workers, dtype)
    states = train(Run(workers, servers, chunk_bytes=600), lambda: network(dtype), momentum, data)
    model = network(dtype)
    expected = alone(model, momentum(model), data)
    assert all(difference(state, expected) <= tolerance for state in states)
    assert all(difference(state, states[0]) == 0 for state in states)


def test_runs_in_rank_order_are_bit_equal_to_each_other() -> None:
    data = batches(40, 9, torch.float32)
    first, second = (train(Run(3, 2), lambda: network(torch.float32), momentum, data)[0] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_in_order_of_arrival_the_sum_is_the_same_but_for_rounding() -> None:
    data = batches(40, 9)
    states = train(Run(3, 2, options={"reduction_order": "arrival"}), network, momentum, data)
    model = network()
    assert difference(states[1], alone(model, momentum(model), data)) < 1e-12


OPTIMIZERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "betas": (0.8, 0.99)},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "Adagrad": {"lr": 0.05, "initial_accumulator_value": 0.1},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.01, "t0": 3.0},
    "Adafactor": {"lr": 0.01},
    "Muon": {"lr": 0.01},
}


def test_every_optimizer_of_torch_is_served_or_refused() -> None:
    names = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)} - {"Optimizer"}
    assert names - UNSERVED.keys() <= OPTIMIZERS.keys()
    assert UNSERVED.keys() <= names


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if hasattr(torch.optim, name)])
def test_an_optimizer_on_shards_does_what_it_does_in_one_process(name: str) -> None:
    bias = name != "Muon"  # Muon accepts matrices only.

    def model_of() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 24, bias=bias), nn.Tanh(), nn.Linear(24, 3, bias=bias)).double()

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])

    data = batches(12, 8)
    states = train(Run(2, 2), model_of, optimizer_of, data)
    model = model_of()
    assert difference(states[1], alone(model, optimizer_of(model), data)) < 1e-10


class Odd(nn.Module):
    """A model with parameters of several dtypes and kinds, one of them larger than a chunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(12, 12).double()
        self.second = nn.Linear(12, 12).double()
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(12, 12).double().requires_grad_(False)
        self.unused = nn.Linear(5, 5)
        self.out = nn.Linear(12, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))
        # The parameter is not stored in row-major order.
        self.columns = nn.Parameter(torch.randn(12, 12, dtype=torch.float64).t() / 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.second(torch.tanh(self.first(inputs)))) @ self.columns
        return (self.out(hidden.float()) * self.scale).double()


def test_any_model_trains_as_in_one_process() -> None:
    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(model, Odd)
        plain = [parameter for name, parameter in model.named_parameters() if not name.startswith("out")]
        return torch.optim.AdamW([{"params": plain}, {"params": model.out.parameters(), "lr": 0.02}], lr=0.01)

    data = batches(20, 8)
    states = train(Run(2, 3), Odd, optimizer_of, data)
    model = Odd()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = alone(model, optimizer_of(model), data)
    assert difference(states[0], expected) < 1e-5
    assert difference(states[1], expected) < 1e-5
    # Even weight decay does not change the unused parameter.
    assert torch.equal(states[0]["unused.weight"], before["unused.weight"])
    assert not torch.equal(states[0]["columns"], before["columns"])


def test_a_parameter_that_only_some_workers_use_is_stepped_with_the_mean() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.branches = nn.ModuleList([nn.Linear(12, 3).double(), nn.Linear(12, 3).double()])
            self.turn = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.branches[0](inputs) if len(inputs) == 5 else self.branches[1](inputs)

    data = batches(3, 9)  # Worker 0 gets 5 rows, and worker 1 gets 4.
    (first, second) = train(Run(2, 2), Either, momentum, data)
    assert difference(first, second) == 0
    model = Either()
    optimizer = momentum(model)
    for inputs, targets in data:
        optimizer.zero_grad()
        halves = [nn.functional.mse_loss(model(inputs[part::2]), targets[part::2]) for part in range(2)]
        (sum(halves) / 2).backward()
        optimizer.step()
    assert difference(first, model.state_dict()) < 1e-12


def test_schedulers_and_accumulation_hold_on_the_servers() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    data = batches(20, 8)
    states = train(Run(2, 2), network, momentum, data, schedule=schedule, accumulate=2)
    model = network()
    expected = alone(model, momentum(model), data, schedule=schedule, accumulate=2)
    assert difference(states[1], expected) < 1e-12


def test_batch_norm_s_figures_are_the_chiefs_everywhere() -> None:
    def model_of() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    chief, other = train(Run(2, 2), model_of, momentum, batches(5, 16))
    assert chief["1.num_batches_tracked"] == 5
    assert difference(chief, other) == 0
    assert not torch.equal(chief["1.running_mean"], model_of()[1].running_mean)


def test_buffers_are_sent_when_they_have_changed_and_are_the_chiefs_after_each_step() -> None:
    """The buffer has 80 kB, much more than the gradients."""
    run = Run(2, 1)
    stepped = threading.Barrier(2, timeout=30)

    def act(rank: int) -> tuple[list[int], list[float]]:
        strategy, model = run.worker(rank), nn.Linear(12, 3).double()
        model.register_buffer("seen", torch.zeros(10_000, dtype=torch.float64))
        model, optimizer = strategy.distribute(model, momentum(model), torch.device("cpu"))
        sent, seen = [], []
        for number in range(4):
            if rank or number == 2:  # The buffer is changed only by the chief, and only once.
                model.seen.fill_(1 + 10 * rank + number)
            before = bytes_of(strategy)[0]
            model(batches(1, 4)[0][0]).square().sum().backward()
            optimizer.step()
            sent.append(bytes_of(strategy)[0] - before)
            seen.append(float(model.seen[0]))
            stepped.wait()
        strategy.leave()
        return sent, seen

    with run.serving():
        (sent, seen), (others, their) = run.on_workers(act)
    assert seen == their == [0, 0, 3, 3]
    assert [size > 80_000 for size in sent] == [True, False, True, False]
    assert max(others) < 80_000


def test_downpour_with_one_group_is_sandblaster_bit_by_bit() -> None:
    data = batches(30, 8, torch.float32)
    one, other = (
        train(Run(2, 2, strategy=kind), lambda: network(torch.float32), momentum, data)[0]
        for kind in ("sandblaster", "downpour")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("parts_are_there", [True, False])
def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_ended(tmp_path: Path, parts_are_there: bool) -> None:
    data = batches(20, 8)
    cpu = torch.device("cpu")

    def act(run: Run, rank: int, model: nn.Module, data: list, *, resumed: bool) -> nn.Module:
        strategy = run.worker(rank)
        model, optimizer = strategy.distribute(model, momentum(model), cpu)
        if resumed:
            strategy.restore(tmp_path, 10)
        descend(model, optimizer, data[:10], rank, 2)
        if not resumed and rank == 0:
            strategy.save(tmp_path, 10)
        strategy.leave()
        return model

    with Run(2, 2, folder=str(tmp_path)).serving() as run:
        checkpoint, _ = run.on_workers(lambda rank: act(run, rank, network(), data, resumed=False))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("step-*")) == [
        "parts/ps-0/step-000000000010.pt",
        "parts/ps-1/step-000000000010.pt",
    ]
    if not parts_are_there:
        (tmp_path / "parts/ps-1/step-000000000010.pt").write_bytes(b"half a file")
    with Run(2, 2, folder=str(tmp_path), generation=1).serving() as run:
        models = [copy.deepcopy(checkpoint) for _ in range(2)]
        resumed, other = run.on_workers(lambda rank: act(run, rank, models[rank], data[10:], resumed=True))
    assert difference(resumed.state_dict(), other.state_dict()) == 0
    model = network()
    expected = alone(model, momentum(model), data)
    if parts_are_there:
        assert difference(resumed.state_dict(), expected) < 1e-12
    else:  # One shard has lost its momentum.
        assert 1e-12 < difference(resumed.state_dict(), expected) < 0.1


def test_a_server_keeps_its_parts_of_complete_checkpoints_however_often_a_chief_fails_to_save(tmp_path: Path) -> None:
    content = {name: {} for name in checkpoint_files.FILES}
    part = checkpoint_files.part_path(tmp_path, "ps-0", 10)
    with Run(1, 1, folder=str(tmp_path)).serving() as run:
        strategy, model = run.worker(0), network()
        strategy.distribute(model, momentum(model), torch.device("cpu"))
        strategy.save(tmp_path, 10)
        checkpoint_files.write(tmp_path, 10, content, {})
        for step in (20, 30, 40, 50):  # The chief cannot write its files of these checkpoints, as on a full disk.
            strategy.save(tmp_path, step)
            assert part.exists()
        assert checkpoint_files.part_steps(tmp_path, "ps-0") == [50, 10]
        for step in (60, 70, 80, 90):
            strategy.save(tmp_path, step)
            checkpoint_files.write(tmp_path, step, content, {})
            checkpoint_files.prune(tmp_path)
        assert not part.exists()
        assert checkpoint_files.part_steps(tmp_path, "ps-0") == [90, 80, 70, 60]  # The next save will prune part 60.
        strategy.leave()


def test_of_two_saves_of_a_server_s_own_the_later_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups leave at the same time.

    The server's thread that saves for the first group is delayed after it has copied the values and before it writes
    them.
    """
    run = Run(1, 1, strategy="downpour", folder=str(tmp_path), options={"checkpoint_every_s": 600.0})
    with run.serving():
        strategy, model, (server,) = run.worker(0), network(), run.servers_now
        model, optimizer = strategy.distribute(model, momentum(model), torch.device("cpu"))
        later, state = threading.Thread(target=server.save_for_itself), server.pairs[0].shard.state

        def copied() -> dict[str, Any]:
            copy = state()
            if later.ident is None:
                descend(model, optimizer, batches(1, 9))
                assert (copy["version"], server.pairs[0].shard.version) == (0, 1)
                later.start()
                later.join(0.3)  # The later save waits until the first one has ended.
            return copy

        monkeypatch.setattr(server.pairs[0].shard, "state", copied)
        server.save_for_itself()
        later.join(30)
        assert checkpoint_files.read_part(tmp_path, "ps-0", None)["version"] == 1
        strategy.leave()


def test_a_server_that_has_served_is_through_with_the_saves_after_its_workers_goodbyes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(1, 1, strategy="downpour", folder=str(tmp_path), options={"checkpoint_every_s": 600.0})
    with run.serving():
        strategy, model, (server,) = run.worker(0), network(), run.servers_now
        strategy.distribute(model, momentum(model), torch.device("cpu"))
        saved, save = threading.Event(), server.pairs[0].save_for_itself

        def save_late() -> None:
            wait_until(lambda: server._ends and not server.pairs[0].clients)
            time.sleep(1)  # The delay is longer than the timeout of the server's accept().
            save()
            saved.set()

        monkeypatch.setattr(server.pairs[0], "save_for_itself", save_late)
        strategy.leave()
        assert run.ended()
        assert saved.is_set()


def test_buffers_come_with_a_round_that_ends_by_the_goodbye_of_the_missing_worker() -> None:
    run = Run(3, 1)

    def act(rank: int) -> torch.Tensor:
        strategy, model = run.worker(rank), nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)).double()
        model, optimizer = strategy.distribute(model, momentum(model), torch.device("cpu"))
        chunks = run.servers_now[0].pairs[0].shard._chunks.values()
        if rank == 2:  # Rank 2 runs out of data after the other ranks have pushed.
            wait_until(lambda: all([len(one.arrived) for one in [*chunk.sums.values()]] == [2] for chunk in chunks))
        else:
            model(batches(1, 9)[0][0] * (1 + rank)).square().sum().backward()
            optimizer.step()
        mean = model[1].running_mean.clone()
        strategy.leave()
        return mean

    with run.serving():
        chief, other, _ = run.on_workers(act)
        assert run.servers_now[0].pairs[0].shard.version == 1
    assert chief.abs().sum() > 0
    assert torch.equal(other, chief)


def test_a_worker_that_dies_is_named_to_the_others() -> None:
    run = Run(3, 2)
    ready = threading.Barrier(3, timeout=30)

    def act(rank: int) -> None:
        strategy = run.worker(rank)
        model = network()
        model, optimizer = strategy.distribute(model, momentum(model), torch.device("cpu"))
        ready.wait()
        if rank == 1:
            for link in strategy.pairs[0]._links:
                link.close(goodbye=False)
            return
        with pytest.raises(PeerLost, match=r"worker-1 on 127\.0\.0\.1 is gone"):
            descend(model, optimizer, batches(5, 9), rank, 3)

    with run.serving():
        run.on_workers(act)


def test_workers_do_not_wait_for_ever_for_a_chief_that_does_not_begin() -> None:
    run = Run(2, 1)
    with run.serving():
        # This server has no parameters, as if it had restarted after the chief left.
        server = run.servers_now[0]
        server.settings = replace(server.settings, begin_s=0.3)
        strategy, model = run.worker(1), network()
        with pytest.raises(UsageProblem, match=r"ps-0 has waited .* for the chief to bring its parameters"):
            strategy.distribute(model, momentum(model), torch.device("cpu"))
