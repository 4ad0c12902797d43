"""Runs cases of the proof and prints them: `python -m tests.end_to_end.advisor_proof --seed 1 --count 8`.

With `--write`, the report is written to docs/proof. Another seed than that of the proof gives cases for fitting.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.end_to_end.advisor_proof import report
from tests.end_to_end.advisor_proof.cases import cases
from tests.end_to_end.advisor_proof.lab_runs import CaseRunner, Outcome, open_lab
from tests.end_to_end.advisor_proof.test_predictions import COUNT, PROOF, SEED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=0, help="number of the first case to run")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder)) as lab:
        runner = CaseRunner(Path(folder), lab)
        try:
            for case in list(cases(args.seed, args.count))[args.first :]:
                outcomes.append(runner.run(case))
                show(outcomes[-1])
                print(f"    links: {runner.measured_mbit} Mbit/s", flush=True)
        finally:
            runner.close()
    print(report.figures(outcomes))
    if args.write:
        report.write(outcomes, PROOF)


def show(outcome: Outcome) -> None:
    """Prints a case with the parts of its predicted step."""
    case, found = outcome.case, outcome.prediction
    print(
        f"{case.number:3} {case.name:22} {case.megabytes:5g} MB {case.compute_s:4g} s {min(case.rates_mbit):4}-"
        f"{max(case.rates_mbit):4} Mbit/s  predicted {found.samples_s:6.3f} measured {outcome.measured:6.3f} "
        f"{outcome.error:+6.1%} {'in ' if outcome.is_inside else 'out'} step {found.step_s:.3f} compute "
        f"{found.compute_s:.3f} exchange {found.exchange_s:.3f} wait {found.wait_s:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
