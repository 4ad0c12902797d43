"""Decides which checkpoints are copied to which hosts. No I/O.

The chief saves to the disk of its own host, which is the primary's host. If the hosts do not share a checkpoint folder,
the newest complete checkpoint is copied to the hosts of the evaluators and to one other host, the peer. Training can
then continue after the loss of the chief's host.

If a newer checkpoint is saved while an older one is being copied, the newer one is copied instead, but not twice in a
row for the same host. Otherwise no copy would ever be completed if checkpoints were saved faster than they are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchyard_agent.protocol.messages import ReplicaPlan


class Route(NamedTuple):
    """The state of checkpoint copies on one host.

    A checkpoint is identified by a result of `checkpoint_folders.newest`, such as `step-000000001200`.
    """

    host: str
    holds: str = ""
    """The newest complete checkpoint on the host, or "" if there is none."""
    under_way: str = ""
    """The checkpoint that is being copied to the host, or "" if there is none."""
    dropped: bool = False
    """Whether the copy in progress has replaced the unfinished copy of an older checkpoint."""
    refused: str = ""
    """The last checkpoint that could not be copied to the host, or "" if there is none."""


class Replication(NamedTuple):
    """The state of checkpoint replication, from which decisions are made."""

    source: str
    """The chief's host."""
    evaluators: tuple[str, ...]
    peers: tuple[str, ...]
    """The hosts that may hold the second copy, in order of preference."""
    routes: tuple[Route, ...] = ()
    """The state of checkpoint copies on each host that has joined and is not lost."""
    newest: str = ""
    """The newest complete checkpoint on the chief's host, or "" if there is none."""

    def route(self, host: str) -> Route | None:
        return next((route for route in self.routes if route.host == host), None)


class Transfer(NamedTuple):
    """An order to copy a checkpoint between the chief's host and `host`. It replaces an earlier order for `host`."""

    host: str
    name: str


Decided = tuple[Replication, list[Transfer]]


def begin(hosts: Sequence[str], replicas: Iterable[ReplicaPlan]) -> Replication:
    """Returns the initial replication state of a run whose primary is the first of `hosts`.

    The peer, which holds the second copy, is preferably a host with a trainer.
    """
    source, *others = hosts
    planned = list(replicas)
    training = {replica["host"] for replica in planned if replica["trainer"]}
    scoring = {replica["host"] for replica in planned if replica["role"] == "evaluator"}
    return Replication(
        source,
        tuple(host for host in others if host in scoring),
        tuple(sorted(others, key=lambda host: host not in training)),
    )


def on_host_added(replication: Replication, host: str) -> Decided:
    """Adds a host that may hold the second copy. It is the last in order of preference."""
    others = tuple(peer for peer in replication.peers if peer != host)
    return replication._replace(peers=(*others, host)), []


def receivers(replication: Replication) -> list[str]:
    """Returns the hosts in `routes` to which the newest checkpoint is copied. Hosts of evaluators come first."""
    there = [route.host for route in replication.routes]
    scoring = [host for host in replication.evaluators if host in there]
    peer = next((host for host in replication.peers if host in there), None)
    return scoring if peer is None or peer in scoring else [*scoring, peer]


def on_host(replication: Replication, host: str, holds: str) -> Decided:
    """Handles a host that has joined or returned. `holds` is its newest complete checkpoint, or "" if it has none."""
    return _settle(_with(replication, Route(host, holds)))


def on_host_lost(replication: Replication, host: str) -> Decided:
    return _settle(replication._replace(routes=tuple(route for route in replication.routes if route.host != host)))


def on_saved(replication: Replication, name: str) -> Decided:
    """Handles a new checkpoint that the chief saved."""
    return _settle(replication._replace(newest=name))


def on_copied(replication: Replication, host: str, name: str) -> Decided:
    route = replication.route(host)
    if route is None:
        return replication, []
    return _settle(_with(replication, _completed(route._replace(holds=max(route.holds, name)), name)))


def on_refused(replication: Replication, host: str, name: str) -> Decided:
    """Handles a failed copy to a host. Only a newer checkpoint will be copied to this host."""
    route = replication.route(host)
    if route is None:
        return replication, []
    return _settle(_with(replication, _completed(route._replace(refused=name), name)))


def newest_elsewhere(replication: Replication, excluded: Iterable[str] = ()) -> Transfer | None:
    """Returns the newest checkpoint on the other hosts if it is newer than that on the chief's host, otherwise None.

    Args:
        excluded: Hosts that have failed to send their newest checkpoint.
    """
    newer = [one for one in replication.routes if one.holds > replication.newest and one.host not in set(excluded)]
    if not newer:
        return None
    best = max(newer, key=lambda route: route.holds)
    return Transfer(best.host, best.holds)


def _completed(route: Route, name: str) -> Route:
    return route._replace(under_way="", dropped=False) if route.under_way == name else route


def _with(replication: Replication, changed: Route) -> Replication:
    others = [route for route in replication.routes if route.host != changed.host]
    return replication._replace(routes=(*others, changed))


def _settle(replication: Replication) -> Decided:
    transfers = []
    for host in receivers(replication):
        route = replication.route(host)
        assert route is not None
        if max(route.holds, route.refused, route.under_way) >= replication.newest or (
            route.under_way and route.dropped
        ):
            continue
        replication = _with(replication, route._replace(under_way=replication.newest, dropped=bool(route.under_way)))
        transfers.append(Transfer(host, replication.newest))
    return replication, transfers
