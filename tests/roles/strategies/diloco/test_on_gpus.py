"""Tests of DiLoCo on GPUs: NCCL within groups, other connections between them, and copies in a separate CUDA stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.on_gpus import GPU_MARKS, interpreters
from tests.roles.processes import Start, outputs_of
from tests.roles.strategies.diloco.test_served_strategy import ServedGroups
from tests.roles.strategies.diloco.test_sharded_groups import STREAMING, check_equal_to_whole_models
from tests.roles.strategies.diloco.test_sharded_groups import run as run_sharded
from tests.roles.strategies.diloco.test_strategy import (
    AVERAGING,
    PROGRAM,
    Streamed,
    alone,
    check,
    double,
    groups_of,
    results,
)
from tests.roles.test_on_gpus import DEVICE, LONG_KERNEL_CYCLES
from torchyard_roles.strategies.diloco.outer_step import OuterParameters, flats_of

pytestmark = GPU_MARKS


@pytest.fixture
def start() -> Iterator[Start]:
    with interpreters() as found:
        yield found.start


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


def test_rounds_equal_their_definition_on_the_cpu(start: Start, store: Served, tmp_path: Path) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=5, warmup_steps=3)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 20, 0, 4, 2))
    check(workers, alone(workers, 5, 0.7, 0.9, warmup=3))


@pytest.mark.parametrize(("overlap", "mixing"), [(0, 0.0), (2, 0.5)], ids=["blocking", "overlapped"])
def test_streamed_fragments_equal_their_definition_on_the_cpu(
    start: Start, store: Served, tmp_path: Path, overlap: int, mixing: float
) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=7, fragments=2, overlap_steps=overlap, mixing=mixing)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 23, 0, 4, 2))
    check(workers, Streamed(workers, 7, overlap, mixing).train())


@pytest.mark.parametrize("options", [{}, STREAMING], ids=["blocking", "streaming"])
def test_the_ranks_of_a_group_average_over_nccl_and_stay_equal(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    groups = groups_of(start, store, 2, 1, inner_steps=4, **options)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 10, 0))
    # Leaves out the buffers, which differ inside a group.
    parameters = [[step[:-3] for step in worker["before"]] for worker in workers]
    assert parameters[0] == parameters[1]
    assert parameters[0][3] != parameters[2][3]
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]


def test_with_servers_rounds_equal_their_definition_on_the_cpu(start: Start, store: Served, tmp_path: Path) -> None:
    groups = ServedGroups(start, store, 2, 1, 1, inner_steps=8, **AVERAGING)
    servers = groups.start_servers()
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 20, 0))
    check(workers, alone(workers, 8, 1.0, 0.0))
    outputs_of(*servers)


@pytest.mark.parametrize(("wire", "largest"), [("int8", 127), ("int4", 7)])
def test_the_error_of_a_quantised_average_is_within_its_bound(
    start: Start, store: Served, tmp_path: Path, wire: str, largest: int
) -> None:
    """Each difference and the average are rounded, each with an error of at most half its scale."""
    groups = groups_of(start, store, 1, 1, inner_steps=4, wire=wire, **AVERAGING)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 5, 0))
    trajectories, _ = alone(workers, 100, 1.0, 0.0)
    differences = [double(seen[0]) - double(seen[4]) for seen in trajectories]
    exact = double(trajectories[0][0]) - sum(differences) / 2
    most = max(float(each.abs().max()) for each in differences)
    for worker in workers:
        error = (double(worker["before"][4]) - exact).abs().max()
        assert 0 < error <= 2 * most / (2 * largest) * 1.001
    assert workers[0]["before"][4] == workers[1]["before"][4]


@pytest.mark.parametrize(
    ("options", "offload"), [({}, False), ({}, True), (STREAMING, False)], ids=["blocking", "offload", "streaming"]
)
def test_sharded_groups_equal_groups_with_whole_models(
    start: Start, tmp_path: Path, options: dict[str, object], offload: bool
) -> None:
    plain = run_sharded(start, tmp_path / "plain", "none", **options)
    sharded = run_sharded(start, tmp_path / "sharded", "all", shard_offload=offload, **options)
    check_equal_to_whole_models(sharded, plain)


@pytest.mark.parametrize("mixing", [0.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fragment_leaves_the_gpu_and_comes_back_while_training_continues(dtype: torch.dtype, mixing: float) -> None:
    """The values must equal those of the blocking form, in which training waits for the exchange."""
    model = [torch.randn(3_000_000, dtype=dtype, device=DEVICE), torch.randn(7, 5, dtype=dtype, device=DEVICE)]
    outer = OuterParameters(flats_of(model, []))
    outer.begin()
    before = [each.clone() for each in model]
    torch.cuda.synchronize()

    torch.cuda._sleep(LONG_KERNEL_CYCLES // 10)
    for each in model:
        each.sub_(0.5)  # This kernel runs before the snapshot is taken, but after a kernel that is still running.
    after = [each.clone() for each in model]
    differences = outer.snapshot()
    torch.cuda._sleep(LONG_KERNEL_CYCLES)
    for each in model:
        each.fill_(9.0)  # The snapshot must not contain this change.
    next_step = torch.cuda.Event()
    next_step.record()
    (found,) = differences()
    assert not next_step.query(), "the copy waited for kernels of later steps"
    expected = torch.cat([(one.float() - other.float()).flatten() for one, other in zip(before, after, strict=True)])
    assert torch.equal(found, expected.cpu())

    outer.stage()
    assert not next_step.query(), "the copy waited for kernels of later steps"
    outer.install(mixing=mixing)
    staged = [each.clone() for each in model]
    for each in model:
        each.fill_(9.0)
    outer.install(mixing=mixing)
    assert all(torch.equal(one, other) for one, other in zip(staged, model, strict=True))
    if not mixing:
        assert all(torch.equal(one, other) for one, other in zip(staged, before, strict=True))
