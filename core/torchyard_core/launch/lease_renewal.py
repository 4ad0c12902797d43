"""The lease of a launch: each host keeps what it holds for a launch only as long as the desktop renews it.

A desktop that is stopped, or cut off such that no host notices, frees the hosts by its silence. A renewal that fails is
no error: `run.start` and `run.join` say whether a host still takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event

from torchyard_core.background_thread import in_background
from torchyard_core.launch.agent_interface import AgentLink

RENEW_EVERY_S = 5.0
"""Several times in a keeper's `launch_lease_s`."""


class LeaseRenewal:
    """Renews a launch's lease on its hosts, from `begin` to `end`."""

    def __init__(self, run_id: str):
        self._run_id = run_id
        self._hosts: frozenset[str] = frozenset()
        self._over = Event()

    def begin(self, hosts: Sequence[str], links: Mapping[str, AgentLink]) -> None:
        """`links` is read anew each time: a link that broke may be made again meanwhile. Once begun, it stays so."""
        # A thread for each host: one whose connection takes no more bytes delays no other's renewal.
        for host in set(hosts) - self._hosts:
            in_background(self._renew, host, links)
        self._hosts |= frozenset(hosts)

    def end(self) -> None:
        """The launch has begun, or is taken back."""
        self._over.set()

    def _renew(self, host: str, links: Mapping[str, AgentLink]) -> None:
        while not self._over.wait(RENEW_EVERY_S):
            links[host].submit("run.renew", {"run_id": self._run_id})
