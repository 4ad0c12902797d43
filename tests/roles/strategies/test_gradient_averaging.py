"""Tests that gradients are averaged however a script computes them, with real processes over gloo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.roles.processes import DEADLINE_S
from tests.roles.strategies.reduction_server.reduction_runs import Runs, runs
from torchyard_roles.errors import UsageProblem
from torchyard_roles.model_optimizer_pairs import Pairs, names_of
from torchyard_roles.strategies.parameter_check import is_due

__all__ = ["runs"]

pytestmark = pytest.mark.train


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.proof), 3])
def test_every_gradient_is_averaged_however_it_was_computed(runs: Runs, workers: int) -> None:
    """The reference is one process that computes the batches of all ranks in double precision."""
    outputs = runs.topology(workers, 0).outputs("averaged.py")
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert len(found[0]) == 17
    for differences in found:
        assert max(differences.values()) < 1e-12, differences


@pytest.mark.parametrize(
    ("reducers", "scenario"),
    [
        (3, "parameters that only some ranks use"),
        (3, "two optimizers that take turns"),
        (1, "several passes a step"),
        (1, "sparse gradients"),
    ],
)
def test_every_gradient_is_averaged_through_reducers_too(runs: Runs, reducers: int, scenario: str) -> None:
    for output in runs.topology(3, reducers).outputs("averaged.py", scenario):
        assert json.loads(output.splitlines()[-1])[scenario] < 1e-12


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("a plateau of the local loss", r"After step \d the parameter 0.weight differs between the ranks"),
        ("local gradients", r"After step 1 the parameter 2.bias differs between the ranks"),
        ("local parameters", r"After step 1 the parameter 2.weight differs between the ranks"),
        ("local at a checkpoint", r"After step 5 the parameter 2.weight differs between the ranks"),
        ("local at the end", r"After step 7 the parameter 2.weight differs between the ranks"),
        ("updates by hand", r"After backward pass 2 the parameter 0.weight differs between the ranks"),
        ("one more pass", r"The ranks are out of step: this one has made \d optimizer steps"),
        (
            "a group of one rank's own",
            r"Parameters were added to the optimizers after distribute\(\)|The ranks are out of step",
        ),
        ("a pass broken off late", r"A backward pass ended with an exception that the script caught"),
    ],
)
def test_ranks_that_do_not_stay_together_end_with_a_sentence(runs: Runs, how: str, sentence: str) -> None:
    for worker in runs.topology(2, 0).train("diverges.py", how):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1, output
        assert re.search(sentence, output), output


def test_a_pass_that_is_broken_off_before_anything_was_sent_may_be_left_out(runs: Runs) -> None:
    outputs = runs.topology(2, 0).outputs("diverges.py", "a pass broken off")
    assert [output.splitlines()[-1] for output in outputs] == ["ended", "ended"]


def test_a_rank_that_runs_out_of_batches_ends_all(runs: Runs) -> None:
    """The rank with fewer steps waits for the others when it ends, and then all ranks raise the error."""
    first, last = runs.topology(2, 0).train("diverges.py", "fewer steps")
    output, _ = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 1
    assert "The ranks are out of step" in output
    output, _ = last.communicate(timeout=DEADLINE_S)
    assert last.returncode == 0, output


def test_without_an_optimizer_backward_passes_are_counted(runs: Runs) -> None:
    """As in pytorch/examples, the script updates the parameters itself. It stops when the loss is low."""
    _, last = runs.topology(2, 0).train("diverges.py", "an end of its own")
    output, _ = last.communicate(timeout=DEADLINE_S)
    assert last.returncode == 1
    assert "after 4 backward passes one has ended its training" in output
    assert "base the decision to stop on cluster.any()" in output


def test_parameters_are_compared_often_at_first_and_then_every_thousand_steps() -> None:
    due = [step for step in range(1, 4001) if is_due(step)]
    assert due == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000, 4000]


def test_a_compiled_model_is_saved_and_compared_under_its_own_names() -> None:
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    pairs = Pairs(compiled, optimizer)
    assert list(pairs.model.state_dict()) == ["weight", "bias"]
    assert pairs.given() == (compiled, optimizer)
    both = Pairs([compiled, torch.nn.Linear(2, 3)], [optimizer, torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])])
    assert list(both.model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert names_of(both.optimizer) == "SGD, Adam"


def test_a_model_that_is_sharded_already_is_refused(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from torchyard_roles import script_checks

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        with pytest.raises(UsageProblem, match="sharded over ranks already"):
            script_checks.check_plain(model)
    finally:
        dist.destroy_process_group()
