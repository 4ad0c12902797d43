"""The report of the proof: predicted and measured speeds, in tables and in a plot with every sleeping case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from statistics import median

from tests.end_to_end.advisor_proof.cases import KINDS
from tests.end_to_end.advisor_proof.lab_runs import ChoiceOutcome, Outcome
from torchyard_core.formatting import seconds

MEDIAN, P95, WORST = 0.05, 0.12, 0.20
COVERED = (0.75, 0.85)
BUSY_MEDIAN = 0.10
SHORT_MEDIAN, SHORT_WORST = 0.01, 0.05
NAMED_WORST = 4
WIDTH, MARGIN = 480, 56
COLOURS = ("#4450C8", "#B3541E", "#2E7D4F", "#8A3FA0", "#A03050", "#4A5462")


@dataclass
class Results:
    """The outcomes of the proof's three parts."""

    cases: list[Outcome] = field(default_factory=list)
    busy: list[Outcome] = field(default_factory=list)
    choices: list[ChoiceOutcome] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that is greater than or equal to this share (0 to 1) of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def figures(results: Results) -> dict[str, float]:
    """Returns the figures of the parts that have outcomes.

    They are the median, 95th percentile and maximum of the absolute errors and the share within the intervals; the
    median error of computing trainers; and the median and maximum shortfall of recommended topologies.
    """
    found: dict[str, float] = {}
    if results.cases:
        errors = [abs(each.error) for each in results.cases]
        inside = sum(each.is_inside for each in results.cases) / len(results.cases)
        found |= {"median": median(errors), "p95": percentile(errors, 0.95), "worst": max(errors), "covered": inside}
    if results.busy:
        found["busy_median"] = median(abs(each.error) for each in results.busy)
    if results.choices:
        short = [each.shortfall for each in results.choices]
        found |= {"short_median": median(short), "short_worst": max(short)}
    return found


def misses(found: Mapping[str, float]) -> list[str]:
    """Returns the names of the figures that miss their goals."""
    goals = {
        "median": MEDIAN,
        "p95": P95,
        "worst": WORST,
        "busy_median": BUSY_MEDIAN,
        "short_median": SHORT_MEDIAN,
        "short_worst": SHORT_WORST,
    }
    missed = [name for name, goal in goals.items() if found[name] > goal]
    return missed if COVERED[0] <= found["covered"] <= COVERED[1] else [*missed, "covered"]


def write(results: Results, folder: Path) -> None:
    """Writes advisor.md and advisor.svg. Each part must have outcomes."""
    found = figures(results)
    outcomes = results.cases
    unequal = sum(each.case.is_unequal for each in outcomes)
    worst = sorted(outcomes, key=lambda each: -abs(each.error))[:NAMED_WORST]
    lines = [
        "# Predicted and measured speed",
        "",
        "Written by `make proof` (`python -m tests.end_to_end.advisor_proof --part all --write`) on hosts of the lab "
        "with shaped links. The program is profiled on one host, and the preflight of each run measures the links. No "
        "constant was fitted to any of the cases. Speeds are steps/s of all trainers together.",
        "",
        "| | measured | goal |",
        "|---|---|---|",
        f"| sleeping trainers: median error | {found['median']:.1%} | {MEDIAN:.0%} |",
        f"| 95th percentile | {found['p95']:.1%} | {P95:.0%} |",
        f"| worst | {found['worst']:.1%} | {WORST:.0%} |",
        f"| inside the 80% interval | {found['covered']:.0%} | {COVERED[0]:.0%} to {COVERED[1]:.0%} |",
        f"| computing trainers: median error | {found['busy_median']:.1%} | {BUSY_MEDIAN:.0%} |",
        f"| the recommended topology, below the best measured one: median | {found['short_median']:.1%} | "
        f"{SHORT_MEDIAN:.0%} |",
        f"| worst | {found['short_worst']:.1%} | {SHORT_WORST:.0%} |",
        "",
        "![Predicted against measured speed](advisor.svg)",
        "",
        "## Sleeping trainers",
        "",
        f"{len(outcomes)} runs that a seed determines, {unequal} of them with unequal links. Computing sleeps for "
        "sampled times (standard deviation 8% of the mean), since all hosts share two cores; exchange, servers and the "
        "launch are real.",
        "",
        "The worst cases: "
        + "; ".join(
            f"number {each.case.number} ({each.case.name}, {each.case.megabytes:g} MB, "
            f"{min(each.case.rates_mbit)} Mbit/s): {each.error:+.1%}, limited by {each.prediction.bottleneck}"
            for each in worst
        )
        + ".",
        "",
        *_table(outcomes),
        "",
        "## Computing trainers",
        "",
        "Two workers multiply matrices on the two cores, which exchanges and servers use as well.",
        "",
        *_table(results.busy),
        "",
        "## Recommended topologies",
        "",
        "For fleets that a seed determines, the recommended topology, the best one of every other strategy with the "
        "same result, and all-reduce on all hosts. Computing sleeps.",
        "",
        "| | hosts, Mbit/s | MB | compute | topology | predicted | measured | below the best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for choice in results.choices:
        of = choice.choice
        best = max(each.measured for each in choice.found)
        for number, each in enumerate(choice.found):
            about = (str(of.number), ", ".join(map(str, of.rates_mbit)), f"{of.megabytes:g}", seconds(of.compute_s))
            title = f"**{each.title}**" if number == 0 else each.title
            short = f"{1 - each.measured / best:.1%}"
            cells = (*(about if number == 0 else ("",) * 4), title, f"{each.predicted:.2f}", f"{each.measured:.2f}")
            lines.append(f"| {' | '.join((*cells, short))} |")
    (folder / "advisor.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "advisor.svg").write_text(plot(outcomes), encoding="utf-8")


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        "| | strategy | MB | compute | Mbit/s | predicted step | predicted | measured | error | inside |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        case = each.case
        slow, fast = min(case.rates_mbit), max(case.rates_mbit)
        rates = str(fast) if slow == fast else f"{slow} to {fast}"
        lines.append(
            f"| {case.number} | {case.name} | {case.megabytes:g} | {seconds(case.compute_s)} | {rates} | "
            f"{seconds(each.prediction.step_s)} | {each.prediction.samples_s:.2f} | {each.measured:.2f} | "
            f"{each.error:+.1%} | {'yes' if each.is_inside else 'no'} |"
        )
    return lines


def plot(outcomes: Sequence[Outcome]) -> str:
    """Returns a plot of predicted and measured speeds on logarithmic axes, with bands of 5% and 20%."""
    values = [value for each in outcomes for value in (each.measured, each.prediction.samples_s)]
    low, high = log10(min(values) / 1.3), log10(max(values) * 1.3)

    def at(value: float) -> float:
        return MARGIN + (log10(value) - low) / (high - low) * (WIDTH - 2 * MARGIN)

    def line(factor: float, style: str) -> str:
        begin, end = 10**low, 10**high
        return (
            f'<line x1="{at(begin):.1f}" y1="{WIDTH - at(begin * factor):.1f}" x2="{at(end):.1f}" '
            f'y2="{WIDTH - at(end * factor):.1f}" {style}/>'
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {WIDTH}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{WIDTH}" fill="#FFFFFF"/>',
        line(1.0, 'stroke="#191D23"'),
    ]
    for share in (0.05, 0.2):
        parts += [line(factor, 'stroke="#A0A8B4" stroke-dasharray="3 3"') for factor in (1 - share, 1 + share)]
    for each in outcomes:
        colour = COLOURS[KINDS.index(each.case.kind)]
        shape = 'stroke-width="1.5" fill="none"' if each.case.is_unequal else f'fill="{colour}"'
        parts.append(
            f'<circle cx="{at(each.measured):.1f}" cy="{WIDTH - at(each.prediction.samples_s):.1f}" r="3.5" '
            f'stroke="{colour}" {shape}><title>{each.case.number}: {each.case.name}, {each.error:+.1%}</title></circle>'
        )
    for number, kind in enumerate(KINDS):
        y = MARGIN + 14 * number
        parts.append(f'<circle cx="{MARGIN + 8}" cy="{y - 4}" r="3.5" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{MARGIN + 18}" y="{y}">{kind}</text>')
    middle = f'x="{WIDTH / 2}" text-anchor="middle"'
    parts.append(f'<text {middle} y="{WIDTH - 16}">measured, steps/s of all trainers</text>')
    parts.append(
        f'<text x="16" y="{WIDTH / 2}" text-anchor="middle" transform="rotate(-90 16 {WIDTH / 2})">predicted</text>'
    )
    note = "dashed: 5% and 20%; circles without filling: unequal links"
    parts.append(f'<text {middle} y="{WIDTH - 2}" fill="#606A78">{note}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
