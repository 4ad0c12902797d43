"""Tests of the digits example: only four lines are Torchyard's, and it trains in one process and in three."""

from __future__ import annotations

import difflib
import re

import pytest

from tests.roles.processes import ROOT, Keeper, Start, Train, output_of

pytestmark = pytest.mark.train

DIGITS = ROOT / "examples" / "digits"


def accuracy(output: str) -> float:
    found = re.fullmatch(r"test accuracy (\d\.\d{4})", output.splitlines()[-1])
    assert found is not None, output
    return float(found[1])


def test_the_example_changes_four_lines_and_adds_its_report_and_its_evaluator() -> None:
    single, cluster = ((DIGITS / name).read_text().splitlines() for name in ("train_single.py", "train.py"))
    changes = [line for line in difflib.ndiff(single, cluster) if line.startswith(("+", "-"))]
    added = [line[2:].strip() for line in changes if line.startswith("+")]
    removed = [line for line in changes if line.startswith("-")]
    assert added == [
        "import torchyard_roles as ty",
        "cluster = ty.join()",
        'if cluster.role == "evaluator":',
        "for step in cluster.evaluations(model):",
        'print(f"step {step} test accuracy {accuracy(model, test):.4f}", flush=True)',
        "return",
        "model, optimizer = cluster.distribute(model, optimizer)",
        "loader = cluster.loader(train, batch_size=args.batch_size, shuffle=True)",
        "cluster.report(loss=loss)",
    ]
    assert len(removed) == 1


def test_by_hand_it_does_what_the_single_script_does(start: Start) -> None:
    single, alone = (start(DIGITS / name, "--epochs", "3") for name in ("train_single.py", "train.py"))
    assert output_of(single) == output_of(alone)


def test_three_workers_come_to_one_model_and_report(train: Train, keeper: Keeper) -> None:
    """Tests on lab hosts compare the accuracy with that of a single process."""
    outputs = train(DIGITS / "train.py", 3, "--epochs", "3", TORCHYARD_REPORT=keeper.address)
    [together] = {accuracy(output) for output in outputs}
    assert together > 0.5
    assert {replica for replica, _, _ in keeper.received()} == {"worker-0", "worker-1", "worker-2"}
