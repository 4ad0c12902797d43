"""Tests of the methods of Cluster, such as clipping by value, accumulate() and unwrap(), of `with ty.join()`, and of
exports.
"""

from __future__ import annotations

import ast

import pytest
import torch

import torchyard_roles as ty
from tests.roles.processes import Keeper, Start, output_of
from tests.roles.strategies.parameter_server.served_run import Run
from torchyard_roles import errors, process_entry

pytestmark = pytest.mark.train


def test_what_is_exported_is_pinned() -> None:
    assert ty.__all__ == [
        "Cluster",
        "EnvironmentProblem",
        "NotFinite",
        "NotInThisVersion",
        "PeerLost",
        "ProtocolError",
        "RolesError",
        "StoreLost",
        "StoreTimeout",
        "UsageProblem",
        "join",
        "unwrap",
    ]
    assert all(hasattr(ty, name) for name in ty.__all__)


def test_all_errors_are_exported() -> None:
    found = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, ty.RolesError)}
    assert found <= set(ty.__all__)
    assert {getattr(ty, name) for name in found} == {getattr(errors, name) for name in found}


def test_the_calls_of_a_cluster_are_pinned() -> None:
    assert {name for name in vars(ty.Cluster) if not name.startswith("_")} >= {
        *("accumulate", "any", "barrier", "broadcast", "checkpoint", "clip_gradients", "distribute", "evaluations"),
        *("gather", "leave", "loader", "mean", "report", "unwrap"),
    }


def test_gradients_are_clipped_by_value() -> None:
    with ty.join() as cluster:
        model = torch.nn.Linear(2, 1)
        with pytest.raises(ty.UsageProblem, match="before distribute"):
            cluster.clip_gradients(value=0.5)
        model, _ = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.tensor([[3.0, -0.25]])).sum().backward()
        assert cluster.clip_gradients(value=0.5) is None
        assert model.weight.grad.tolist() == [[0.5, -0.25]]
        for wrong in ({}, {"max_norm": 1.0, "value": 1.0}):
            with pytest.raises(ty.UsageProblem, match="either a norm or a value"):
                cluster.clip_gradients(**wrong)
        with pytest.raises(ty.UsageProblem, match=r"clip_gradients\(value=-1\) leaves no gradient"):
            cluster.clip_gradients(value=-1)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_with_servers_the_mean_over_the_workers_is_clipped_by_value(workers: int) -> None:
    run = Run(workers)

    def act(rank: int) -> list[float]:
        strategy = run.worker(rank)
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        model, optimizer = strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), torch.device("cpu"))
        model(torch.tensor([[3.0 * workers * (rank == 0), -0.25]])).sum().backward()
        for value in (0.5, 0.7):
            strategy.clip_values(list(model.parameters()), value)
        optimizer.step()
        strategy.leave()
        found: list[float] = model.weight[0].tolist()
        return found

    with run.serving():
        assert run.on_workers(act) == [[-0.5, 0.25]] * workers


def test_one_optimizer_s_gradients_can_be_clipped() -> None:
    with ty.join() as cluster:
        models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
        cluster.distribute(models, optimizers)
        for each in models:
            each(torch.full((1, 1), 3.0)).sum().backward()
        assert cluster.clip_gradients(1.0, optimizer=optimizers[1]) == 3.0
        cluster.clip_gradients(value=2.0, optimizer=optimizers[0])
        assert [each.weight.grad.item() for each in models] == pytest.approx([2.0, 1.0])
        with pytest.raises(ty.UsageProblem, match=r"an optimizer that distribute\(\) was not given"):
            cluster.clip_gradients(1.0, optimizer=torch.optim.SGD(models[0].parameters(), lr=0.1))


def test_accumulated_passes_add_up_in_one_process() -> None:
    with ty.join() as cluster:
        model = torch.nn.Linear(1, 1)
        model, _ = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with cluster.accumulate():
            model(torch.ones(1, 1)).sum().backward()
        model(torch.ones(1, 1)).sum().backward()
        assert model.weight.grad.item() == 2


def test_unwrap_finds_the_scripts_own_module() -> None:
    own = torch.nn.Linear(1, 1)
    assert ty.unwrap(own) is own
    assert ty.unwrap(torch.compile(own, backend="eager")) is own
    assert ty.unwrap(torch.nn.DataParallel(torch.compile(own, backend="eager"))) is own
    with ty.join() as cluster:
        model, _ = cluster.distribute(own, torch.optim.SGD(own.parameters(), lr=0.1))
        assert cluster.unwrap(model) is own


WRAPPED = """
import torch, torchyard_roles as ty
with ty.join() as cluster:
    own = torch.nn.Linear(1, 1)
    model, optimizer = cluster.distribute(own, torch.optim.SGD(own.parameters(), lr=0.1))
    compiled = torch.compile(model, backend='eager')
    print([ty.unwrap(model) is own, ty.unwrap(compiled) is own, len(ty.unwrap(model).state_dict())])
print(cluster.has_left)
"""


def test_unwrap_and_with_between_two_workers(start: Start) -> None:
    from tests.roles.processes import free_port, trainer_environment

    port = free_port()
    workers = [start("-c", WRAPPED, environment=trainer_environment(rank, 2, port)) for rank in range(2)]
    for worker in workers:
        first, second = output_of(worker).splitlines()[-2:]
        assert ast.literal_eval(first) == [True, True, 2]
        assert second == "True"


def test_the_size_of_the_gradients_is_reported(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen parameters have no gradient, and tied parameters share one."""
    monkeypatch.setenv("TORCHYARD_REPORT", keeper.address)
    first, second, half = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(4, 4).half()
    second.weight = first.weight
    first.bias.requires_grad_(False)
    tied = torch.nn.Sequential(first, second)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (tied, half)]
    with ty.join() as cluster:
        cluster.distribute([tied, half], optimizers)
        tied(torch.ones(1, 8)).sum().backward()
        optimizers[0].step()
    assert keeper.received()[-1][2]["gradient_bytes"] == 8 * 8 * 4 + (4 * 4 + 4) * 2


def test_with_leaves_at_its_end_and_lets_exceptions_through() -> None:
    with ty.join() as cluster:
        assert not cluster.has_left
    assert cluster.has_left
    ended: list[str] = []

    def end_with(error: BaseException) -> None:
        with ty.join() as cluster:
            cluster._strategy.abandon = lambda: ended.append("abandoned")
            cluster._strategy.leave = lambda: ended.append("left")
            raise error

    with pytest.raises(ZeroDivisionError):
        end_with(ZeroDivisionError())
    assert process_entry._joined.has_left
    process_entry._joined.leave()
    process_entry._joined._leave_at_exit()
    assert ended == ["abandoned"]
    with pytest.raises(SystemExit):
        end_with(SystemExit(0))
    assert ended == ["abandoned", "left"]
