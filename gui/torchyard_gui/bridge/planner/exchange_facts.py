"""Determines the size of a topology's gradients and the bandwidth of its links, from earlier runs, measurements and the
fleet file.
"""

from __future__ import annotations

from collections.abc import Collection

from torchyard_core.launch.bandwidth_cache import BandwidthCache
from torchyard_core.launch.runs.gradient_size import last_gradient_sizes
from torchyard_core.launch.runs.history import History
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_gui.bridge.fleet_model import FleetModel


class ExchangeSource:
    """Provides `ExchangeFacts`. The sizes from earlier runs are cached until `forget` is called."""

    def __init__(self, fleet: FleetModel) -> None:
        self._fleet = fleet
        self._sizes: dict[str, float] | None = None

    def forget(self) -> None:
        self._sizes = None

    def facts(self, name: str, hosts: Collection[str]) -> ExchangeFacts:
        """Returns the known facts about the size of a topology's gradients and the bandwidth between its hosts."""
        if self._sizes is None:
            self._sizes = last_gradient_sizes(History(self._fleet.home.history))
        return ExchangeFacts(self._sizes.get(name), self._bandwidth(hosts))

    def _bandwidth(self, hosts: Collection[str]) -> float | None:
        """Returns the slowest measured bandwidth between the hosts, in bytes per second.

        If none was measured, returns the slowest bandwidth that the fleet file gives for the hosts, or None if the
        bandwidth of a host is unknown.
        """
        measured = BandwidthCache(self._fleet.home.caches / "bandwidth.json").slowest(hosts)
        if measured is not None:
            return measured
        statuses = [self._fleet.status(name) for name in hosts]
        speeds = [status.host.bandwidth_gbps for status in statuses if status is not None]
        known = [speed for speed in speeds if speed is not None]
        return min(known) * 1e9 / 8 if known and len(known) == len(hosts) else None
