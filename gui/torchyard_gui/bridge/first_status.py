"""A host's status before anybody has looked since the window was opened: what the file of facts says."""

from __future__ import annotations

from datetime import datetime

from torchyard_core.fleet.host_facts_cache import Facts
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.host_status import HostStatus


def first_status(host: Host, facts: HostFacts, found: Facts) -> HostStatus:
    """Unknown, with what was found when somebody last looked."""
    known = found if facts.checked else {}
    return HostStatus(host, facts, known, since=checked_at(known))


def checked_at(found: Facts) -> datetime | None:
    """When somebody last looked."""
    try:
        return datetime.fromisoformat(str(found["checked_at"]))
    except (KeyError, ValueError):
        return None
