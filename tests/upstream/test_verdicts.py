"""Tests of the code in `tests.upstream`: running ranks in lockstep, judging runs, and the documentation's table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tests.upstream import runs, table
from tests.upstream.lockstep import Diverged, Lockstep
from tests.upstream.runs import STRATEGIES, WORKERS, Verdict


def result(weight: float, losses: list[float]) -> dict[str, object]:
    return {
        "parameters": {"model.weight": torch.full((2,), weight, dtype=torch.float64)},
        "buffers": {},
        "losses": torch.tensor(losses, dtype=torch.float64),
        "numbers": torch.zeros(0, dtype=torch.float64),
    }


def ended(code: int, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, stdout=text, stderr="")


def written(folder: Path, *results: dict[str, object]) -> Path:
    folder.mkdir()
    for rank, each in enumerate(results):
        torch.save(each, folder / f"rank-{rank}.pt")
    return folder


def test_ranks_take_turns_and_have_random_numbers_of_their_own() -> None:
    trace: list[tuple[int, list[float]]] = []

    def program(rank: int) -> None:
        torch.manual_seed(rank)
        for _ in range(3):
            trace.append((rank, lockstep.meet(rank, "draw", torch.rand(()).item())))

    lockstep = Lockstep(3)
    before = torch.get_rng_state()
    lockstep.run(program)
    alone = []
    for rank in range(3):
        generator = torch.Generator().manual_seed(rank)
        alone.append([torch.rand((), generator=generator).item() for _ in range(3)])
    assert [values for rank, values in trace if rank == 1] == [list(each) for each in zip(*alone, strict=True)]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("meetings", [(2, 1), (1, 2)])
def test_ranks_that_do_not_meet_alike_are_found(meetings: tuple[int, int]) -> None:
    lockstep = Lockstep(2)

    def program(rank: int) -> None:
        for _ in range(meetings[rank]):
            lockstep.meet(rank, "step", None)

    with pytest.raises(Diverged, match="the end"):
        lockstep.run(program)


def test_a_difference_on_any_rank_is_a_defect(tmp_path: Path) -> None:
    right, wrong = result(1.0, [2.0, 1.0]), result(1.0 + 1e-9, [2.0, 1.0])
    reference = written(tmp_path / "reference", right, right)
    equal, other = written(tmp_path / "equal", right, right), written(tmp_path / "other", right, wrong)
    assert runs.judge("vae", "all_reduce", 2, ended(0), equal, reference) == Verdict("equal")
    verdict = runs.judge("vae", "all_reduce", 2, ended(0), other, reference)
    assert (verdict.outcome, verdict.sentence) == ("different", "model.weight of rank 1")
    assert verdict.is_defect
    assert runs.judge("plateau_of_each", "all_reduce", 2, ended(0), other, tmp_path).is_defect
    assert runs.judge("plateau_of_each", "all_reduce", 2, ended(0), equal, tmp_path) == Verdict("agrees")


def test_a_rank_that_has_trained_alone_is_a_defect(tmp_path: Path) -> None:
    one, other = result(1.0, [2.0, 1.0]), result(1.5, [2.0, 1.0])
    found, alone = written(tmp_path / "found", one, one), written(tmp_path / "alone", one, other)
    assert runs.judge("vae", "downpour", 2, ended(0), found, alone).sentence == "rank 0 has trained alone"
    apart = written(tmp_path / "apart", other, other)
    assert runs.judge("vae", "downpour", 2, ended(0), found, apart) == Verdict("learns")


@pytest.mark.parametrize("losses", [[2.0, 2.5], [2.0, float("nan")]])
def test_asynchronous_groups_have_to_learn(tmp_path: Path, losses: list[float]) -> None:
    found = written(tmp_path / "found", result(1.0, [2.0, 1.0]), result(1.0, losses))
    alone = written(tmp_path / "alone", result(0.0, [2.0, 1.0]), result(0.0, [2.0, 1.0]))
    assert runs.judge("vae", "downpour", 2, ended(0), found, alone).outcome == "diverging"


def test_a_refusal_at_the_scripts_end_is_the_last_line(tmp_path: Path) -> None:
    why = "exited with 1; its last line was: torchyard: After step 16 the parameter weight differs between the ranks."
    done = ended(1, f"✗ run 2026 failed after 1.0 s: worker-0 on this-computer: {why}\n")
    assert runs.judge("vae", "all_reduce", 2, done, tmp_path, tmp_path).outcome == "refused"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("torchyard_roles.errors.UsageProblem: Use another optimizer.", "refused"),
        ("UsageProblem: Use another optimizer.", "refused"),
        ("PeerLost: worker-1 is gone.", "fails"),
        ("RuntimeError: Connection closed by peer.", "fails"),
    ],
)
def test_only_a_sentence_of_the_product_is_a_refusal(tmp_path: Path, error: str, outcome: str) -> None:
    text = f"✗ run 2026 failed after 1.0 s: worker-0 on this-computer: exited with 1: {error}\n"
    verdict = runs.judge("vae", "all_reduce", 2, ended(1, text), tmp_path, tmp_path)
    assert verdict.outcome == outcome


def test_the_table_is_read_as_it_was_written() -> None:
    cells = [("vae", strategy, workers) for strategy in STRATEGIES for workers in WORKERS]
    verdicts = dict.fromkeys(cells, Verdict("equal"))
    verdicts["vae", "downpour", 2] = verdicts["vae", "downpour", 3] = Verdict("refused", "Use another.")
    verdicts["vae", "sandblaster", 3] = Verdict("refused", "Use fewer.")
    page = f"{table.BEGIN}\n{table.render(verdicts)}{table.END}"
    assert "1. Use fewer.\n2. Use another." in page
    assert table.read(page) == {cell: verdict.outcome for cell, verdict in verdicts.items()}


def test_the_documentation_has_every_loop_and_no_defect() -> None:
    stated = table.read(table.PAGE.read_text())
    assert set(stated) == {
        (loop, strategy, workers) for loop in runs.names() for strategy in STRATEGIES for workers in WORKERS
    }
    assert {cell: outcome for cell, outcome in stated.items() if Verdict(outcome).is_defect} == {}
