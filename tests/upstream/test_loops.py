"""Tests of a sample of the loops with `torchyard run`, and comparison of the reference with DistributedDataParallel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fork_server import ForkServer
from tests.ports import free_port
from tests.upstream import runs, table
from tests.upstream.__main__ import interpreter
from tests.upstream.reference import LOOPS, RESULTS

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
SAMPLE = [
    ("loss_method", "all_reduce", 2),
    ("lbfgs", "all_reduce", 2),
    ("autograd_grad", "reduction_server", 2),
    ("late_unfreezing", "reduction_server", 3),
    ("manual_updates", "sandblaster", 2),
    ("added_group", "sandblaster", 2),
    ("dcgan", "sandblaster", 2),
    ("min_gpt", "downpour", 2),
    ("encoder_head", "downpour", 3),
]
"""The cells of the table that CI runs: each strategy, and various ways to compute gradients. `make proof` runs all."""
TRAINED_BY_DDP = [
    "batch_norm_evaluation",
    "dcgan",
    "early_stopping",
    "min_gpt",
    "no_sync",
    "plateau",
    "vae",
    "wgan_clamp",
]
"""Loops that plain DistributedDataParallel trains correctly, too."""


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[runs.Computer]:
    folder = tmp_path_factory.mktemp("computer")
    with interpreter(folder, cold=False) as python:
        computer = runs.Computer(folder / "desktop", python)
        yield computer
        computer.close()


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, torch_for_hosts: ForkServer) -> Path:
    """Returns the folder of the reference results for SAMPLE and TRAINED_BY_DDP, which a separate process computes."""
    folder = tmp_path_factory.mktemp("references")
    cells = [*SAMPLE, *((loop, "all_reduce", 2) for loop in TRAINED_BY_DDP)]
    program = "\n".join(
        (
            "from pathlib import Path",
            "from tests.upstream import runs",
            f"runs.make_references({cells}, Path({str(folder)!r}))",
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = torch_for_hosts.start("-c", program, environment=environment)
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
    finally:
        process.close()
    return folder


@pytest.mark.parametrize(("loop", "strategy", "workers"), SAMPLE, ids=["-".join(map(str, cell)) for cell in SAMPLE])
def test_a_loop_ends_as_the_documentation_says(
    computer: runs.Computer, references: Path, loop: str, strategy: str, workers: int
) -> None:
    done, results = computer.run(loop, strategy, workers)
    verdict = runs.judge(
        loop, strategy, workers, done, results, runs.reference_of(references, (loop, strategy, workers))
    )
    assert not verdict.is_defect, (verdict, done and done.stdout + done.stderr)
    assert verdict.outcome == table.read(table.PAGE.read_text())[loop, strategy, workers], verdict


@pytest.mark.parametrize("loop", TRAINED_BY_DDP)
def test_the_reference_agrees_with_plain_ddp(
    references: Path, torch_for_hosts: ForkServer, tmp_path: Path, loop: str
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent / "plain_ddp"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        RESULTS: str(tmp_path),
    }
    ranks = [
        torch_for_hosts.start(LOOPS / f"{loop}.py", environment={**environment, "RANK": str(rank)}) for rank in range(2)
    ]
    try:
        for process in ranks:
            output, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, output
    finally:
        for process in ranks:
            process.close()
    for rank in range(2):
        ours, theirs = (
            torch.load(folder / f"rank-{rank}.pt", weights_only=True)
            for folder in (runs.reference_of(references, (loop, "all_reduce", 2)), tmp_path)
        )
        found = dict(reversed(each) for each in runs.differences(ours, _without_prefix(theirs), rank))
        assert max(found.values()) <= runs.TOLERANCE, found


def _without_prefix(result: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict[str, torch.Tensor]]:
    for kind in ("parameters", "buffers"):
        result[kind] = {name.replace("module.", "", 1): value for name, value in result[kind].items()}
    return result
