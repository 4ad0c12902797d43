"""Tests of all_reduce with sharded models, with real processes over gloo on the loopback interface."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles.processes import DEADLINE_S, Start, free_port, outputs_of, trainer_environment
from torchyard_roles.checkpoints import sharded_files
from torchyard_roles.checkpoints.export import export_model

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[2] / "programs" / "sharding" / "sharded.py"
STEPS = 8


def environments(ranks: int, shard: str, hosts: int = 1, **options: Any) -> list[dict[str, str]]:
    """Returns the environments of ranks, which are divided evenly among hosts."""
    port = free_port()
    each = ranks // hosts
    trainers = [[f"worker-{rank}", f"127.0.0.{1 + rank // each}", 1, 1, 0] for rank in range(ranks)]
    more = {
        "TORCHYARD_STRATEGY": "all_reduce",
        "TORCHYARD_OPTIONS": json.dumps({"kind": "all_reduce", "shard": shard, **options}),
        "TORCHYARD_PEERS": json.dumps({"trainers": trainers}),
    }
    return [trainer_environment(rank, ranks, port, **more) for rank in range(ranks)]


def run(
    start: Start,
    ranks: int,
    shard: str,
    *arguments: object,
    hosts: int = 1,
    checkpoints: Path | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Trains to the end; returns the JSON object of each rank."""
    more = {} if checkpoints is None else {"TORCHYARD_CHECKPOINTS": str(checkpoints)}
    processes = [
        start(PROGRAM, *map(str, arguments), environment={**environment, **more})
        for environment in environments(ranks, shard, hosts, **options)
    ]
    return [json.loads(output.splitlines()[-1]) for output in outputs_of(*processes)]


def errors_of(start: Start, ranks: int, shard: str, *arguments: object, hosts: int = 1, **options: Any) -> list[str]:
    """Runs ranks that must all fail; returns their outputs."""
    processes = [
        start(PROGRAM, *map(str, arguments), environment=environment)
        for environment in environments(ranks, shard, hosts, **options)
    ]
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [1] * ranks, outputs
    return outputs


def check_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for here, there in zip(one, other, strict=True):
        for key in ("losses", "norms"):
            torch.testing.assert_close(here[key], there[key], rtol=1e-12, atol=1e-12)
    check_equal_states(one, other)


def check_equal_states(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert one[0]["state"].keys() == other[0]["state"].keys()
    for name, values in one[0]["state"].items():
        here, there = (torch.tensor(each, dtype=torch.float64) for each in (values, other[0]["state"][name]))
        torch.testing.assert_close(here, there, rtol=0, atol=1e-12, msg=name)


def test_sharding_over_all_ranks_or_each_host_equals_the_unsharded_run(start: Start) -> None:
    plain = run(start, 4, "none", STEPS, "clip", "buffers")
    assert plain[0]["kind"] == "Model"
    assert min(plain[0]["norms"]) > 0.05  # Gradients are clipped in every step.
    for shard, hosts in (("all", 1), ("host", 2)):
        sharded = run(start, 4, shard, STEPS, "clip", "buffers", hosts=hosts)
        assert sharded[0]["kind"] == "FSDPModel"
        check_equal(sharded, plain)


def test_each_rank_holds_its_share_of_parameters_gradients_and_optimizer_state(start: Start) -> None:
    plain, sharded = (run(start, 2, shard, 2, "even") for shard in ("none", "all"))
    for whole, part in zip(plain, sharded, strict=True):
        assert part["bytes"] <= 1.05 * whole["bytes"] / 2


@pytest.mark.proof
def test_accumulation_and_clipped_values_equal_the_unsharded_run(start: Start) -> None:
    flags = ("accumulate", "clip-values")
    check_equal(run(start, 2, "all", STEPS, *flags), run(start, 2, "none", STEPS, *flags))


def test_ranks_build_the_model_on_the_meta_device_and_get_the_chiefs_values(start: Start) -> None:
    check_equal(run(start, 2, "all", 3, "meta", "buffers"), run(start, 2, "none", 3, "buffers"))


def test_a_step_with_nan_is_skipped_by_all_ranks_or_ends_all(start: Start) -> None:
    results = run(start, 2, "all", 4, "nan=2", on_nan="skip")
    assert all(torch.tensor(each).isfinite().all() for each in results[0]["state"].values())
    for output in errors_of(start, 2, "all", 4, "nan=2"):
        assert "The gradients of step 2 are NaN or infinite" in output


@pytest.mark.parametrize(
    ("flag", "options", "message"),
    [
        ("tied", {}, "`blocks.0.up.weight` and `blocks.2.up.weight` are one parameter in two blocks"),
        ("all-meta", {}, "The chief's model is on the meta device, and there is no checkpoint to load it from."),
        ("lost-buffer", {}, "its buffer `scale` is in no checkpoint."),
        ("bad-accumulate", {}, "The optimizer stepped after a backward pass that only accumulated gradients."),
        ("hand", {}, "distribute() was given no optimizer."),
        ("lbfgs", {}, "LBFGS computes with all parameters in one vector"),
        ("twice", {}, "distribute() was called a second time with strategy.shard."),
        ("clip", {"shard_modules": ["Blok"]}, "strategy.shard_modules names Blok, but Model contains no module"),
        ("clip", {"shard": "host"}, "each host has a single rank, so that nothing would be sharded."),
    ],
)
def test_what_cannot_be_sharded_is_an_error(start: Start, flag: str, options: dict[str, Any], message: str) -> None:
    options, hosts = dict(options), 2 if "shard" in options else 1
    outputs = errors_of(start, 2, options.pop("shard", "all"), 2, flag, hosts=hosts, **options)
    assert all(message in output for output in outputs), outputs


def test_a_run_resumes_on_other_numbers_of_ranks_with_and_without_shards(start: Start, tmp_path: Path) -> None:
    whole = run(start, 2, "none", 9)
    run(start, 4, "all", 3, checkpoints=tmp_path)
    assert (tmp_path / "step-000000000003" / ".metadata").exists()
    assert not (tmp_path / "step-000000000003" / "model.pt").exists()
    exported = tmp_path / "model.pt"
    assert export_model(tmp_path, exported) == 3
    half = run(start, 2, "all", 5, checkpoints=tmp_path)
    assert export_model(tmp_path, exported) == 5
    loaded = torch.load(exported, weights_only=True)
    assert {name: value.tolist() for name, value in loaded.items()} == half[0]["state"]
    run(start, 1, "all", 7, checkpoints=tmp_path)  # A single rank saves the whole model.
    assert (tmp_path / "step-000000000007" / "model.pt").exists()
    check_equal_states(run(start, 2, "all", 9, checkpoints=tmp_path), whole)


def test_a_resumed_run_may_build_the_model_on_the_meta_device_on_all_ranks(start: Start, tmp_path: Path) -> None:
    run(start, 2, "all", 2, "meta", "persistent", checkpoints=tmp_path)
    resumed = run(start, 2, "all", 4, "all-meta", checkpoints=tmp_path)
    check_equal_states(resumed, run(start, 2, "none", 4, "persistent"))


def check_save_in_the_middle(start: Start, folder: Path, **options: Any) -> list[Path]:
    """Checks that each checkpoint has the values of its step, although the next steps run while it is copied and
    written.

    Returns:
        The checkpoints.
    """
    run(start, 2, "all", 12, "save=4", "slow-copy", checkpoints=folder, **options)
    saved = sorted(folder.glob("step-*"))
    assert len(saved) == 2
    assert saved[1].name == "step-000000000012"
    assert not list(folder.glob(".saving-*"))
    step = int(saved[0].name.removeprefix("step-"))
    exported = folder / "model.pt"
    assert export_model(saved[0], exported) == step
    expected = run(start, 2, "all", step, **options)[0]["state"]
    found = {name: each.tolist() for name, each in torch.load(exported, weights_only=True).items()}
    assert found.items() <= expected.items()
    return saved


def test_a_save_in_the_middle_is_made_by_all_ranks_at_one_step(start: Start, tmp_path: Path) -> None:
    saved = check_save_in_the_middle(start, tmp_path)
    metadata = saved[1] / sharded_files.METADATA
    assert sharded_files.missing_files(metadata.parent) == []
    (metadata.parent / "__1_0.distcp").unlink()
    assert sharded_files.missing_files(metadata.parent) == ["__1_0.distcp"]
    metadata.write_bytes(pickle.dumps(print))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins.print is not allowed in .metadata"):
        sharded_files.read_metadata(metadata.parent)
