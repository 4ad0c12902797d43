"""Runs parts of the proof and prints them: `python -m tests.end_to_end.advisor_proof --seed 1 --count 8`.

`--part` is `cases` (sleeping trainers), `busy` (computing trainers), `choices` (recommended topologies) or `all`. With
`--write`, the report of `all` is written to docs/proof. Another seed than that of the proof gives cases for fitting.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.end_to_end.advisor_proof import report
from tests.end_to_end.advisor_proof.cases import Case, busy_cases, cases, choices
from tests.end_to_end.advisor_proof.lab_runs import CaseRunner, ChoiceOutcome, Outcome, open_lab
from tests.end_to_end.advisor_proof.test_predictions import CHOICES, COUNT, PROOF, SEED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("cases", "busy", "choices", "all"), default="cases")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, help="number of cases, or of choices with --part choices")
    parser.add_argument("--first", type=int, default=0, help="position of the first one to run")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write and args.part != "all":
        parser.error("--write needs --part all")
    chosen: dict[str, list[Case]] = {"cases": [], "busy": []}
    if args.part in ("cases", "all"):
        chosen["cases"] = list(cases(args.seed, args.count or COUNT))[args.first :]
    if args.part in ("busy", "all"):
        chosen["busy"] = list(busy_cases())[args.first : args.count]
    found = report.Results()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder)) as lab:
        runner = CaseRunner(Path(folder), lab)
        try:
            for part, outcomes in (("cases", found.cases), ("busy", found.busy)):
                for case in chosen[part]:
                    outcomes.append(runner.run(case))
                    show(outcomes[-1])
                    print(f"    links: {runner.measured_mbit} Mbit/s; {time.monotonic() - began:.0f} s", flush=True)
            if args.part in ("choices", "all"):
                count = args.count if args.part == "choices" and args.count else CHOICES
                for choice in list(choices(args.seed, count))[args.first :]:
                    found.choices.append(runner.choose(choice))
                    show_choice(found.choices[-1])
                    print(f"    {time.monotonic() - began:.0f} s", flush=True)
        finally:
            runner.close()
    print(report.figures(found))
    if args.write:
        report.write(found, PROOF)


def show(outcome: Outcome) -> None:
    """Prints a case with the parts of its predicted step."""
    case, found = outcome.case, outcome.prediction
    print(
        f"{case.number:3} {case.name:22} {case.megabytes:5g} MB {case.compute_s:4g} s {min(case.rates_mbit):4}-"
        f"{max(case.rates_mbit):4} Mbit/s  predicted {found.samples_s:6.3f} ({found.low:.3f} to {found.high:.3f}) "
        f"measured {outcome.measured:6.3f} {outcome.error:+6.1%} {'in ' if outcome.is_inside else 'out'} "
        f"step {found.step_s:.3f} compute {found.compute_s:.3f} exchange {found.exchange_s:.3f} "
        f"wait {found.wait_s:.3f}; {found.bottleneck}",
        flush=True,
    )


def show_choice(outcome: ChoiceOutcome) -> None:
    """Prints the topologies of a choice."""
    choice = outcome.choice
    print(f"{choice.number:3} {choice.megabytes:5g} MB {choice.compute_s:4g} s {choice.rates_mbit} Mbit/s")
    for each in outcome.found:
        print(f"      {each.title:44} predicted {each.predicted:6.3f} measured {each.measured:6.3f}")
    print(f"    recommended: {outcome.shortfall:.1%} below the best", flush=True)


if __name__ == "__main__":
    main()
