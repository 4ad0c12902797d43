"""Renews the launch lease, under which each host holds resources for a launch.

If the desktop is suspended or disconnected, it does not renew the lease, so the hosts release the resources. Failed
renewals are ignored: if a host has ended the launch, it refuses the later request `run.start` or `run.join`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event

from torchyard_core.background_thread import in_background
from torchyard_core.launch.agent_interface import AgentLink

RENEW_EVERY_S = 5.0
"""Interval between two renewals in seconds. It is a fraction of the keeper's `launch_lease_s`."""


class LeaseRenewal:
    """Renews a launch's lease on its hosts, from `begin` to `end`."""

    def __init__(self, run_id: str):
        self._run_id = run_id
        self._hosts: frozenset[str] = frozenset()
        self._over = Event()

    def begin(self, hosts: Sequence[str], links: Mapping[str, AgentLink]) -> None:
        """Starts the renewal on hosts where it has not started yet.

        Each renewal takes the host's current link from `links`, because the launch replaces lost links there.
        """
        # Each host has its own thread, so that a blocked connection does not delay the other renewals.
        for host in set(hosts) - self._hosts:
            in_background(self._renew, host, links)
        self._hosts |= frozenset(hosts)

    def end(self) -> None:
        self._over.set()

    def _renew(self, host: str, links: Mapping[str, AgentLink]) -> None:
        while not self._over.wait(RENEW_EVERY_S):
            links[host].submit("run.renew", {"run_id": self._run_id})
