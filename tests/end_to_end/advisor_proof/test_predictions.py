"""Tests that predictions hold on links with limited rates; writes docs/proof/advisor.md. Needs an otherwise idle
machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.advisor.samples import advised
from tests.end_to_end.advisor_proof import report
from tests.end_to_end.advisor_proof.cases import KINDS, Case, busy_cases, cases, choices
from tests.end_to_end.advisor_proof.lab_runs import CaseRunner, ChoiceOutcome, Measured, Outcome, open_lab
from tests.end_to_end.running import REPOSITORY
from torchyard_core.advisor.prediction import Layout, predict
from torchyard_core.topology.model import Strategy, StrategyKind

SEED, COUNT, CHOICES = 2026, 40, 3
PROOF = REPOSITORY / "docs" / "proof"


def test_the_cases_cover_strategies_sizes_and_unequal_links() -> None:
    found = list(cases(SEED, COUNT))
    assert len(found) == COUNT >= 40
    assert {case.kind for case in found} == {*KINDS}
    assert sum(case.is_unequal for case in found) >= 10
    assert max(case.workers for case in found) == 8
    assert min(case.workers for case in found) == 1
    reducers = [(case.servers, case.workers) for case in found if case.kind == "reduction_server"]
    assert any(servers < workers for servers, workers in reducers)
    assert any(servers > workers for servers, workers in reducers)
    assert list(cases(SEED, COUNT)) == found


def outcome(case: Case, error: float) -> Outcome:
    """Returns the outcome of a case with a relative error of the predicted speed."""
    prediction = predict(Layout(Strategy(kind=StrategyKind.ALL_REDUCE), ((0, 1),)), advised(2))
    return Outcome(case, prediction, prediction.samples_s / (1 + error))


def choice_outcome(*measured: float) -> ChoiceOutcome:
    return ChoiceOutcome(next(choices(SEED, 1)), tuple(Measured(f"{each:g}", 1.0, each) for each in measured))


def test_the_report_has_every_part_and_names_the_missed_goals(tmp_path: Path) -> None:
    found = [outcome(case, 0.5 if number < 4 else 0.01) for number, case in enumerate(cases(SEED, 20))]
    busy = [outcome(case, 0.09) for case in busy_cases()]
    results = report.Results(found, busy, [choice_outcome(2.0, 1.0), choice_outcome(2.0, 2.02, 1.9)])
    figures = report.figures(results)
    assert figures["median"] == pytest.approx(0.01)
    assert figures["covered"] == 0.8
    assert figures["busy_median"] == pytest.approx(0.09)
    assert figures["short_worst"] == pytest.approx(0.02 / 2.02)
    assert report.misses(figures) == ["p95", "worst"]
    assert report.misses({**figures, "busy_median": 0.11, "short_worst": 0.06, "covered": 0.9}) == [
        "p95",
        "worst",
        "busy_median",
        "short_worst",
        "covered",
    ]
    report.write(results, tmp_path)
    text = (tmp_path / "advisor.md").read_text(encoding="utf-8")
    assert "| worst | 50.0% | 20% |" in text
    assert "| computing trainers: median error | 9.0% | 10% |" in text
    assert "| **2** | 1.00 | 2.00 | 1.0% |" in text
    assert (tmp_path / "advisor.svg").read_text(encoding="utf-8").startswith("<svg ")


def test_trainers_that_compute_need_no_more_than_the_two_cores() -> None:
    found = busy_cases()
    assert len({case.kind for case in found}) == len(found)
    assert {case.workers for case in found} == {2}
    assert len({case.number for case in found} | {case.number for case in cases(SEED, COUNT)}) == len(found) + COUNT


def test_choices_have_equal_and_unequal_links() -> None:
    found = list(choices(SEED, CHOICES))
    assert {len({*choice.rates_mbit}) > 1 for choice in found} == {True, False}
    assert list(choices(SEED, CHOICES)) == found


@pytest.mark.proof
@pytest.mark.lab
@pytest.mark.train
@pytest.mark.timeout(7200)
def test_predicted_speeds_are_close_to_measured_ones(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab:
        runner = CaseRunner(tmp_path, lab)
        try:
            found = report.Results(
                [runner.run(case) for case in cases(SEED, COUNT)],
                [runner.run(case) for case in busy_cases()],
                [runner.choose(choice) for choice in choices(SEED, CHOICES)],
            )
        finally:
            runner.close()
    report.write(found, PROOF)
    figures = report.figures(found)
    assert not report.misses(figures), figures
