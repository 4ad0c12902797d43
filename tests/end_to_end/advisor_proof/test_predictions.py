"""Tests that predictions hold on links with limited rates; writes docs/proof/advisor.md. Needs an otherwise idle
machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.advisor_proof import report
from tests.end_to_end.advisor_proof.cases import KINDS, cases
from tests.end_to_end.advisor_proof.lab_runs import CaseRunner, open_lab
from tests.end_to_end.running import REPOSITORY

SEED, COUNT = 2026, 42
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


@pytest.mark.proof
@pytest.mark.lab
@pytest.mark.train
@pytest.mark.timeout(7200)
def test_predicted_speeds_are_close_to_measured_ones(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab:
        runner = CaseRunner(tmp_path, lab)
        try:
            outcomes = [runner.run(case) for case in cases(SEED, COUNT)]
        finally:
            runner.close()
    report.write(outcomes, PROOF)
    found = report.figures(outcomes)
    assert found["median"] <= report.MEDIAN, found
    assert found["p95"] <= report.P95, found
    assert found["worst"] <= report.WORST, found
