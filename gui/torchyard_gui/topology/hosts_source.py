"""What the page wants of the fleet: which hosts there are, and to be told when that changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from PySide6.QtCore import SignalInstance

from torchyard_core.topology.host_facts import HostFacts


class HostsSource(Protocol):
    """The fleet model is one."""

    @property
    def facts_changed(self) -> SignalInstance: ...

    def watch(self, on: bool, by: str = "") -> None:
        """Whether somebody looks: who uses which GPU is asked only then."""

    def facts(self) -> Sequence[HostFacts]: ...
