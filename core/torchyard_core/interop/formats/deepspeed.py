"""Import of DeepSpeed's hostfile.

Each line names a host and its number of slots. A slot is one process with its own GPU.

Source: the parser of the `deepspeed` launcher 0.19. As that parser does, this module ignores any text after the number
of slots.
"""

from __future__ import annotations

import re
from typing import Any

from torchyard_core.interop.document_reader import Imported, built, refuse
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.program_conversion import missing_program
from torchyard_core.interop.remarks import Remark
from torchyard_core.topology.model import MAX_GPUS

ALLOWED = "a line `HOST slots=NUMBER` for each host"
_ENTRY = re.compile(r"(?P<host>\S+)\s+slots=(?P<slots>\d+)(?P<rest>.*)")


def read(text: str, source: str = "hostfile") -> Imported:
    """Reads a hostfile. Raises FileProblem for an invalid line or number of slots, and for a host with two lines."""
    expect("deepspeed", text, source, ALLOWED)
    remarks: list[Remark] = []
    lines: dict[str, int] = {}
    pools: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        entry = _ENTRY.match(words)
        if entry is None:
            refuse(source, number, f"`{words[:80]}` is no host with its slots.", f"A hostfile holds {ALLOWED}.")
        host, slots = entry["host"], int(entry["slots"])
        if host in lines:
            message = f"{host} is given twice, first in line {lines[host]}."
            refuse(source, number, message, "DeepSpeed takes a host once: keep one of the two.")
        if not 1 <= slots <= MAX_GPUS:
            refuse(
                source, number, f"the slots of {host} are {slots}.", f"Allowed are whole numbers from 1 to {MAX_GPUS}."
            )
        rest = entry["rest"].strip()
        if rest and not rest.startswith("#"):
            remarks.append(Remark(f"`{rest[:80]}` is left out: DeepSpeed does not read it either.", number))
        lines[host] = number
        _add(pools, host, slots)
    if not lines:
        refuse(source, None, "there is no host in this file.", f"A hostfile holds {ALLOWED}.")
    remarks.append(Remark("the hosts must have these names in your fleet; else change `hosts`."))
    remarks.append(
        Remark("slots are read as GPUs, with a process each. Without GPUs, set `gpus: 0` and `replicas` to the slots.")
    )
    data = {"name": "deepspeed", "pools": pools, "program": missing_program(remarks)}
    return Imported(built(data, source, next(iter(lines.values()))), tuple(remarks))


def _add(pools: list[dict[str, Any]], host: str, slots: int) -> None:
    """Adds a host to the last pool if that pool's replicas have the same number of GPUs, otherwise to a new pool.

    Hosts are never added to earlier pools, because ranks follow the order of the pools and hosts.
    """
    if pools and pools[-1]["gpus"] == slots:
        pools[-1]["hosts"].append(host)
        pools[-1]["replicas"] += 1
        return
    name = f"workers-{len(pools) + 1}" if pools else "workers"
    pools.append({"name": name, "role": "worker", "replicas": 1, "gpus": slots, "hosts": [host], "placement": "spread"})
