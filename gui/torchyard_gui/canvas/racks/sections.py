"""The sections of a canvas with many hosts. Hosts with the same value of a label form a section with a common
heading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.host_facts import HostFacts

SECTIONS_FROM = 17
"""If there are fewer hosts than this on the canvas, they are not divided into sections."""
RACK_LABEL = "rack"
NO_PLACES = ("machine",)
"""Labels by which hosts are never divided into sections."""


def sections_of(hosts: Sequence[HostFacts]) -> dict[str, str]:
    """Returns the name of each host's section, by host. Hosts with the same value of one label form a section.

    A label can divide the hosts if more than half of them have the label, and if the number of its values is at least
    two and at most half the number of hosts. Of such labels, `rack` is preferred, and then the most frequent label.
    Hosts without the label form a separate section. Returns an empty dictionary if no label can divide the hosts, or if
    there are fewer than `SECTIONS_FROM` hosts.
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
    """Returns the name of the section for hosts that lack the given label."""
    return QCoreApplication.translate("Canvas", "no label “{label}”").format(label=label)
