"""A script that nobody launched, and an evaluator: one process, and torch.distributed stays untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import torchyard_roles as ty
from tests.roles.processes import Keeper, Start, bare_environment

pytestmark = pytest.mark.train


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[ty.Cluster]:
    """This process's own cluster, with no environment of a launcher."""
    kept = bare_environment()
    for name in set(os.environ) - set(kept):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cluster = ty.join()
    yield cluster
    cluster.leave()


def linear_with_sgd():
    import torch

    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_importing_it_imports_no_torch() -> None:
    code = "import torchyard_roles, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=bare_environment(), check=False).returncode == 0


def test_a_script_run_by_hand_is_the_whole_run(joined: ty.Cluster) -> None:
    import torch.distributed as dist

    assert (joined.role, joined.index, joined.rank, joined.world_size) == ("worker", 0, 0, 1)
    assert joined.is_chief
    assert str(joined.device) == "cpu"
    assert not dist.is_initialized()
    assert ty.join() is joined


def test_model_and_optimizer_come_back_as_they_were(joined: ty.Cluster) -> None:
    model, optimizer = linear_with_sgd()
    assert joined.distribute(model, optimizer) == (model, optimizer)


def test_one_process_gets_the_whole_data_in_the_order_of_a_plain_loader(joined: ty.Cluster) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.arange(50))
    torch.manual_seed(3)
    plain = [batch.tolist() for (batch,) in DataLoader(dataset, batch_size=8, shuffle=True)]
    torch.manual_seed(3)
    ours = joined.loader(dataset, batch_size=8)
    assert isinstance(ours, DataLoader)
    assert len(ours) == 7
    assert [batch.tolist() for (batch,) in ours] == plain


def test_a_seed_fixes_the_order_and_epochs_differ(joined: ty.Cluster) -> None:
    import torch
    from torch.utils.data import TensorDataset

    dataset = TensorDataset(torch.arange(50))
    first, second = joined.loader(dataset, seed=7), joined.loader(dataset, seed=7)
    epochs = [next(iter(first))[0].tolist() for _ in range(2)]
    assert [next(iter(second))[0].tolist() for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]


def test_reports_go_nowhere_and_read_no_tensor(joined: ty.Cluster) -> None:
    import torch

    model, optimizer = joined.distribute(*linear_with_sgd())
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    optimizer.step()
    joined.report(loss=loss, accuracy=0.5)
    assert loss.requires_grad


def test_clipping_alone_is_torchs(joined: ty.Cluster) -> None:
    import torch

    with pytest.raises(ty.UsageProblem, match=r"clip_gradients\(\) was called before distribute"):
        joined.clip_gradients(1.0)
    model, _ = joined.distribute(*linear_with_sgd())
    (model(torch.ones(1, 4)).sum() * 10).backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert torch.equal(joined.clip_gradients(0.5), norm)
    left = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert left.item() == pytest.approx(0.5, rel=1e-5)


def test_distribute_is_called_once(joined: ty.Cluster) -> None:
    joined.distribute(*linear_with_sgd())
    with pytest.raises(ty.UsageProblem, match="called a second time"):
        joined.distribute(*linear_with_sgd())


def test_a_model_with_nothing_to_train_is_refused(joined: ty.Cluster) -> None:
    import torch

    model, optimizer = linear_with_sgd()
    with pytest.raises(ty.UsageProblem, match="ReLU has no trainable parameters"):
        joined.distribute(torch.nn.ReLU(), optimizer)
    with pytest.raises(ty.UsageProblem, match="Linear has no trainable parameters"):
        joined.distribute(model.requires_grad_(False), optimizer)


def test_an_optimizer_of_another_model_is_refused(joined: ty.Cluster) -> None:
    (model, _), (_, stranger) = linear_with_sgd(), linear_with_sgd()
    with pytest.raises(ty.UsageProblem, match="holds none of the model's parameters"):
        joined.distribute(model, stranger)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5])
def test_a_batch_holds_at_least_one_sample(joined: ty.Cluster, batch_size: int) -> None:
    with pytest.raises(ty.UsageProblem, match="at least one sample"):
        joined.loader([1, 2, 3], batch_size=batch_size)


def test_a_torch_that_is_too_old_is_named(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    joined.leave()
    monkeypatch.setattr(torch, "__version__", "2.3.1+cu121")
    with pytest.raises(ty.EnvironmentProblem, match=r"torch 2\.3\.1\+cu121 is too old.*2\.4"):
        ty.join()


def test_gpus_that_torch_cannot_see_are_an_error(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    joined.leave()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TORCHYARD_REPLICA", "worker-0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    with pytest.raises(ty.EnvironmentProblem, match=r"worker-0 was given the GPUs GPU-1,GPU-2.*sees 0"):
        ty.join()


def test_a_strategy_of_a_later_version_is_named(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    joined.leave()
    monkeypatch.setenv("TORCHYARD_STRATEGY", "elastic_averaging")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ty.NotInThisVersion, match="'elastic_averaging' is not in this version"):
        ty.join()


def test_a_trainer_that_has_no_server_to_go_to_is_told(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    joined.leave()
    monkeypatch.setenv("TORCHYARD_STRATEGY", "downpour")
    with pytest.raises(ty.EnvironmentProblem, match="downpour needs parameter servers, but none take part"):
        ty.join()


def test_workers_that_do_not_know_where_to_meet_are_told(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    joined.leave()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ty.EnvironmentProblem, match="2 workers, but MASTER_ADDR and MASTER_PORT"):
        ty.join()


def test_with_strategy_none_workers_do_not_meet(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    joined.leave()
    monkeypatch.setenv("TORCHYARD_STRATEGY", "none")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    cluster = ty.join()
    assert (cluster.rank, cluster.world_size, cluster.is_chief) == (1, 2, False)
    assert len(cluster.loader(list(range(10)), batch_size=5)) == 2
    cluster.leave()


def test_an_evaluator_runs_alone_beside_the_trainers(
    joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch, keeper: Keeper
) -> None:
    import torch.distributed as dist

    joined.leave()
    monkeypatch.setenv("TORCHYARD_ROLE", "evaluator")
    monkeypatch.setenv("TORCHYARD_REPLICA", "evaluator-1")
    monkeypatch.setenv("TORCHYARD_WORLD_SIZE", "3")
    monkeypatch.setenv("TORCHYARD_REPORT", keeper.address)
    cluster = ty.join()
    assert (cluster.role, cluster.index, cluster.rank, cluster.world_size) == ("evaluator", 1, None, 3)
    assert not cluster.is_chief
    assert not dist.is_initialized()
    model, optimizer = linear_with_sgd()
    assert cluster.distribute(model, optimizer) == (model, optimizer)
    assert len(cluster.loader(list(range(10)), batch_size=5)) == 2
    cluster.report(loss=0.25)
    assert keeper.received() == [("evaluator-1", 0, {"loss": 0.25})]
    cluster.leave()


@pytest.mark.parametrize(("role", "verb"), [("ps", "serve"), ("reducer", "sum")])
def test_servers_leave_with_a_sentence_and_no_traceback(start: Start, role: str, verb: str) -> None:
    process = start(
        "-c",
        "import torchyard_roles as ty; ty.join()",
        environment={"TORCHYARD_ROLE": role, "TORCHYARD_REPLICA": f"{role}-0"},
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{role}-0 has nothing to {verb}" in output
    assert "Traceback" not in output
