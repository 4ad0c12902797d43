"""Runs every loop under every strategy with 2 and 3 workers through `torchyard run`; writes the table in the
documentation.

    python -m tests.upstream [LOOP…] [--strategy all_reduce] [--workers 2] [--slots 2]

The exit code is 1 if a loop ends neither with the correct result nor with a refusal. The table is written only if no
loop, strategy or number of workers was selected.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from queue import SimpleQueue

from tests.upstream import runs, table
from tests.upstream.runs import Cell


@contextmanager
def interpreter(folder: Path, *, cold: bool) -> Iterator[str]:
    """Yields the path of the Python that runs the loops.

    If this process is root and `cold` is not set, that Python forks scripts from a process that has imported torch.
    """
    if cold or os.geteuid() != 0:
        yield sys.executable
    else:
        with runs.warm_python(folder) as python:
            yield python


def prove(cells: Sequence[Cell], folder: Path, *, slots: int, cold: bool) -> dict[Cell, runs.Verdict]:
    """Runs all cells of the table, and returns their outcomes. Prints each outcome as soon as it is known."""
    references = folder / "reference"
    with redirect_stdout(io.StringIO()):
        runs.make_references(cells, references)
    computers: SimpleQueue[runs.Computer] = SimpleQueue()

    def act(cell: Cell) -> runs.Verdict:
        loop, strategy, workers = cell
        computer, began = computers.get(), time.monotonic()
        try:
            done, results = computer.run(loop, strategy, workers)
        finally:
            computers.put(computer)
        verdict = runs.judge(loop, strategy, workers, done, results, runs.reference_of(references, cell))
        line = f"{loop:24} {strategy:16} {workers} {verdict.outcome:9} {verdict.difference:.0e}"
        print(f"{line} {time.monotonic() - began:4.1f} s {verdict.sentence}", flush=True)
        return verdict

    with interpreter(folder, cold=cold) as python:
        made = [runs.Computer(folder / f"computer-{number}", python) for number in range(slots)]
        for computer in made:
            computers.put(computer)
        try:
            with ThreadPoolExecutor(slots) as pool:
                return dict(zip(cells, pool.map(act, cells), strict=True))
        finally:
            for computer in made:
                computer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("loops", nargs="*", help="default: all")
    parser.add_argument("--strategy", action="append", choices=list(runs.STRATEGIES))
    parser.add_argument("--workers", action="append", type=int, choices=runs.WORKERS)
    parser.add_argument("--slots", type=int, default=2, help="runs at a time")
    parser.add_argument("--cold", action="store_true", help="an interpreter of its own for each process")
    options = parser.parse_args()
    cells = [
        (loop, strategy, workers)
        for loop in options.loops or runs.names()
        for strategy in options.strategy or runs.STRATEGIES
        for workers in options.workers or runs.WORKERS
    ]
    with tempfile.TemporaryDirectory(prefix="torchyard-upstream-") as folder:
        verdicts = prove(cells, Path(folder), slots=options.slots, cold=options.cold)
    if not (options.loops or options.strategy or options.workers):
        table.write(verdicts)
    defects = [cell for cell, verdict in verdicts.items() if verdict.is_defect]
    print(f"{len(cells)} runs, {len(defects)} defects", *(" ".join(map(str, cell)) for cell in defects), sep="\n  ")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
