"""Benchmark of DiLoCo's encodings on one core, and of its outer step on all cores.

A rate is the size of the float32 values divided by the CPU time. A copy of memory in the same run is shown for
comparison.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.harness import Promise, alternate, record, show

ELEMENTS = 16 << 20
OUTER_ELEMENTS = 256 << 20
"""1 GiB of float32."""
ROUNDS = 5


def cpu_time(work: Callable[[], object]) -> float:
    """Returns the CPU time of this process during a call in seconds, which other processes hardly affect."""
    start = time.process_time()
    work()
    return time.process_time() - start


def encodings() -> tuple[dict[str, list[float]], list[Promise]]:
    import torch

    from torchyard_roles.exchange.quantization import WIRES, WireCodec

    values, out = torch.randn(ELEMENTS), torch.empty(ELEMENTS)

    def rate(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: values.nbytes / 1e9 / cpu_time(work)

    arms = {"copy of memory": rate(lambda: out.copy_(values))}
    for wire in WIRES[1:]:
        codec = WireCodec(wire)
        encoded, error = codec.encode(values), torch.zeros_like(values)
        arms[f"{wire}, encode"] = rate(lambda codec=codec: codec.encode(values))
        arms[f"{wire}, encode with feedback"] = rate(lambda codec=codec, error=error: codec.encode(values, error))
        arms[f"{wire}, decode"] = rate(lambda codec=codec, encoded=encoded: codec.decode(encoded, out))
    found = alternate(arms, ROUNDS)
    show("DiLoCo: encodings, float32 per second of one core", found, "GB/s")
    promises = [
        Promise(f"{wire}, {what}: time of a core for 1 GB", 1 / statistics.median(found[f"{wire}, {what}"]), limit, "s")
        for wire in WIRES[1:]
        for what, limit in (("encode", 1.0), ("decode", 0.5))
    ]
    return found, promises


def outer_step(cores: int) -> tuple[dict[str, list[float]], list[Promise]]:
    import torch

    from torchyard_roles.strategies.diloco.outer_step import Flat, OuterParameters

    outer = OuterParameters([Flat([torch.zeros(OUTER_ELEMENTS)], torch.float32, is_buffer=False)])
    outer.begin()
    average = [torch.full((OUTER_ELEMENTS,), 1e-3)]
    arms = {"outer step": lambda: cpu_time(lambda: outer.step(average, 0.7, 0.9)) / cores}
    found = alternate(arms, ROUNDS)
    show(f"DiLoCo: outer step of 1 GiB of parameters, CPU time of each of {cores} cores", found)
    return found, [Promise("outer step of 1 GiB of parameters", statistics.median(found["outer step"]), 1.0, "s")]


def main() -> list[Promise]:
    import torch

    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    rates, promises = encodings()
    torch.set_num_threads(cores)
    steps, more = outer_step(cores)
    record("diloco_wire", rates | steps, [*promises, *more])
    return [*promises, *more]
