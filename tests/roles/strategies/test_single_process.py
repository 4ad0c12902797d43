"""Tests of single processes without torch.distributed: scripts that the user starts by hand, and evaluators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import torchyard_roles as ty
from tests.roles.processes import DEADLINE_S, Keeper, Start, bare_environment

pytestmark = pytest.mark.train


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[ty.Cluster]:
    """Returns the cluster of a process that was not started by a launcher; it consists of this process alone."""
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
    ours = joined.loader(dataset, batch_size=8, shuffle=True)
    assert isinstance(ours, DataLoader)
    assert len(ours) == 7
    assert [batch.tolist() for (batch,) in ours] == plain


def test_a_seed_fixes_the_order_and_epochs_differ(joined: ty.Cluster) -> None:
    import torch
    from torch.utils.data import TensorDataset

    dataset = TensorDataset(torch.arange(50))
    first, second = (joined.loader(dataset, batch_size=16, shuffle=True, seed=7) for _ in range(2))
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


def test_distribute_is_called_before_the_first_step_and_once_for_an_optimizer(joined: ty.Cluster) -> None:
    import torch

    model, optimizer = joined.distribute(*linear_with_sgd())
    with pytest.raises(ty.UsageProblem, match="the same optimizer a second time"):
        joined.distribute(model, optimizer)
    joined.distribute(*linear_with_sgd())
    model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(ty.UsageProblem, match="after training had begun"):
        joined.distribute(*linear_with_sgd())


def test_a_model_can_be_copied_saved_and_accumulate_alone_too(joined: ty.Cluster) -> None:
    import copy
    import pickle

    import torch

    model, optimizer = joined.distribute(*linear_with_sgd())
    with model.no_sync(), joined.accumulate():
        model(torch.ones(1, 4)).sum().backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.ones(1, 4)).sum().backward()
        assert vars(other).keys() == vars(torch.nn.Linear(4, 2)).keys()
        assert b"torchyard" not in pickle.dumps(other)
    assert joined._progress.steps == 0
    assert pickle.loads(pickle.dumps(optimizer)).state_dict() == optimizer.state_dict()


def test_a_saved_model_is_loaded_with_the_classes_that_the_script_names(joined: ty.Cluster) -> None:
    """The script saves and loads its model as word_language_model in pytorch/examples does."""
    import io

    import torch

    from torchyard_roles.module_hooks import ModuleHook

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 1)))
    model, _ = joined.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for hooked in (model, model[0], model[1]):  # Strategies that average gradients attach hooks to the output.
        hooked.register_forward_hook(ModuleHook(lambda *_: None))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([torch.nn.Linear, torch.nn.Sequential]):
        loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded(torch.ones(1, 4)), model(torch.ones(1, 4)))


def test_a_scripts_own_hooks_are_copied_and_can_be_removed(joined: ty.Cluster) -> None:
    import copy

    import torch

    calls: list[str] = []
    model, optimizer = linear_with_sgd()
    handle = model.register_forward_hook(lambda *_: calls.append("own"))
    model, _ = joined.distribute(model, optimizer)
    copied = copy.deepcopy(model)
    for each in (model, copied):
        each(torch.ones(1, 4))
    handle.remove()
    for each in (model, copied):
        each(torch.ones(1, 4))
    assert calls == ["own"] * 3


def test_several_models_and_optimizers_come_back_as_they_were_given(joined: ty.Cluster) -> None:
    (one, first), (other, second) = linear_with_sgd(), linear_with_sgd()
    models, optimizers = [one, other], (first, second)
    assert joined.distribute(models, optimizers) == (models, optimizers)


def test_a_model_that_is_updated_by_hand_comes_back_alone_and_its_steps_are_counted(joined: ty.Cluster) -> None:
    import torch

    model = torch.nn.Linear(4, 2)
    assert joined.distribute(model) is model
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
    assert joined._progress.steps == 2  # The third step has not ended.
    joined.leave()
    assert joined._progress.steps == 3


@pytest.mark.parametrize("given", [(None, None), ("model", None), ([], None), (3, 4)])
def test_what_is_no_model_is_refused(joined: ty.Cluster, given: tuple[object, object]) -> None:
    with pytest.raises(ty.UsageProblem, match="as its model"):
        joined.distribute(*given)


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


def test_of_several_optimizers_the_one_that_trains_no_model_is_named(joined: ty.Cluster) -> None:
    import torch

    model, optimizer = linear_with_sgd()
    temperature = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    with pytest.raises(ty.UsageProblem, match="Optimizer 2 of 2, Adam, holds none") as raised:
        joined.distribute([model], [optimizer, temperature])
    assert "torch.nn.Parameter of a module" in raised.value.hint


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


def test_a_trainer_without_servers_raises(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    joined.leave()
    monkeypatch.setenv("TORCHYARD_STRATEGY", "downpour")
    with pytest.raises(ty.EnvironmentProblem, match="downpour needs parameter servers, but none take part"):
        ty.join()


def test_workers_without_a_rendezvous_raise(joined: ty.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(cluster.loader(list(range(10)), batch_size=5, shuffle=True)) == 2
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
    assert len(cluster.loader(list(range(10)), batch_size=5, shuffle=True)) == 2
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


LEAVE_FAILS = """
import torch
import torchyard_roles as ty

cluster = ty.join()
model = torch.nn.Linear(2, 1)
model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
strategy = cluster._strategy


def lose() -> None:
    raise ty.PeerLost("ps-1", "127.0.0.1", "it closed the connection")


strategy.finish = lose
strategy.abandon = lambda: print("abandoned", flush=True)
"""


@pytest.mark.parametrize("leave", ["", "cluster.leave()", "with cluster: pass"], ids=["at exit", "call", "with"])
def test_a_script_that_fails_in_leaving_ends_its_connections(start: Start, leave: str) -> None:
    """If the connections stayed open, the other workers would report the loss of this worker instead of the cause."""
    process = start("-c", LEAVE_FAILS + leave)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "ps-1 on 127.0.0.1 is gone" in output
    assert output.count("abandoned") == 1
