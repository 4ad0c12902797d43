"""The sections of a canvas with many hosts: hosts with the same value of a label form a section with one heading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.host_facts import HostFacts

SECTIONS_FROM = 17
"""Minimum number of hosts on the canvas at which they are divided into sections."""
RACK_LABEL = "rack"
NO_PLACES = ("machine",)
"""Labels by which hosts are never divided into sections."""


def sections_of(hosts: Sequence[HostFacts]) -> dict[str, str]:
    """Returns the section of each host: its value of the label by which the hosts are divided.

    A label divides the hosts if more than half of them have it, and if its number of values is at least two and at most
    half the number of hosts. Of such labels, `rack` is used, or else the most frequent one. Hosts without the label are
    in a separate section. There are no sections if there is no such label or if there are fewer than `SECTIONS_FROM`
    hosts.
    """
    if len(hosts) < SECTIONS_FROM:
        return {}
    values: dict[str, Counter[str]] = {}
    for host in hosts:
        for key, value in host.labels.items():
            if key not in NO_PLACES:
                values.setdefault(key, Counter())[value] += 1

    def divides(key: str) -> bool:
        found = values[key]
        return 1 < len(found) <= len(hosts) // 2 and found.total() > len(hosts) // 2

    fitting = [key for key in values if divides(key)]
    if not fitting:
        return {}
    label = RACK_LABEL if RACK_LABEL in fitting else max(fitting, key=lambda key: values[key].total())
    return {host.name: host.labels.get(label) or labels_missing(label) for host in hosts}


def labels_missing(label: str) -> str:
    """Returns the name of the section for hosts that have no label."""
    return QCoreApplication.translate("Canvas", "no label “{label}”").format(label=label)
