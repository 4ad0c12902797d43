"""Tests of several pairs of model and optimizer under parameter servers.

Calling step() of an optimizer exchanges only its pair.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import batches, momentum, network
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
CRITIC_STEPS = 2
Pair = tuple[nn.Module, torch.optim.Optimizer]


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with SEEDING:
        torch.manual_seed(seed)
        return make().double()


def gan() -> tuple[Pair, Pair]:
    generator = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 12)), 1)
    critic = seeded(lambda: nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1)), 2)
    return (generator, momentum(generator)), (critic, torch.optim.Adam(critic.parameters(), lr=0.01))


def play(
    generator: Pair,
    critic: Pair,
    rounds: int,
    part: int = 0,
    parts: int = 1,
    *,
    clip: Callable[[torch.optim.Optimizer], Any] | None = None,
    clamps: bool = True,
) -> None:
    """Trains a Wasserstein GAN whose critic makes two steps for each step of the generator and is clamped after each of
    its steps.

    The generator's loss leaves gradients in the critic.
    """
    (maker, making), (judge, judging) = generator, critic
    data = iter(batches(rounds * CRITIC_STEPS, 12))
    for _ in range(rounds):
        for _ in range(CRITIC_STEPS):
            real, noise = next(data)
            real, noise = real[part::parts], noise[part::parts]
            judging.zero_grad()
            (judge(maker(noise).detach()).mean() - judge(real).mean()).backward()
            if clip is not None:
                clip(judging)
            judging.step()
            for parameter in judge.parameters() if clamps else ():
                parameter.data.clamp_(-0.3, 0.3)
        making.zero_grad()
        (-judge(maker(noise)).mean()).backward()
        making.step()


def distributed(strategy: ParameterServerStrategy, *pairs: Pair) -> tuple[Pair, ...]:
    for model, optimizer in pairs:
        strategy.distribute(model, optimizer, CPU)
    return pairs


def states(*pairs: Pair) -> dict[str, torch.Tensor]:
    return {
        f"{number} {name}": value.clone()
        for number, (model, _) in enumerate(pairs)
        for name, value in model.state_dict().items()
    }


@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (3, 1)])
def test_a_gan_whose_optimizers_take_turns_equals_one_process_on_the_whole_batch(workers: int, servers: int) -> None:
    run = Run(workers, servers)

    def act(rank: int) -> dict[str, torch.Tensor]:
        strategy = run.worker(rank)
        pairs = distributed(strategy, *gan())
        play(*pairs, 20, rank, workers)  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
        assert strategy.finish() is False
        strategy.leave()
        return states(*pairs)

    with run.serving():
        outcomes = run.on_workers(act)
        assert run.ended()
        versions = {number: pair.shard.version for server in run.servers_now for number, pair in server.pairs.items()}
        figures = run.servers_now[0].figures()
    expected = gan()
    play(*expected, 20)
    assert all(difference(found, states(*expected)) < 1e-12 for found in outcomes)
    assert all(difference(found, outcomes[0]) == 0 for found in outcomes)
    assert versions == {0: 20, 1: 20 * CRITIC_STEPS}
    assert (figures["version"], figures["clients"], figures["dropped"]) == (20 * CRITIC_STEPS, 0, 0)


class Shared(nn.Module):
    """A model of two halves, each with its own optimizer; it also has a frozen layer and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12, affine=False, momentum=None)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.head = nn.Linear(12, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(torch.tanh(self.encoder(inputs))))


def halves(model: Shared) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    return (
        torch.optim.SGD(model.encoder.parameters(), lr=0.05, momentum=0.9),
        torch.optim.Adam(model.head.parameters(), lr=0.01),
    )


def descend_halves(
    model: Shared, optimizers: tuple[torch.optim.Optimizer, ...], data: list, part: int = 0, parts: int = 1
) -> None:
    for inputs, targets in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts]).backward()
        for optimizer in optimizers:
            optimizer.step()


def test_two_optimizers_of_one_model_equal_one_process() -> None:
    run = Run(2, 2)
    data = batches(20, 8)

    def act(rank: int) -> Shared:
        strategy, model = run.worker(rank), seeded(Shared, 3 + rank)
        optimizers = halves(model)
        distributed(strategy, *((model, each) for each in optimizers))
        descend_halves(model, optimizers, data, rank, 2)
        strategy.leave()
        return model

    with run.serving():
        models = run.on_workers(act)
        assert run.ended()
    expected = seeded(Shared, 3)
    descend_halves(expected, halves(expected), data)
    assert all(difference(model.state_dict(), expected.state_dict()) < 1e-12 for model in models)


@pytest.mark.parametrize(("strategy", "groups"), [("sandblaster", 1), ("downpour", 2)])
def test_the_step_of_one_pair_leaves_a_graph_of_the_others_alone(strategy: str, groups: int) -> None:
    run = Run(2, 1, groups, strategy)

    def act(rank: int) -> None:
        served = run.worker(rank)
        (maker, making), (judge, judging) = distributed(served, *gan())
        for inputs, noise in batches(6, 4):
            making.zero_grad()
            judging.zero_grad()
            graph = judge(inputs).square().mean()
            before = [(each.clone(), each._version) for each in judge.parameters()]
            maker(noise).square().mean().backward()
            making.step()
            assert all(
                torch.equal(value, each) and version == each._version
                for (value, version), each in zip(before, judge.parameters(), strict=True)
            )
            graph.backward()  # autograd refuses a backward pass if parameters have changed since the forward pass.
            judging.step()
        served.leave()

    with run.serving():
        run.on_workers(act)
        assert run.ended()


def test_groups_train_several_pairs_asynchronously_and_every_push_is_counted() -> None:
    run = Run(4, 2, 2, "downpour")

    def act(rank: int) -> dict[str, float]:
        strategy = run.worker(rank)
        pairs = distributed(strategy, *gan())
        before = states(*pairs)
        play(*pairs, 6, rank, 4, clamps=False)  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
        strategy.finish()
        strategy.leave()
        assert difference(states(*pairs), before) > 0
        return strategy.statistics()

    with run.serving():
        figures = run.on_workers(act)
        assert run.ended()
        counts = [
            {
                number: pair.shard.ledger.counts.accepted + pair.shard.ledger.counts.stale
                for number, pair in server.pairs.items()
            }
            for server in run.servers_now
        ]
    assert counts == [{0: 2 * 6, 1: 2 * 6 * CRITIC_STEPS}] * 2
    assert all(each["staleness"] >= 0 and each["dropped"] == 0 for each in figures)


def test_a_run_s_step_has_the_exchanges_of_all_pairs() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        generator, critic = distributed(strategy, *gan())
        for step in range(3):
            strategy.at_boundary(step)
            play(generator, critic, 1)
            found = strategy.statistics()
            last = [pair.times["exchange_s"] + pair.times["wait_s"] for pair in strategy.pairs]
            # `statistics` counts both steps of the critic, but `times` contains only the last step of each pair.
            assert found["exchange_s"] + found["wait_s"] > sum(last)
            assert "compute_s" not in found  # The caller computes `compute_s` as the remaining time of the step.
        strategy.at_boundary(3)
        assert strategy.statistics()["exchange_s"] == 0
        strategy.leave()


def test_the_chief_ends_though_a_group_waits_for_the_warm_start_of_a_pair_that_is_never_stepped() -> None:
    run = Run(2, 1, 2, "downpour", options={"warm_start_steps": 3})
    joined = threading.Event()

    def act(rank: int) -> None:
        strategy = run.worker(rank)
        generator, critic = gan()
        strategy.distribute(*critic, CPU)
        if rank:
            joined.set()
        strategy.distribute(*generator, CPU)
        if not rank:
            descend(critic[0], critic[1], [(inputs, inputs[:, :1]) for inputs, _ in batches(3, 4)])
            assert joined.wait(30)  # The other group is waiting for the generator's warm start.
        strategy.finish()
        strategy.leave()

    with run.serving():
        run.on_workers(act)
        assert run.ended()


def test_a_server_ends_when_all_pairs_have_ended() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        _, critic = distributed(strategy, *gan())
        (server,) = run.servers_now
        strategy.pairs[0].leave()
        wait_until(lambda: server.pairs[0].has_ended)
        assert not server._ends
        descend(critic[0], critic[1], [(inputs, inputs[:, :1]) for inputs, _ in batches(2, 4)])
        assert server.pairs[1].shard.version == 2
        strategy.pairs[1].leave()
        assert run.ended()


@pytest.mark.parametrize("generation", [0, 1], ids=["its first start", "started again"])
def test_what_is_saved_of_all_pairs_is_restored_exactly(tmp_path: Path, generation: int) -> None:
    def begin(run: Run, rank: int, load: dict[str, Any] | None) -> tuple[ParameterServerStrategy, tuple[Pair, ...]]:
        pairs = gan()
        if load is not None and rank == 0:
            for (model, _), state in zip(pairs, load["models"], strict=True):
                model.load_state_dict(state)
        strategy = run.worker(rank)
        distributed(strategy, *pairs)
        if load is not None:
            strategy.restore(tmp_path, 5)
            if rank == 0:
                shutil.rmtree(tmp_path / "parts")
            # Later calls of distribute() restore values, too, but do not read the files again.
            strategy.restore(tmp_path, 5)
        return strategy, pairs

    first, saved = Run(2, 2, folder=str(tmp_path)), {}

    def train(rank: int) -> dict[str, torch.Tensor]:
        strategy, pairs = begin(first, rank, None)
        play(*pairs, 5, rank, 2)  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
        if rank == 0:
            strategy.save(tmp_path, 5)
            saved["models"] = [copy.deepcopy(model.state_dict()) for model, _ in pairs]
        play(*pairs, 5, rank, 2)  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
        strategy.leave()
        return states(*pairs)

    with first.serving():
        expected = first.on_workers(train)
    assert checkpoint_files.part_steps(tmp_path, "ps-1.pair-1") == checkpoint_files.part_steps(tmp_path, "ps-1") == [5]

    again = Run(2, 2, folder=str(tmp_path), generation=generation)

    def resume(rank: int) -> dict[str, torch.Tensor]:
        strategy, pairs = begin(again, rank, saved)
        play(*pairs, 5, rank, 2)  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
        strategy.leave()
        return states(*pairs)

    with again.serving():
        found = again.on_workers(resume)
    assert all(difference(one, other) == 0 for one, other in zip(found, expected, strict=True))


def test_a_server_that_died_comes_back_with_all_pairs_and_none_with_another_s_old_values(tmp_path: Path) -> None:
    """The encoder's optimizer does not train the head, and must not send the head's initial values again."""
    run = Run(2, 1, 2, "downpour", folder=str(tmp_path), run_id="run", options={"checkpoint_every_s": 600.0})
    data = batches(4, 8)
    with run.serving():
        crew = []
        for rank in range(2):
            strategy, model = run.worker(rank), seeded(Shared, 3)
            optimizers = halves(model)
            distributed(strategy, *((model, each) for each in optimizers))
            crew.append((strategy, model, optimizers))
        for strategy, model, optimizers in crew:
            descend_halves(model, optimizers, data)
            for pair in strategy.pairs:
                pair._finish()
        versions = {number: pair.shard.version for number, pair in run.servers_now[0].pairs.items()}
        run.servers_now[0].save_for_itself()
        run.replace_server(0)
        assert {number: pair.shard.version for number, pair in run.servers_now[0].pairs.items()} == versions
        _, other, _ = crew[1]
        before = copy.deepcopy(other.head.state_dict())
        (strategy, model, optimizers) = crew[1]
        # In the second step, the worker notices that the server was lost and restarted.
        descend_halves(model, (optimizers[0],), data[:2])
        assert difference(other.head.state_dict(), before) == 0
        descend_halves(model, optimizers, data)
        assert run.servers_now[0].pairs[1].shard.version > versions[1]
        for strategy, _, _ in crew:
            strategy.leave()


@pytest.mark.parametrize("hears_late_by", [0, 2])
def test_what_each_pair_holds_back_is_pushed_at_a_save_by_its_own_count_of_steps(hears_late_by: int) -> None:
    """The second pair steps in every second step of the run; a step subtracts 1 from every parameter.

    At the save after step 4, the first pair has just pushed. The second pair has held back two steps, or three if the
    request for the save arrived late.
    """
    run = Run(2, 1, 1, "downpour", options={"push_every": 4, "pull_every": 2})

    def values() -> dict[int, set[float]]:
        return {
            number: {value for state in pair.shard._chunks.values() for value in state.parameters.tolist()}
            for number, pair in run.servers_now[0].pairs.items()
        }

    def act(rank: int) -> dict[int, set[float]]:
        strategy, saved = run.worker(rank), {}
        pairs = []
        for _ in range(2):
            model = nn.Linear(4, 2, bias=False).double()
            nn.init.zeros_(model.weight)
            pairs.append((model, torch.optim.SGD(model.parameters(), lr=1.0)))
        distributed(strategy, *pairs)
        strategy.at_boundary(0)
        for step in range(1, 8):
            for model, optimizer in pairs if step % 2 == 0 else pairs[:1]:
                model.weight.grad = torch.ones_like(model.weight)
                optimizer.step()
            strategy.at_boundary(step)
            if step == 4 + hears_late_by * rank:
                strategy.flush(4)
                saved = values()
        strategy.finish()
        strategy.leave()
        return saved

    with run.serving():
        saved, _ = run.on_workers(act)
        assert run.ended()
        ends = values()
    assert saved == {0: {-4.0}, 1: {-2.5 if hears_late_by else -2.0}}
    assert ends == {0: {-7.0}, 1: {-3.0}}


def test_a_group_that_comes_later_begins_with_what_the_servers_have_of_all_pairs() -> None:
    """The encoder has the chief's values at the beginning, because the head's optimizer does not train it."""
    run = Run(2, 1, 2, "downpour")
    data = batches(3, 8)
    with run.serving():
        crew = []
        for rank in range(2):
            strategy, model = run.worker(rank), seeded(Shared, 3 + rank)
            optimizers = halves(model)
            distributed(strategy, *((model, each) for each in optimizers))
            crew.append((strategy, model))
            if rank == 0:
                descend_halves(model, optimizers, data)
                for pair in strategy.pairs:
                    pair._finish()
        (chief, first), (late, second) = crew
        assert difference(first.state_dict(), second.state_dict()) == 0
        for strategy in (late, chief):
            strategy.leave()


def test_changes_of_one_pair_s_parameters_reach_its_own_servers_only() -> None:
    run = Run(2, 1)

    def act(rank: int) -> dict[str, torch.Tensor]:
        strategy = run.worker(rank)
        generator, critic = distributed(strategy, *gan())
        with torch.no_grad():
            for parameter in critic[0].parameters():
                parameter.mul_(0.5)
        descend(*generator, [(inputs[:, :3], inputs) for inputs, _ in batches(1, 4)], rank, 2)
        assert run.servers_now[0].pairs[1].shard.version == 0
        descend(*critic, [(inputs, inputs[:, :1]) for inputs, _ in batches(2, 4)], rank, 2)
        strategy.leave()
        return states(generator, critic)

    with run.serving():
        found = run.on_workers(act)
    (generator, critic) = gan()
    with torch.no_grad():
        for parameter in critic[0].parameters():
            parameter.mul_(0.5)
    descend(*generator, [(inputs[:, :3], inputs) for inputs, _ in batches(1, 4)])
    descend(*critic, [(inputs, inputs[:, :1]) for inputs, _ in batches(2, 4)])
    assert all(difference(each, states(generator, critic)) < 1e-12 for each in found)


def test_parameters_that_a_save_brings_are_no_change_of_the_script_s_behind_another_pair_s_gradients(
    tmp_path: Path,
) -> None:
    """Parameters that are pulled at a save do not count as changed by the script.

    At the save, the critic has gradients of the generator's loss that predate the servers' newest values.
    """
    run = Run(2, 1, 1, "downpour", folder=str(tmp_path))

    def act(rank: int) -> None:
        strategy = run.worker(rank)
        generator, critic = distributed(strategy, *gan())
        play(generator, critic, 1, rank, 2)
        if rank == 0:
            with torch.no_grad():
                for state in run.servers_now[0].pairs[1].shard._chunks.values():
                    state.parameters.add_(0.01)  # A push by another group would have the same effect.
            strategy.save(tmp_path, 1)
            for parameter in critic[0].parameters():
                parameter.grad = None
        inputs, targets = batches(1, 8)[0]
        if rank == 0:
            nn.functional.mse_loss(critic[0](inputs[::2]), targets[::2, :1]).backward()
            strategy.pairs[1]._check_guard()
        strategy.leave()

    with run.serving():
        run.on_workers(act)


# Tests of clipping


def clip_alone(judging: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(judging.param_groups[0]["params"], 0.02)


def test_the_optimizer_that_steps_next_is_clipped_by_its_own_norm() -> None:
    run = Run(2, 2)

    def act(rank: int) -> dict[str, torch.Tensor]:
        strategy = run.worker(rank)
        pairs = distributed(strategy, *gan())
        play(  # type: ignore[call-arg]  # The pair is unpacked into two arguments.
            *pairs,
            8,
            rank,
            2,
            clip=lambda judging: strategy.clip_gradients(judging.param_groups[0]["params"], 0.02),
        )
        strategy.leave()
        return states(*pairs)

    with run.serving():
        found = run.on_workers(act)
    expected = gan()
    play(*expected, 8, clip=clip_alone)
    assert all(difference(each, states(*expected)) < 1e-12 for each in found)


def both(optimizers: tuple[torch.optim.Optimizer, ...]) -> list[torch.Tensor]:
    return [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]


def descend_clipped(
    model: Shared, optimizers: tuple, data: list, clip: Callable[..., Any], part: int, parts: int
) -> None:
    for inputs, targets in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts]).backward()
        clip(both(optimizers))
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("by", ["norm", "value"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_that_step_together_are_clipped_together_on_the_mean_gradient(by: str, workers: int) -> None:
    run = Run(workers, 2)
    data = batches(10, 12)

    def act(rank: int) -> Shared:
        strategy, model = run.worker(rank), seeded(Shared, 3)
        optimizers = halves(model)
        distributed(strategy, *((model, each) for each in optimizers))
        own, most = (strategy.clip_gradients, 0.5) if by == "norm" else (strategy.clip_values, 0.02)
        descend_clipped(model, optimizers, data, lambda parameters: own(parameters, most), rank, workers)
        strategy.leave()
        return model

    with run.serving():
        models = run.on_workers(act)
        assert run.ended()
    expected = seeded(Shared, 3)
    torchs, most = (nn.utils.clip_grad_norm_, 0.5) if by == "norm" else (nn.utils.clip_grad_value_, 0.02)
    descend_clipped(expected, halves(expected), data, lambda parameters: torchs(parameters, most), 0, 1)
    assert all(difference(model.state_dict(), expected.state_dict()) < 1e-12 for model in models)


def test_a_norm_of_gradients_that_are_not_stepped_with_is_refused() -> None:
    """Without `optimizer=`, clip_gradients() would also clip gradients of the pair that is not stepped next."""
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        (maker, making), (judge, judging) = distributed(strategy, *gan())
        everything = [*maker.parameters(), *judge.parameters()]
        judge(maker(torch.ones(4, 3, dtype=torch.float64))).mean().backward()
        strategy.clip_gradients(everything, 1.0)
        judging.step()
        making.zero_grad()
        maker(torch.ones(4, 3, dtype=torch.float64)).mean().backward()
        with pytest.raises(UsageProblem, match=r"a second time before .*clip_gradients\(1\.0, optimizer="):
            strategy.clip_gradients(everything, 1.0)
        with pytest.raises(UsageProblem, match=r"changed between clip_gradients\(\) and optimizer\.step\(\)"):
            making.step()
        strategy.leave()


@pytest.mark.parametrize("added", [False, True])
def test_a_value_clips_the_gradients_that_it_was_called_for_and_no_later_ones(added: bool) -> None:
    run = Run(2, 1)

    def act(rank: int) -> list[float]:
        strategy = run.worker(rank)
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        strategy.distribute(model, optimizer, CPU)
        inputs = torch.tensor([[3.0 * rank, -0.25]])
        model(inputs).sum().backward()
        strategy.clip_values(list(model.parameters()), 0.5)
        if not added:
            optimizer.zero_grad()
        model(inputs).sum().backward()
        if added:
            with pytest.raises(UsageProblem, match=r"changed between clip_gradients\(\) and optimizer\.step\(\)"):
                optimizer.step()
        else:
            optimizer.step()
        strategy.leave()
        return model.weight[0].tolist()

    with run.serving():
        assert run.on_workers(act) == [[0.0, 0.0] if added else [-1.5, 0.25]] * 2


def test_values_that_workers_do_not_clip_alike_by_are_refused() -> None:
    run = Run(2, 1, chunk_bytes=None)

    def act(rank: int) -> str:
        strategy, model = run.worker(rank), network()
        optimizer = momentum(model)
        strategy.distribute(model, optimizer, CPU)
        model(batches(1, 4)[0][0]).sum().backward()
        strategy.clip_values(list(model.parameters()), 0.5 + rank)
        with pytest.raises((UsageProblem, PeerLost)) as raised:
            optimizer.step()
        strategy.abandon()
        return str(raised.value)

    with run.serving():
        errors = run.on_workers(act)
    assert any("clip_gradients(value=…) was not called in the same way by all workers" in each for each in errors), (
        errors
    )


@pytest.mark.parametrize("by", ["norm", "value"])
def test_where_not_every_step_is_pushed_each_worker_clips_its_own(by: str) -> None:
    run = Run(2, 1, 1, "downpour", options={"push_every": 2})

    def act(rank: int) -> float:
        strategy = run.worker(rank)
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        strategy.distribute(model, optimizer, CPU)
        clip = strategy.clip_gradients if by == "norm" else strategy.clip_values
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(1, 1, dtype=torch.float64)) * (4 if rank else 0.25)).sum().backward()
            clip(list(model.parameters()), 0.5)
            optimizer.step()
        strategy.finish()
        strategy.leave()
        return float(run.servers_now[0].pairs[0].shard._chunks[0].parameters[0])

    with run.serving():
        assert run.on_workers(act) == pytest.approx([-(0.5 + 0.25)] * 2, abs=1e-5)
