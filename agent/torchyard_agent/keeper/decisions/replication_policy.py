"""Which host gets which checkpoint. Pure, as all that decides; `carriers` does it.

A chief saves on its own host's disk. Where the hosts share no folder for checkpoints, its newest complete one is
carried to the hosts of the evaluators, which score it, and to one peer, so that the loss of the chief's host does not
lose the training. The chief's host is the primary, in whose keeper this is decided.

A newer checkpoint takes the place of an older one that is under way. Not twice in a row to the same host: else a chief
that saves faster than the network carries would let nothing arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchyard_agent.protocol.messages import ReplicaPlan


class Route(NamedTuple):
    """What goes to one host. Checkpoints are named by their folder, `step-000000001200`: a later one sorts after."""

    host: str
    holds: str = ""
    """The newest that is complete there; empty where none is."""
    under_way: str = ""
    dropped: bool = False
    """Whether what is under way has taken an older one's place."""
    refused: str = ""
    """The last one that could not be carried there."""


class Carriage(NamedTuple):
    """All that the decisions depend on."""

    source: str
    """The chief's host."""
    evaluators: tuple[str, ...]
    peers: tuple[str, ...]
    """Hosts that may hold the second copy, the one to be preferred first."""
    routes: tuple[Route, ...] = ()
    """To the hosts that can be reached now."""
    newest: str = ""
    """On the chief's host."""

    def route(self, host: str) -> Route | None:
        return next((route for route in self.routes if route.host == host), None)


class Order(NamedTuple):
    """This host is to fetch this checkpoint now, whatever it was fetching."""

    host: str
    name: str


Decided = tuple[Carriage, list[Order]]


def begin(hosts: Sequence[str], replicas: Iterable[ReplicaPlan]) -> Carriage:
    """The primary is the first of `hosts`. The peer is the next one that trains, else the next one."""
    source, *others = hosts
    planned = list(replicas)
    training = {replica["host"] for replica in planned if replica["trainer"]}
    scoring = {replica["host"] for replica in planned if replica["role"] == "evaluator"}
    return Carriage(
        source,
        tuple(host for host in others if host in scoring),
        tuple(sorted(others, key=lambda host: host not in training)),
    )


def receivers(carriage: Carriage) -> list[str]:
    """Who is to have the newest, of those that can be reached; evaluators first."""
    there = [route.host for route in carriage.routes]
    scoring = [host for host in carriage.evaluators if host in there]
    peer = next((host for host in carriage.peers if host in there), None)
    return scoring if peer is None or peer in scoring else [*scoring, peer]


def on_host(carriage: Carriage, host: str, holds: str) -> Decided:
    """A host has come, or come back; `holds` is the newest that is complete there, or empty."""
    return _settle(_with(carriage, Route(host, holds)))


def on_host_lost(carriage: Carriage, host: str) -> Decided:
    return _settle(carriage._replace(routes=tuple(route for route in carriage.routes if route.host != host)))


def on_saved(carriage: Carriage, name: str) -> Decided:
    """`name` is the newest complete checkpoint on the chief's host now."""
    return _settle(carriage._replace(newest=name))


def on_carried(carriage: Carriage, host: str, name: str) -> Decided:
    route = carriage.route(host)
    if route is None:
        return carriage, []
    return _settle(_with(carriage, _through(route._replace(holds=max(route.holds, name)), name)))


def on_refused(carriage: Carriage, host: str, name: str) -> Decided:
    """It could not be carried there: that one is not tried again, the next one is."""
    route = carriage.route(host)
    if route is None:
        return carriage, []
    return _settle(_with(carriage, _through(route._replace(refused=name), name)))


def to_bring(carriage: Carriage, but: Iterable[str] = ()) -> Order | None:
    """Who has a newer checkpoint than the chief's host, and which; the newest of all. `but`: hosts that failed to."""
    newer = [route for route in carriage.routes if route.holds > carriage.newest and route.host not in set(but)]
    if not newer:
        return None
    best = max(newer, key=lambda route: route.holds)
    return Order(best.host, best.holds)


def _through(route: Route, name: str) -> Route:
    return route._replace(under_way="", dropped=False) if route.under_way == name else route


def _with(carriage: Carriage, changed: Route) -> Carriage:
    others = [route for route in carriage.routes if route.host != changed.host]
    return carriage._replace(routes=(*others, changed))


def _settle(carriage: Carriage) -> Decided:
    orders = []
    for host in receivers(carriage):
        route = carriage.route(host)
        assert route is not None
        if max(route.holds, route.refused, route.under_way) >= carriage.newest or (route.under_way and route.dropped):
            continue
        carriage = _with(carriage, route._replace(under_way=carriage.newest, dropped=bool(route.under_way)))
        orders.append(Order(host, carriage.newest))
    return carriage, orders
