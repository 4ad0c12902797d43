"""Tests of an evaluator during training: it evaluates each checkpoint once, and training never waits for it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.roles.checkpointed import Gang
from tests.roles.processes import DEADLINE_S, Keeper, Start
from torchyard_roles.errors import UsageProblem

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def sigterm_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


SCORING = """
import sys, time, torch, torchyard_roles as ty
cluster = ty.join()
model = torch.nn.Sequential(
    torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1)
)
print("looking", flush=True)
for step in cluster.evaluations(model):
    model.eval()
    cluster.report(loss=model(torch.ones(2, 6)).sum())
    print(step, flush=True)
"""


def evaluator_environment(gang: Gang, **more: str) -> dict[str, str]:
    return {
        "TORCHYARD_ROLE": "evaluator",
        "TORCHYARD_REPLICA": "evaluator-0",
        "TORCHYARD_RUN_ID": "run-1",
        "TORCHYARD_WORLD_SIZE": "1",
        "TORCHYARD_CHECKPOINTS": str(gang.checkpoints),
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }


def write_checkpoint(root: Path, step: int, weight: float, final: bool = False) -> None:
    import torch

    from torchyard_roles.checkpoints import checkpoint_files
    from torchyard_roles.checkpoints.fingerprint import entries

    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, weight)
    contents = {"model.pt": model.state_dict(), "optimizer.pt": {}, "extra.pt": {}}
    about = {"epoch": 0, "fingerprint": {"entries": entries(model)}, "final": final, "run": "run-1", "strategy": "none"}
    checkpoint_files.write(root, step, contents, about)


def test_it_scores_each_checkpoint_once_and_the_last_one_and_ends_with_the_training(
    start: Start, tmp_path: Path, keeper: Keeper
) -> None:
    gang = Gang(start, tmp_path, 1)
    evaluator = start("-c", SCORING, environment=evaluator_environment(gang, TORCHYARD_REPORT=keeper.address))
    gang.launch(3, 0.05, every_s=0.8)
    ((code, output),) = gang.ended()
    assert code == 0, output
    output, _ = evaluator.communicate(timeout=DEADLINE_S)
    assert evaluator.returncode == 0, output
    scored = [int(line) for line in output.splitlines()[1:]]
    assert scored == sorted(set(scored))
    assert scored[-1] == 45
    assert len(scored) >= 2
    reported = [metrics for name, _, metrics in keeper.received() if name == "evaluator-0"]
    assert reported[-1]["step"] == 45


def test_after_sigterm_it_scores_the_last_checkpoint_of_the_stopped_chief_and_exits_with_0(
    start: Start, tmp_path: Path
) -> None:
    gang = Gang(start, tmp_path, 1)
    write_checkpoint(gang.checkpoints, 10, 1.0)
    write_checkpoint(gang.checkpoints, 20, 2.0)
    code = (
        "import time, torch, torchyard_roles as ty\n"
        "for step in ty.join().evaluations(torch.nn.Linear(1, 1)): print(step, flush=True)"
    )
    evaluator = start("-c", code, environment=evaluator_environment(gang))
    assert evaluator.stdout is not None
    assert [evaluator.stdout.readline() for _ in range(2)] == ["10\n", "20\n"]
    evaluator.send_signal(signal.SIGTERM)
    write_checkpoint(gang.checkpoints, 30, 3.0)
    output, _ = evaluator.communicate(timeout=DEADLINE_S)
    assert evaluator.returncode == 0, output
    assert output.split() == ["30"]


def test_checkpoints_come_in_order_with_their_weights_and_those_cleared_away_are_left_out(tmp_path: Path) -> None:
    import torch

    from torchyard_roles.checkpoints import checkpoint_files
    from torchyard_roles.checkpoints.evaluator import evaluations

    write_checkpoint(tmp_path, 10, 1.0)
    write_checkpoint(tmp_path, 20, 2.0)
    model = torch.nn.Linear(1, 1)
    seen = []
    for step in evaluations(tmp_path, model, "run-1", look_s=0.01):
        seen.append((step, model.weight.item()))
        if step == 20:
            for newer in (30, 40, 50):
                write_checkpoint(tmp_path, newer, newer / 10, final=newer == 50)
            (tmp_path / checkpoint_files.name_of(30) / "model.pt").write_bytes(b"")
            checkpoint_files.prune(tmp_path, kept=2)
    assert seen == [(10, 1.0), (20, 2.0), (40, 4.0), (50, 5.0)]


def test_a_last_one_that_was_saved_before_is_scored_again_only_if_it_holds_more(tmp_path: Path) -> None:
    import torch

    from torchyard_roles.checkpoints import checkpoint_files
    from torchyard_roles.checkpoints.evaluator import evaluations

    model = torch.nn.Linear(1, 1)

    def scored(end: Callable[[], object]) -> list[float]:
        write_checkpoint(tmp_path, 10, 1.0)
        seen = []
        for _ in evaluations(tmp_path, model, "run-1", look_s=0.01):
            seen.append(model.weight.item())
            if len(seen) == 1:
                end()
        return seen

    assert scored(lambda: checkpoint_files.mark_final(tmp_path, 10, "run-1")) == [1.0]
    assert scored(lambda: write_checkpoint(tmp_path, 10, 2.0, final=True)) == [1.0, 2.0]


def test_a_final_one_of_an_earlier_run_ends_nothing(tmp_path: Path) -> None:
    import torch

    from torchyard_roles.checkpoints.evaluator import evaluations

    write_checkpoint(tmp_path, 10, 1.0, final=True)
    steps = evaluations(tmp_path, torch.nn.Linear(1, 1), "run-2", look_s=0.01, last_s=0.2)
    assert next(steps) == 10
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert list(steps) == []
    # The whole process group gets the signal, perhaps when the evaluator is already exiting with code 0.
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_script_that_breaks_off_is_ended_by_sigterm_again(tmp_path: Path) -> None:
    import torch

    from torchyard_roles.checkpoints.evaluator import evaluations

    write_checkpoint(tmp_path, 10, 1.0)
    steps = evaluations(tmp_path, torch.nn.Linear(1, 1), "run-1")
    assert next(steps) == 10
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    steps.close()  # type: ignore[attr-defined]  # The value is a generator, which is declared as an iterator.
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_another_models_checkpoint_is_refused_with_a_sentence(tmp_path: Path) -> None:
    import torch

    from torchyard_roles.checkpoints.evaluator import evaluations

    write_checkpoint(tmp_path, 10, 1.0)
    with pytest.raises(UsageProblem, match=r"belongs to another model: it has weight \(float32, 1×1\) where"):
        next(evaluations(tmp_path, torch.nn.Linear(2, 1), "run-1"))
    assert json.loads((tmp_path / "step-000000000010" / "checkpoint.json").read_text())["step"] == 10


SIGNALS = """
import signal
from torchyard_roles.checkpoints.evaluator import _StopSignal
for delay_us in range(1, 3000, 10):
    stop = _StopSignal()
    signal.signal(signal.SIGALRM, stop._on_signal)
    signal.setitimer(signal.ITIMER_REAL, delay_us * 1e-6)
    while stop.since() < 0:
        stop.wait(0.0005)
print("noticed all")
"""


def test_a_signal_at_any_moment_of_a_wait_is_noticed(start: Start) -> None:
    """A signal handler interrupts the waiting thread, which may hold any lock at that moment."""
    process = start("-c", SIGNALS)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert output == "noticed all\n"
