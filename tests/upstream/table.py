"""Renders and reads the table of loops and strategies in docs/training-script.md, which `make proof` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.upstream.reference import LOOPS
from tests.upstream.runs import STRATEGIES, WORKERS, Cell, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "training-script.md"
BEGIN, END = "<!-- loops: written by `make proof` -->", "<!-- end of loops -->"


def render(verdicts: Mapping[Cell, Verdict]) -> str:
    """Returns the table in Markdown, followed by details of the outcomes."""
    sentences: list[str] = []
    lines = [f"| loop | {' | '.join(STRATEGIES)} |", f"|---|{'---|' * len(STRATEGIES)}"]
    for loop in sorted({loop for loop, _, _ in verdicts}):
        row = [f"[{loop.replace('_', ' ')}](../tests/upstream/loops/{loop}.py)"]
        for strategy in STRATEGIES:
            words = [_word(verdicts[loop, strategy, workers], sentences) for workers in WORKERS]
            row.append(words[0] if len(set(words)) == 1 else ", ".join(map(_of, words, WORKERS)))
        lines.append(f"| {' | '.join(row)} |")
    notes = [f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1)]
    return "\n".join([*lines, "", *notes]).strip() + "\n"


def _word(verdict: Verdict, sentences: list[str]) -> str:
    if not verdict.sentence:
        return verdict.outcome
    if verdict.sentence not in sentences:
        sentences.append(verdict.sentence)
    return f"{verdict.outcome} ({sentences.index(verdict.sentence) + 1})"


def _of(word: str, workers: int) -> str:
    return f"{word} with {workers}"


def write(verdicts: Mapping[Cell, Verdict]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(verdicts)}\n{END}{after}")


def read(page: str) -> dict[Cell, str]:
    """Returns the outcome of each cell, as read from the documentation page."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    found = {}
    for line in table.splitlines():
        link = re.match(rf"\| \[[^]]+\]\(\.\./tests/upstream/{LOOPS.name}/(\w+)\.py\)", line)
        if link is None:
            continue
        for strategy, words in zip(STRATEGIES, line.split("|")[2:-1], strict=True):
            for workers in WORKERS:
                said = re.search(rf"(\w+)(?: \(\d+\))? with {workers}\b", words) or re.match(r" (\w+)", words)
                assert said is not None, line
                found[link[1], strategy, workers] = said[1]
    return found
