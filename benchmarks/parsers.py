"""Test of all parsers with 100,000 inputs in total.

Each input must result in a value or in the parser's own error, in bounded time and memory. `TORCHYARD_SEED=N python -m
benchmarks parsers` repeats the inputs of an earlier run.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import sys
import warnings
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.attacks.parsers import PARSERS, violation

from benchmarks.harness import Promise, record

INPUTS = 100_000
MOST_MEMORY = 16 << 30
"""Limit of the process's address space: an input that requests all memory must not crash the machine."""
SHOWN = 3
"""Largest number of a parser's violations that are printed."""


def run_inputs(name: str, number: int, inputs: int) -> tuple[str, int, list[str]]:
    """Tests a parser with inputs. Returns the name of the parser, the number of inputs, and the violations."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    (parser,) = [one for one in PARSERS if one.name == name]
    count = 0
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def one(given: Any) -> None:
        nonlocal count
        count += 1
        if why := violation(parser, given):
            found.append(why)

    one()
    return name, count, found


def main() -> list[Promise]:
    number = int(os.environ.get("TORCHYARD_SEED", "") or secrets.randbelow(1 << 32))
    print(f"\nInputs to parsers, seed {number}")
    each = -(-INPUTS // len(PARSERS))
    left, inputs, violations = [parser.name for parser in PARSERS], 0, 0
    figures: dict[str, list[float]] = {}
    # Each parser runs in a separate process, so that its side effects do not influence the next parser.
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        waiting = [pool.apply_async(run_inputs, (name, number, each)) for name in left]
        for one in waiting:
            name, count, found = one.get()
            print(f"  {name:24} {count:6} inputs {len(found):5} violations")
            for why in found[:SHOWN]:
                print(f"    {why}", file=sys.stderr)
            figures[name] = [float(len(found))]
            inputs += count
            violations += len(found)
    promises = [
        Promise(f"violations in {inputs:,} inputs to {len(PARSERS)} parsers", violations, 0, "violations"),
        Promise("inputs that are lacking", max(0, INPUTS - inputs), 0, "inputs"),
    ]
    record("parsers", figures, promises)
    return promises


if __name__ == "__main__":
    main()
