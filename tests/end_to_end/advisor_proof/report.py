"""The report of the proof: predicted and measured speeds, in a table and in a plot with every point."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from pathlib import Path
from statistics import median

from tests.end_to_end.advisor_proof.cases import KINDS
from tests.end_to_end.advisor_proof.lab_runs import Outcome
from torchyard_core.formatting import seconds

MEDIAN, P95, WORST = 0.05, 0.12, 0.20
COVERED = (0.75, 0.85)
NAMED_WORST = 4
WIDTH, MARGIN = 480, 56
COLOURS = ("#4450C8", "#B3541E", "#2E7D4F", "#8A3FA0", "#A03050", "#4A5462")


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that is greater than or equal to this share (0 to 1) of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Returns the median, 95th percentile and maximum of the absolute errors, and the share within the intervals."""
    errors = [abs(each.error) for each in outcomes]
    return {
        "median": median(errors),
        "p95": percentile(errors, 0.95),
        "worst": max(errors),
        "covered": sum(each.is_inside for each in outcomes) / len(outcomes),
    }


def write(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes advisor.md and advisor.svg."""
    found = figures(outcomes)
    unequal = sum(each.case.is_unequal for each in outcomes)
    worst = sorted(outcomes, key=lambda each: -abs(each.error))[:NAMED_WORST]
    lines = [
        "# Predicted and measured speed",
        "",
        f"Written by `make proof` (`python -m tests.end_to_end.advisor_proof`): {len(outcomes)} runs on hosts of the "
        f"lab with shaped links, {unequal} of them with unequal links. Computing sleeps for sampled times (standard "
        "deviation 8% of the mean), since all hosts share two cores; exchange, servers and the launch are real. The "
        "program is profiled on one host, and the preflight of each run measures the links. The cases come from a "
        "seed, and none was used to fit a constant. Speeds are steps/s of all trainers together.",
        "",
        "![Predicted against measured speed](advisor.svg)",
        "",
        "| | measured | goal |",
        "|---|---|---|",
        f"| median error | {found['median']:.1%} | {MEDIAN:.0%} |",
        f"| 95th percentile | {found['p95']:.1%} | {P95:.0%} |",
        f"| worst | {found['worst']:.1%} | {WORST:.0%} |",
        f"| inside the 80% interval | {found['covered']:.0%} | {COVERED[0]:.0%} to {COVERED[1]:.0%} |",
        "",
        "The worst cases: "
        + "; ".join(
            f"number {each.case.number} ({each.case.name}, {each.case.megabytes:g} MB, "
            f"{min(each.case.rates_mbit)} Mbit/s): {each.error:+.1%}, limited by {each.prediction.bottleneck}"
            for each in worst
        )
        + ".",
        "",
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
    (folder / "advisor.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "advisor.svg").write_text(plot(outcomes), encoding="utf-8")


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
