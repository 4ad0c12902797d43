"""Tests that parameters that are added or unfrozen after distribute() are trained by the servers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import batches
from torchyard_roles.checkpoints.restore import Resumed
from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.exchange.parameter_layout import ADDED, SMALLEST_CHUNK, Entry, added_chunks

pytestmark = pytest.mark.train

CPU = torch.device("cpu")


def network() -> nn.Sequential:
    with SEEDING:
        torch.manual_seed(1)
        layers = [nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)]
        return nn.Sequential(*layers).double()


def frozen() -> nn.Sequential:
    model = network()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    return model


def whole(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of the reference, which has all parameters from the start."""
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(torch.optim, kind)(model.parameters(), lr=0.02, **options)


def head(kind: str, model: nn.Sequential) -> torch.optim.Optimizer:
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(torch.optim, kind)(model[4].parameters(), lr=0.02, **options)


def unfreeze(model: nn.Sequential, optimizer: torch.optim.Optimizer, layer: int) -> None:
    model[layer].requires_grad_(True)


def add(model: nn.Sequential, optimizer: torch.optim.Optimizer, layer: int) -> None:
    model[layer].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[layer].parameters()), "lr": 0.01})


def descend_growing(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list,
    grow: Callable[[nn.Module, torch.optim.Optimizer, int], None],
    part: int = 0,
    parts: int = 1,
    clip: Callable[[list[nn.Parameter], float], torch.Tensor] | None = None,
    first: int = 0,
) -> None:
    """Trains from step `first` on, and adds layers 2 and 0 after steps 4 and 8."""
    joins = {4: 2, 8: 0}
    for step in range(first):
        if step in joins:
            grow(model, optimizer, joins[step])
    for step, (inputs, targets) in enumerate(data[first:], first):
        if step in joins:
            grow(model, optimizer, joins[step])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts]).backward()
        if clip is not None:
            clip(list(model.parameters()), 0.3)
        optimizer.step()


@pytest.mark.parametrize(
    ("optimizer_of", "grow", "kind", "clips"),
    [
        (whole, unfreeze, "SGD", False),
        (head, add, "AdamW", False),
        (head, add, "SGD", True),
        (head, add, "Adafactor", False),
    ],
)
def test_what_joins_later_trains_as_in_one_process(
    optimizer_of: Callable[[str, nn.Module], torch.optim.Optimizer],
    grow: Callable[[nn.Module, torch.optim.Optimizer, int], None],
    kind: str,
    clips: bool,
) -> None:
    run, data = Run(3, 2), batches(14, 9)

    def act(rank: int) -> nn.Module:
        served, model = run.worker(rank), frozen()
        model, optimizer = served.distribute(model, optimizer_of(kind, model), CPU)
        descend_growing(model, optimizer, data, grow, rank, 3, served.clip_gradients if clips else None)
        served.leave()
        return model

    with run.serving():
        models = run.on_workers(act)
        assert run.ended()
        assert [server.pairs[0].shard.version for server in run.servers_now] == [14, 14]
    expected = frozen()
    descend_growing(
        expected, optimizer_of(kind, expected), data, grow, clip=nn.utils.clip_grad_norm_ if clips else None
    )
    assert difference(expected.state_dict(), network().state_dict()) > 0.01
    for model in models:
        assert difference(model.state_dict(), expected.state_dict()) < 1e-10


def test_a_run_that_is_resumed_goes_on_with_what_had_joined_before(tmp_path: Path) -> None:
    """In the resumed run, both layers are added in the first step. In the original run, they were added one after the
    other.
    """
    data = batches(14, 8)

    def act(run: Run, rank: int, model: nn.Module, first: int) -> nn.Module:
        served = run.worker(rank)
        model, optimizer = served.distribute(model, head("AdamW", model), CPU)
        if first:
            served.restore(tmp_path, first)
        descend_growing(model, optimizer, data if first else data[:10], add, rank, 2, first=first)
        if not first and rank == 0:
            served.save(tmp_path, 10)
        served.leave()
        return model

    with Run(2, 2, folder=str(tmp_path)).serving() as run:
        saved, _ = run.on_workers(lambda rank: act(run, rank, frozen(), 0))
    with Run(2, 2, folder=str(tmp_path), generation=1).serving() as run:
        models = [copy.deepcopy(saved) for _ in range(2)]
        for model in models:
            model[0].requires_grad_(False)
            model[2].requires_grad_(False)
        resumed, _ = run.on_workers(lambda rank: act(run, rank, models[rank], 10))
    expected = frozen()
    descend_growing(expected, head("AdamW", expected), data, add)
    assert difference(resumed.state_dict(), expected.state_dict()) < 1e-12


def test_groups_of_downpour_add_when_they_come_to_it_and_a_server_that_dies_comes_back_with_it(tmp_path: Path) -> None:
    options = {"push_every": 2, "pull_every": 1, "checkpoint_every_s": 600.0}
    run = Run(2, 2, 2, "downpour", folder=str(tmp_path), run_id="run", options=options)
    done = threading.Event()

    def act(rank: int) -> nn.Module:
        served, model = run.worker(rank), frozen()
        model, optimizer = served.distribute(model, head("SGD", model), CPU)
        if rank:
            descend(model, optimizer, batches(2, 4))
            # At the end of this wait, group 0 has added both layers and a server has been restarted. This group has
            # added no layer yet.
            assert done.wait(30)
        descend_growing(model, optimizer, batches(10, 4), add)
        served.pairs[0]._finish()
        if not rank:
            for server in run.servers_now:
                server.save_for_itself()
            run.replace_server(0)
            descend(model, optimizer, batches(1, 4))  # The push to the restarted server is lost.
            done.set()
        descend(model, optimizer, batches(3, 4))
        served.finish()
        served.leave()
        return model

    with run.serving():
        chief, _ = run.on_workers(act)
        assert run.ended()
        counts = [server.pairs[0].shard.ledger.counts for server in run.servers_now]
        held = {n: state for server in run.servers_now for n, state in server.pairs[0].shard._chunks.items()}
    assert [count.dropped for count in counts] == [0, 0]
    assert sum(state.chunk.elements for state in held.values()) == sum(each.numel() for each in chief.parameters())
    # The chief ends with the servers' values of all parameters, including the added ones.
    entry = Entry("0.weight", (24, 12), "float64", 2)
    values = torch.cat([held[chunk.number].parameters for chunk in added_chunks(entry, 2, 256, whole=False)])
    assert torch.equal(values, chief[0].weight.detach().view(-1))
    assert not torch.equal(chief[0].weight, network()[0].weight)


@pytest.mark.parametrize("who", [0, 1])
def test_workers_that_add_different_parameters_raise_instead_of_waiting(who: int) -> None:
    run = Run(2, 2)

    def act(rank: int) -> str:
        served, model = run.worker(rank), frozen()
        model, optimizer = served.distribute(model, head("SGD", model), CPU)
        descend(model, optimizer, batches(2, 8), rank, 2)
        if rank == who:
            add(model, optimizer, 2)
        with pytest.raises((UsageProblem, PeerLost)) as raised:
            descend(model, optimizer, batches(3, 8), rank, 2)
        served.abandon()
        return str(raised.value)

    with run.serving():
        errors = run.on_workers(act)
    assert any(
        f"given parameters that the optimizer of worker-{1 - who} was not. Call add_param_group()" in s for s in errors
    )


def test_a_module_that_is_made_later_is_alike_on_all_workers_or_refused() -> None:
    run = Run(2, 1)

    def act(rank: int) -> str:
        served, model = run.worker(rank), network()
        model, optimizer = served.distribute(model, head("SGD", model), CPU)
        descend(model, optimizer, batches(1, 8), rank, 2)
        for fill in (0.5, 1.0 + rank):
            layer = nn.Linear(3, 3).double()
            layer.weight.data.fill_(fill)
            layer.bias.data.zero_()
            model.append(layer)
            optimizer.add_param_group({"params": layer.parameters()})
            try:
                descend(model, optimizer, batches(1, 8), rank, 2)
            except (UsageProblem, PeerLost) as error:
                served.abandon()
                return f"{fill}: {error}"
        return ""

    with run.serving():
        errors = run.on_workers(act)
        assert run.servers_now[0].pairs[0].shard.version == 2
    assert errors[0].startswith("1.0: ")
    assert errors[1].startswith(
        "2.0: The values of 6.weight, which was added later to the optimizer of worker-1, differ from"
    )


def test_a_parameter_that_is_taken_from_the_optimizer_is_refused_by_name() -> None:
    run = Run(1, 1)
    with run.serving():
        served, model = run.worker(0), network()
        model, optimizer = served.distribute(model, whole("SGD", model), CPU)
        descend(model, optimizer, batches(1, 4))
        model[0].requires_grad_(False)  # Freezing a parameter is allowed.
        descend(model, optimizer, batches(1, 4))
        del optimizer.param_groups[0]["params"][0]
        with pytest.raises(UsageProblem, match=r"0\.weight is no longer in group 0 .* requires_grad_\(False\) instead"):
            descend(model, optimizer, batches(1, 4))
        optimizer.param_groups[0]["params"].insert(0, model[0].weight)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        with pytest.raises(UsageProblem, match="parameters that do not belong to the model"):
            descend(model, optimizer, batches(1, 4))
        served.abandon()


def test_chunks_of_what_joins_later_follow_from_its_name_alone() -> None:
    large = Entry("large", (100, 1000), "float64", 3)
    small = Entry("small", (SMALLEST_CHUNK // 8,), "float64", 3)
    cut = added_chunks(large, 3, 1 << 17, whole=False)
    assert {chunk.shard for chunk in cut} == {0, 1, 2}
    assert sum(chunk.elements for chunk in cut) == large.elements
    assert max(chunk.bytes for chunk in cut) <= 1 << 17
    assert len(added_chunks(large, 3, 1 << 17, whole=True)) == len(added_chunks(small, 3, 256, whole=False)) == 1
    assert min(chunk.number for chunk in cut) >= ADDED
    assert len({chunk.number for chunk in [*cut, *added_chunks(small, 3, None, whole=False)]}) == len(cut) + 1
    assert added_chunks(large._replace(group=1), 3, 1 << 17, whole=False)[0].number == cut[0].number
    assert added_chunks(Entry("none", (0, 3), "float32", 0), 2, None, whole=False) == []


def test_an_optimizer_s_state_waits_for_the_groups_that_the_script_adds_again() -> None:
    data = batches(12, 8)
    model = frozen()
    optimizer = head("SGD", model)
    descend_growing(model, optimizer, data[:10], add)
    saved, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    descend_growing(model, optimizer, data, add_nothing, first=10)
    again = head("SGD", saved)
    resumed = Resumed(10, {"optimizer": state}, None)
    resumed.into(again, CPU)
    with pytest.raises(UsageProblem, match=r"groups had \[2, 2, 2\] parameters, and here they have \[2\]"):
        Resumed(10, {"optimizer": state}, None).finish(again, {}, CPU)
    for layer in (2, 0):
        add(saved, again, layer)
    resumed.finish(again, {}, CPU)
    descend_growing(saved, again, data, add_nothing, first=10)
    assert difference(saved.state_dict(), model.state_dict()) == 0


def add_nothing(*_: object) -> None:
    pass
