"""The slots that a fleet has, from what was found out about its hosts: what the calendar can book."""

from __future__ import annotations

from collections.abc import Iterable

from torchyard_core.booking.model import Slot, cpu_slot
from torchyard_core.topology.host_facts import HostFacts


def slots_of(hosts: Iterable[HostFacts], *, is_private: bool) -> tuple[Slot, ...]:
    """Every GPU of the hosts that were looked at, and the one CPU slot of those without.

    The CPUs of *this computer* are left out of a team's calendar: everybody's computer is called so.
    """
    found: list[Slot] = []
    for host in hosts:
        found += [Slot(gpu.uuid, host.name, gpu.index, gpu.name, gpu.memory_mb) for gpu in host.gpus]
        if host.checked and not host.gpus and (is_private or host.address is not None):
            found.append(cpu_slot(host.name))
    return tuple(found)
