"""Tests of `push_every` under downpour: each gradient is applied exactly once, even if training is interrupted."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.roles.processes import Start, output_of, wait_for
from tests.roles.strategies.hogwild.test_strategy import done
from tests.roles.strategies.parameter_server.served_run import Run
from tests.roles.strategies.parameter_server.test_server_process import Cluster
from torchyard_roles.checkpoints import checkpoint_files

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[2] / "programs" / "counts_updates.py"
STEPS = 7


@pytest.fixture
def start(start_forked: Start) -> Start:
    return start_forked


def held_by(run: Run) -> set[float]:
    """Returns the set of all values of the parameters on the servers."""
    chunks = [state for server in run.servers_now for state in server.pairs[0].shard._chunks.values()]
    return set(torch.cat([state.parameters for state in chunks]).tolist())


@pytest.mark.parametrize(
    ("workers", "groups", "hears_late_by"),
    [(2, 2, 0), (4, 2, 0), (4, 2, 1), (4, 2, 2)],
    ids=["a group a worker", "groups of two", "one hears of the save a step late", "when it has just pushed"],
)
def test_what_is_held_back_is_pushed_at_a_save_and_at_the_end_and_counts_once(
    workers: int, groups: int, hears_late_by: int
) -> None:
    """Each step of a group subtracts 1 from every parameter, because sums of small integers are exact."""
    run = Run(workers, 2, groups, "downpour", options={"push_every": 3, "pull_every": 2})

    def act(rank: int) -> tuple[nn.Module, float]:
        strategy, model = run.worker(rank), nn.Linear(8, 4, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        model, optimizer = strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), torch.device("cpu"))
        for step in range(1, STEPS + 1):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            strategy.at_boundary(step)
            if step == 4 + hears_late_by * (rank % 2):
                strategy.flush(4)
                strategy.flush(4)  # A save and a stop after the same step both call flush().
        anew = strategy.finish()
        strategy.leave()
        assert anew == (rank == 0)
        return model, strategy.statistics()["dropped"]

    with run.serving():
        (chief, _), *others = run.on_workers(act)
        assert run.ended()
        assert held_by(run) == {-float(STEPS * groups)}
        # Each group pushes to each of the two servers after steps 3, 4 (because of the save), 6 and 7 (the end).
        assert [server.pairs[0].shard.version for server in run.servers_now] == [4 * groups] * 2
        assert [server.pairs[0].shard.ledger.counts.accepted for server in run.servers_now] == [4 * groups] * 2
    assert chief.weight.unique().tolist() == [-float(STEPS * groups)]
    assert not any(dropped for _, dropped in others)


def test_a_stop_in_the_midst_loses_no_update_of_any_group(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path / "checkpoints", "downpour", 2, 1, groups=2, push_every=5, pull_every=5, checkpoint_every_s=600
    )
    server = start(PROGRAM, tmp_path, "1000", "0.02", environment=cluster.server(0))
    workers = [start(PROGRAM, tmp_path, "1000", "0.02", environment=cluster.worker(rank)) for rank in range(2)]
    wait_for(lambda: min(done(tmp_path, rank) for rank in range(2)) >= 7, "steps", *workers)
    for process in workers:
        process.send_signal(signal.SIGTERM)
    stopped = [output_of(process) for process in workers]
    output_of(server)
    updates = [done(tmp_path, rank) for rank in range(2)]
    assert all(f"stopped after step {each};" in text for each, text in zip(updates, stopped, strict=True))
    newest = checkpoint_files.load(checkpoint_files.part_path(tmp_path / "checkpoints", "ps-0", None))
    held = torch.cat([chunk["parameters"] for chunk in newest["chunks"].values()])
    assert held.unique().tolist() == [-float(sum(updates))], json.dumps(updates)
    saved = checkpoint_files.complete(tmp_path / "checkpoints")[0]
    assert saved.step == updates[0]
    assert saved.load("model.pt")["weight"].max() <= -updates[0]  # The checkpoint includes all updates of the chief.
