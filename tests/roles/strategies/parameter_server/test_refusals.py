"""Tests of what parameter servers refuse: wrong keys, different models, wrong sizes, and models for which they lack
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import Run
from tests.roles.strategies.parameter_server.test_downpour import CPU, distribute, small
from tests.roles.strategies.parameter_server.test_sandblaster import momentum
from torchyard_roles.environment import PeerAddress, Peers
from torchyard_roles.errors import EnvironmentProblem, PeerLost, ProtocolError, UsageProblem
from torchyard_roles.strategies.parameter_server.server_process import ParameterServer

pytestmark = pytest.mark.train


def test_a_worker_with_another_key_is_refused() -> None:
    run = Run(1, 1)
    with run.serving():
        stranger = Run(1, 1, peers=run.peers)
        with pytest.raises(ProtocolError, match="another key"):
            stranger.worker(0)


def test_several_groups_of_servers_are_refused_before_any_connection() -> None:
    with pytest.raises(EnvironmentProblem, match=r"server_groups is 2, but the servers of downpour are one group"):
        Run(1, 1, 1, "downpour", options={"server_groups": 2}, peers=Peers(ps=(PeerAddress("ps-0", "", 0),))).worker(0)


def limit_memory(server: ParameterServer, available: int) -> None:
    server.settings = replace(server.settings, available=lambda: available)


def refusals(run: Run, model_of: Callable[[int], nn.Module]) -> list[str]:
    """Returns, for each worker, the message with which its model is refused; the message is empty if the model is
    accepted.
    """

    def act(rank: int) -> str:
        strategy = run.worker(rank)
        model = model_of(rank)
        try:
            strategy.distribute(model, momentum(model), CPU)
        except UsageProblem as problem:
            return str(problem)
        finally:
            strategy.leave()
        return ""

    with run.serving():
        return run.on_workers(act)


def test_a_model_that_is_not_the_chiefs_is_refused_by_name() -> None:
    chief, other = refusals(Run(2, 1), lambda rank: nn.Linear(4, 3 + rank))
    assert chief == ""
    assert other == (
        "The model of worker-1 is not the chief's: it has weight (4×4, float32, parameter group 0) "
        "where the chief's has weight (3×4, float32, parameter group 0)"
        "."
    )


def test_a_gradient_of_another_size_than_the_chunk_s_ends_the_connection_before_it_is_received(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = Run(1, 1)
    with run.serving():
        strategy, _, _ = distribute(run, 0)
        (link,) = strategy.pairs[0]._links
        with pytest.raises(PeerLost, match="ps-0"):
            link.command({"op": "push", "chunk": 0, "round": 1, "base": 0}, torch.zeros(1_000_000))
        assert "announced 4000000 bytes of float32, but 256 bytes" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["buffers", "constants"])
def test_buffers_of_another_size_than_the_chief_has_described_are_not_received(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4).requires_grad_(False))
        strategy.distribute(model, momentum(model), CPU)
        assert run.servers_now[0].pairs[0].rows.constants.numel() == 4 * 20
        (link,) = strategy.pairs[0]._links
        with pytest.raises(PeerLost, match="ps-0"):
            link.command({"op": name}, torch.zeros(1_000_000, dtype=torch.uint8))
        assert "announced 1000000 bytes of uint8, but" in capfd.readouterr().err


def test_buffers_that_are_not_the_chiefs_are_refused_by_name() -> None:
    def model_of(rank: int) -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("seen", torch.zeros(1 + rank))
        return model

    assert "it has 8 bytes of buffers where the chief's has 4" in refusals(Run(2, 2), model_of)[1]


def test_a_shard_that_exceeds_memory_is_refused_before_training() -> None:
    run = Run(1, 1)
    with run.serving():
        limit_memory(run.servers_now[0], 4000)
        strategy = run.worker(0)
        model = small()
        with pytest.raises(UsageProblem, match=r"ps-0 cannot hold its shard: it needs .* Add parameter servers"):
            strategy.distribute(model, momentum(model), CPU)
        strategy.leave()


def test_optimizers_that_servers_cannot_run_are_refused_with_the_reason() -> None:
    class Own(torch.optim.SGD):
        pass

    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        model = small()
        for optimizer, reason in (
            (torch.optim.LBFGS(model.parameters()), "several times in a step"),
            (torch.optim.SparseAdam(list(model.parameters())), "sparse"),
            (Own(model.parameters()), "support only the optimizers of torch.optim"),
        ):
            with pytest.raises(UsageProblem, match=reason):
                strategy.distribute(model, optimizer, CPU)
        strategy.leave()


def test_a_parameter_of_two_optimizers_is_refused_with_its_name_at_once_and_when_it_is_given_later() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy, model, _ = distribute(run, 0)
        with pytest.raises(UsageProblem, match=r"Two optimizers train the parameter 2\.weight.*Give each parameter to"):
            strategy.distribute(model, torch.optim.SGD(model[2].parameters(), lr=0.1), CPU)
        other = nn.ModuleList([small(), model])
        optimizer = torch.optim.SGD(other[0].parameters(), lr=0.1)
        strategy.distribute(other, optimizer, CPU)
        optimizer.add_param_group({"params": model[0].weight})
        with pytest.raises(UsageProblem, match=r"Two optimizers train the parameter 1\.0\.weight"):
            optimizer.step()
        strategy.leave()


def test_a_pair_that_would_not_fit_beside_what_the_others_will_take_is_refused_before_anything_trains() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy, _, _ = distribute(run, 0)
        pair = run.servers_now[0].pairs[0]
        assert pair.reserved > 0
        limit_memory(run.servers_now[0], 3 * 399 * 4 + 1024 + pair.reserved // 2)
        model = small()
        with pytest.raises(UsageProblem, match=r"ps-0 cannot hold its shard"):
            strategy.distribute(model, momentum(model), CPU)
        limit_memory(run.servers_now[0], 3 * 399 * 4 + 1024 + pair.reserved)
        strategy.leave()


def test_an_introduction_of_no_pair_is_refused() -> None:
    run = Run(1, 1)
    with run.serving():
        strategy = run.worker(0)
        (link,) = strategy.pairs[0]._links
        link._introduction = {**link._introduction, "pair": -1}
        with pytest.raises(ProtocolError, match=r"ps-0 does not understand the introduction: there is no pair -1"):
            link.connect(5.0)
        strategy.leave()
