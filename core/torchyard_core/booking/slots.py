"""Slots of a fleet and their names: `gpu-b:2`, `gpu-b:0-3`, `gpu-b:*`, `big-cpu:cpu`, `hpc:n[1-2]`, or a UUID."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Slot, cpu_slot
from torchyard_core.formatting import number_ranges
from torchyard_core.next_steps import Advice, ShowHosts
from torchyard_core.problems import did_you_mean
from torchyard_core.topology.host_facts import HostFacts


def parse_slots(text: str, slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Returns the slots in a list of names separated by commas or spaces, sorted and unique.

    The name of a host alone means all of its slots. Raises Refused for unknown names, and if there is no name.
    """
    named: dict[str, Slot] = {}
    for word in _words(text):
        for slot in _named(word, slots):
            named[slot.id] = slot
    if not named:
        raise Refused("no GPU is named", code="no_gpus", hint="Name some as gpu-a:0, gpu-a:0-3, gpu-a:* or by UUID.")
    return tuple(sorted(named.values(), key=Slot.sort_key))


def format_slots(ids: Iterable[str], slots: Iterable[Slot]) -> str:
    """Formats slot IDs as names: `gpu-b:2-5, gpu-c:cpu`. An unknown slot is shown by its ID."""
    known = {slot.id: slot for slot in slots}
    wanted = list(ids)
    parts: list[str] = []
    there = sorted((known[gpu] for gpu in wanted if gpu in known), key=Slot.sort_key)
    for host, of_host in groupby(there, key=lambda slot: slot.host):
        numbers = []
        for slot in of_host:
            if slot.index is None or slot.node:
                parts.append(slot.name)
            else:
                numbers.append(slot.index)
        if numbers:
            parts.append(f"{host}:{number_ranges(numbers)}")
    return ", ".join([*parts, *(gpu for gpu in wanted if gpu not in known)])


def _words(text: str) -> list[str]:
    """Splits text at commas and spaces. In `gpu-b:0,2` the host before `0` also applies to `2`."""
    words: list[str] = []
    host = ""
    for word in re.split(r"[,\s]+", _RANGES.sub(_expanded, text.strip())):
        if not word:
            continue
        if re.fullmatch(r"\d+(-\d+)?", word) and host:
            words.append(f"{host}:{word}")
        else:
            words.append(word)
            host = word.rpartition(":")[0]
    return words


_RANGES = re.compile(r"(?<![^\s,\[\]])([^\s,\[\]]*)\[([\d,-]+)\]")
"""A Slurm hostlist, which names several nodes: `hpc:n[1-2,07]`.

A match begins only at the beginning of a word, so that the time for a long word is proportional to its length.
"""
MOST_DIGITS = 9
"""Maximum number of digits of a GPU or node. Python refuses to convert very long numbers."""
MOST_IN_RANGE = 10_000


def _expanded(match: re.Match[str]) -> str:
    """Expands a Slurm hostlist to the names of its nodes. Leading zeros of the numbers are kept."""
    names = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        if not first or max(len(first), len(last)) > MOST_DIGITS:
            return match[0]
        if not (last or first).isdigit() or int(last or first) - int(first) > MOST_IN_RANGE:
            return match[0]
        names += [f"{match[1]}{str(number).zfill(len(first))}" for number in range(int(first), int(last or first) + 1)]
    return ",".join(names)


def _named(word: str, slots: Sequence[Slot]) -> list[Slot]:
    by_id = [slot for slot in slots if slot.id == word]
    if by_id:
        return by_id
    host, colon, which = word.rpartition(":")
    if not colon:
        host, which = word, "*"
    of_host = [slot for slot in slots if slot.host == host]
    if any(slot.node and slot.name == host for slot in slots):
        why = f"Slurm reserves whole nodes, so `{word}` cannot be booked"
        raise Refused(why, code="part_of_node", hint=f"Book the whole node: {host}.")
    if not of_host:
        known = {slot.host for slot in slots}
        near = did_you_mean(host, known)
        hint: Advice = f"There are: {', '.join(sorted(known))}." if 0 < len(known) <= 12 else ShowHosts()
        raise Refused(f"no host `{host}` has GPUs to book{near}", code="unknown_gpu", hint=hint)
    if which == "*":
        return of_host
    if which == "cpu":
        found = [slot for slot in of_host if slot.is_cpu]
    elif any(slot.node for slot in of_host):
        found = [slot for slot in of_host if slot.node == which]
    elif match := re.fullmatch(rf"(\d{{1,{MOST_DIGITS}}})(?:-(\d{{1,{MOST_DIGITS}}}))?", which):
        first, last = int(match[1]), int(match[2] or match[1])
        found = [slot for slot in of_host if slot.index is not None and first <= slot.index <= last]
        if len(found) != last - first + 1:
            found = []
    else:
        found = []
    if not found:
        names = format_slots([slot.id for slot in of_host], of_host)
        raise Refused(f"there is no `{word}`", code="unknown_gpu", hint=f"{host} has {names}.")
    return found


def slots_of(hosts: Iterable[HostFacts], *, is_private: bool) -> tuple[Slot, ...]:
    """Returns the known GPUs of the hosts, and one CPU slot for each checked host without GPUs.

    If the calendar is not private to one user, this computer gets no CPU slot, because every member's own computer has
    the same host name.
    """
    found: list[Slot] = []
    for host in hosts:
        found += [Slot(gpu.uuid, host.name, gpu.index, gpu.name, gpu.memory_mb) for gpu in host.gpus]
        if host.checked and not host.gpus and (is_private or host.address is not None):
            found.append(cpu_slot(host.name))
    return tuple(found)
