"""Tests of parameters that a script changes outside optimizer.step(). The servers accept or refuse such changes."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import Odd, batches, momentum, network
from tests.waiting import wait_until
from torchyard_roles.errors import PeerLost, UsageProblem
from torchyard_roles.strategies.parameter_server.parameter_changes import InstalledParameters

pytestmark = pytest.mark.train

CPU = torch.device("cpu")


def clamp(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def decay(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.99)
        model[2].bias.data = model[2].bias.data.clone() * 0.5


def descend_changing(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list,
    change: Callable[[nn.Module], None],
    part: int = 0,
    parts: int = 1,
    clip: Callable[[list[nn.Parameter], float], torch.Tensor] | None = None,
) -> None:
    for inputs, targets in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts]).backward()
        if clip is not None:
            clip(list(model.parameters()), 0.5)
        optimizer.step()
        change(model)


@pytest.mark.parametrize(("change", "clips"), [(clamp, False), (decay, True)])
@pytest.mark.parametrize("strategy", ["sandblaster", "downpour"])
def test_changes_that_all_workers_make_alike_are_as_in_one_process(
    change: Callable[[nn.Module], None], clips: bool, strategy: str
) -> None:
    run, data = Run(3, 2, strategy=strategy), batches(20, 9)

    def act(rank: int) -> nn.Module:
        served, model = run.worker(rank), network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        change(model)  # Changes before the first step are sent, too.
        descend_changing(model, optimizer, data, change, rank, 3, served.clip_gradients if clips else None)
        served.leave()
        return model

    with run.serving():
        models = run.on_workers(act)
    expected = network()
    optimizer = momentum(expected)
    change(expected)
    descend_changing(expected, optimizer, data, change, clip=nn.utils.clip_grad_norm_ if clips else None)
    for model in models:
        assert difference(model.state_dict(), expected.state_dict()) < 1e-12


def test_the_last_worker_pulls_the_parameters_from_before_the_chiefs_change() -> None:
    run, pushed = Run(2, 1), threading.Event()

    def act(rank: int) -> nn.Module:
        served, model = run.worker(rank), network()
        if rank:
            assert pushed.wait(30)
        model, optimizer = served.distribute(model, momentum(model), CPU)
        decay(model)
        if not rank:
            served.pairs[0]._begin = begun(served.pairs[0]._begin)
        descend(model, optimizer, batches(1, 8), rank, 2)
        served.leave()
        return model

    def begun(begin: Callable[..., None]) -> Callable[..., None]:
        def begin_and_say(*arguments: object, **options: object) -> None:
            begin(*arguments, **options)
            chunks = run.servers_now[0].pairs[0].shard._chunks.values()
            # The server has received both the changed parameters and the push.
            wait_until(lambda: any(chunk.sums for chunk in chunks))
            pushed.set()

        return begin_and_say

    with run.serving():
        models = run.on_workers(act)
    expected = network()
    optimizer = momentum(expected)
    decay(expected)
    descend(expected, optimizer, batches(1, 8))
    for model in models:
        assert difference(model.state_dict(), expected.state_dict()) < 1e-12


def test_a_checkpoint_holds_what_the_script_has_made_of_the_parameters(tmp_path: Path) -> None:
    data = batches(20, 8)

    def act(run: Run, rank: int, model: nn.Module, data: list, *, resumed: bool) -> nn.Module:
        served = run.worker(rank)
        model, optimizer = served.distribute(model, momentum(model), CPU)
        if resumed:
            served.restore(tmp_path, 10)
        descend_changing(model, optimizer, data, clamp, rank, 2)
        if not resumed and rank == 0:
            served.save(tmp_path, 10)
        served.leave()
        return model

    with Run(2, 2, folder=str(tmp_path)).serving() as run:
        saved, _ = run.on_workers(lambda rank: act(run, rank, network(), data[:10], resumed=False))
    with Run(2, 2, folder=str(tmp_path), generation=1).serving() as run:
        models = [copy.deepcopy(saved) for _ in range(2)]
        resumed, _ = run.on_workers(lambda rank: act(run, rank, models[rank], data[10:], resumed=True))
    expected = network()
    descend_changing(expected, momentum(expected), data, clamp)
    assert difference(resumed.state_dict(), expected.state_dict()) < 1e-12


@pytest.mark.parametrize("groups", [1, 2])
def test_a_model_may_be_rounded_when_it_has_been_trained(groups: int, tmp_path: Path) -> None:
    run = Run(groups, 1, groups, "downpour", folder=str(tmp_path))

    def act(rank: int) -> None:
        served, model = run.worker(rank), network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        descend(model, optimizer, batches(2, 4))
        model.half()
        if not rank:
            served.save(tmp_path, 2)
        served.finish()
        served.leave()
        assert model[0].weight.dtype == torch.float16

    with run.serving():
        run.on_workers(act)
        assert run.ended()


@pytest.mark.parametrize("changes", [(0,), (1,), (0, 1)], ids=["the first alone", "the other alone", "differently"])
def test_a_change_that_is_not_alike_on_all_workers_is_refused_on_all(changes: tuple[int, ...]) -> None:
    run = Run(2, 1, chunk_bytes=None)

    def act(rank: int) -> str:
        served, model = run.worker(rank), network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        descend(model, optimizer, batches(1, 8), rank, 2)
        if rank in changes:
            model[2].bias.data.add_(1 + rank)
        with pytest.raises((UsageProblem, PeerLost)) as raised:
            descend(model, optimizer, batches(1, 8), rank, 2)
        served.abandon()
        return str(raised.value)

    with run.serving():
        errors = run.on_workers(act)
    assert any(
        "differently on the workers: 0.weight or 0.bias or 2.weight or 2.bias. Make the same" in each for each in errors
    )


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (Run(2, 1, 2, "downpour"), "updates of other worker groups"),
        (Run(1, 1, 1, "downpour", options={"push_every": 2, "pull_every": 2}), "push_every, pull_every"),
        (Run(1, 1, options={"backup_workers": 1}), "backup_workers"),
    ],
)
def test_where_servers_cannot_take_a_change_it_is_refused_by_name(run: Run, why: str) -> None:
    with run.serving():
        workers = [run.worker(rank) for rank in range(run.workers)]
        served, model = workers[0], network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        descend(model, optimizer, batches(3, 4))  # A step of the optimizer does not count as a change by the script.
        model[2].weight.data.clamp_(-0.01, 0.01)
        with pytest.raises(UsageProblem, match=rf"the parameter 2\.weight outside .*{why}.* Train with sandblaster"):
            descend(model, optimizer, batches(1, 4))
        for worker in workers:
            worker.abandon()


def test_what_is_changed_between_clipping_and_the_step_is_refused_and_so_is_another_dtype() -> None:
    run = Run(1, 1)
    with run.serving():
        served, model = run.worker(0), network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        model(batches(1, 4)[0][0]).sum().backward()
        served.clip_gradients(list(model.parameters()), 1.0)
        model[0].weight.data.mul_(0.5)
        with pytest.raises(UsageProblem, match=r"0\.weight between clip_gradients\(\) and optimizer\.step\(\)"):
            optimizer.step()
        model.float()
        with pytest.raises(UsageProblem, match=r"0\.weight was 24×12 of float64 on cpu .* is now 24×12 of float32"):
            optimizer.step()
        served.abandon()


def test_a_change_of_any_parameter_is_seen_bit_by_bit_and_none_where_there_is_none() -> None:
    with SEEDING:
        model = Odd()
    parameters = list(model.parameters())
    parameters += [nn.Parameter(torch.randn(6)[1:]), nn.Parameter(torch.full((3,), float("nan")))]
    parameters += [nn.Parameter(torch.randn(3, dtype=each)) for each in (torch.bfloat16, torch.complex64)]
    installed = InstalledParameters([str(number) for number in range(len(parameters))], parameters)
    installed.note()
    assert installed.changed() == []
    for number, parameter in enumerate(parameters):
        version = parameter._version
        parameter.data.view(-1)[-1:].neg_() if parameter.is_contiguous() else parameter.data[-1, -1].neg_()
        assert installed.changed() == [number]
        assert parameter._version == version
        installed.note()
        assert parameter._version == version + 1
    assert installed.changed() == []


def gan() -> nn.ModuleDict:
    with SEEDING:
        torch.manual_seed(1)
        return nn.ModuleDict({"g": nn.Linear(12, 12), "d": nn.Linear(12, 1)}).double()


def adversarial(model: nn.ModuleDict, optimizer: torch.optim.Optimizer, data: list, part: int, parts: int) -> None:
    """Trains as the DCGAN of pytorch/examples does: images that were generated before the discriminator's step are used
    after it.
    """
    for inputs, _ in data:
        fake = torch.tanh(model["g"](inputs[part::parts]))
        optimizer.zero_grad()
        model["d"](fake.detach()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        (1 - model["d"](fake)).square().mean().backward()
        for parameter in model["d"].parameters():
            parameter.grad = None
        optimizer.step()


def test_what_a_step_does_not_change_can_still_be_in_a_graph() -> None:
    run, data = Run(2, 2), batches(10, 8)

    def act(rank: int) -> nn.Module:
        served, model = run.worker(rank), gan()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        adversarial(model, optimizer, data, rank, 2)
        served.leave()
        return model

    with run.serving():
        trained, _ = run.on_workers(act)
    expected = gan()
    adversarial(expected, momentum(expected), data, 0, 1)
    assert difference(trained.state_dict(), expected.state_dict()) < 1e-12


@pytest.mark.parametrize("chunk_bytes", [256, None], ids=["received in place", "by way of a copy"])
def test_what_a_step_changes_cannot(chunk_bytes: int | None) -> None:
    """A second backward pass through changed parameters raises an error, because its gradients would be wrong."""
    run = Run(1, 1, chunk_bytes=chunk_bytes)
    with run.serving():
        served, model = run.worker(0), nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12)).double()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        loss = model(batches(1, 4)[0][0]).square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        served.leave()


def test_parameters_are_installed_inside_step_alone() -> None:
    run = Run(2, 1, 2, "downpour")
    with run.serving():
        (served, model), (other, its) = [(run.worker(rank), network()) for rank in range(2)]
        model, optimizer = served.distribute(model, momentum(model), CPU)
        other.distribute(its, momentum(its), CPU)
        inputs, _ = batches(1, 4)[0]
        loss = model(inputs).square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        served.pairs[0]._exchange.wait()  # The new parameters have arrived, but are installed only by the next step.
        loss.backward()
        assert difference(model.state_dict(), network().state_dict()) == 0
        optimizer.step()
        assert difference(model.state_dict(), network().state_dict()) > 0
        for worker in (served, other):
            worker.abandon()


def test_the_optimizer_is_copied_and_saved_as_the_plain_one_that_it_looks_like() -> None:
    run = Run(1, 1)
    with run.serving():
        served, model = run.worker(0), network()
        scheduled = momentum(model)
        scheduler = torch.optim.lr_scheduler.StepLR(scheduled, 1, gamma=0.5)
        model, optimizer = served.distribute(model, scheduled, CPU)
        descend(model, optimizer, batches(2, 4))
        scheduler.step()
        file = io.BytesIO()
        torch.save({"optimizer": optimizer, "model": model, "scheduler": scheduler.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        for other, its in ((loaded["optimizer"], loaded["model"]), copy.deepcopy((optimizer, model))):
            assert type(other) is torch.optim.SGD
            assert other.param_groups[0]["lr"] == 0.01
            before = {name: value.clone() for name, value in model.state_dict().items()}
            version = run.servers_now[0].pairs[0].shard.version
            descend(its, other, batches(1, 4))  # The copy is trained without servers.
            assert difference(its.state_dict(), before) > 0
            assert difference(model.state_dict(), before) == 0
            assert run.servers_now[0].pairs[0].shard.version == version
        descend(model, optimizer, batches(1, 4))
        assert run.servers_now[0].pairs[0].shard.version == version + 1
        served.leave()
