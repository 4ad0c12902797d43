"""The second part of a launch: the working folder goes to every host of the run, all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait

from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError, Unreachable
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.progress import Telling
from torchyard_core.launch.snapshot import Snapshot
from torchyard_core.launch.snapshot_upload import Cancelled, send_snapshot

RECONNECTS = 2
"""So often is a connection made anew that broke while it sent."""
PAUSE_S = 1.0


def send_everywhere(snapshot: Snapshot, links: dict[str, AgentLink], hosts: Hosts, telling: Telling) -> None:
    """Makes `snapshot` available on every host of `links`. Raises as `send_snapshot` does.

    A link that breaks is made anew, in `links` too, and the sending goes on with what has not arrived.
    """
    sent: dict[str, tuple[int, int]] = {}

    def send(host: str) -> None:
        for tries in range(RECONNECTS + 1):
            try:
                send_snapshot(snapshot, links[host], note(host), telling.cancelled)
                return
            except Unreachable as lost:
                if tries == RECONNECTS or links[host].is_open:
                    raise _broke_off(host) from lost
                links[host] = _again(host, hosts, telling)

    def note(host: str) -> Callable[[int, int], None]:
        return lambda done, total: sent.__setitem__(host, (done, total))

    sending = {host: in_background(send, host) for host in links}
    told = (-1, -1)
    while True:
        finished = wait(sending.values(), timeout=0.1).not_done == set()
        now = (sum(done for done, _ in sent.values()), sum(total for _, total in sent.values()))
        if now != told and now[1]:
            told = now
            telling.say("progress", what="sending", done=now[0], total=now[1])
            telling.on_progress("sending", *now)
        if finished:
            break
    telling.all(sending)
    telling.stop_if_cancelled()


def _again(host: str, hosts: Hosts, telling: Telling) -> AgentLink:
    """A fresh link, after a moment. Raises a HostError, Cancelled."""
    if telling.cancelled.wait(PAUSE_S):
        raise Cancelled
    link = hosts.reach([host], lambda name, found: None)[host]
    if isinstance(link, HostError):
        raise _broke_off(host) from link
    return link


def _broke_off(host: str) -> Unreachable:
    return Unreachable(
        host,
        f"the connection to {host} was lost while the code was sent, and could not be made again.",
        hint=f"Look whether {host} is up (`torchyard hosts check {host}`), then launch again: "
        "what has arrived there is not sent twice.",
    )
