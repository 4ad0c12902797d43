"""Measures the bandwidth between the hosts of a run, for each pair of hosts, and caches it for a day.

A pair is not measured if the network of one of its hosts is busy when the measurements begin.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.formatting import age, bandwidth
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.bandwidth_cache import BandwidthCache, Measurement, Pair
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.connectivity import neighbours
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.submission import LOOPBACK, primary_address

PULL_S = 0.4
"""Time in seconds for which two hosts transfer data, in both directions at the same time."""
DAY_S = 86400.0
SLOW_LINK_BYTES_S = 60e6
"""Bandwidth in bytes per second below which the two directions of a pair are also measured one after the other."""
ANSWER_S = 10.0
NAMED = 6
SLOW = 0.5
"""Fraction of the median bandwidth below which a pair gets a warning. Applies if at least three pairs were measured."""


def measure(context: LaunchContext, file: Path | None, stop: Event) -> list[Measurement]:
    """Returns the bandwidth of each pair that `neighbours` returns.

    A pair is measured if its last measurement is more than a day old, unless the network of one of its hosts is busy.
    `stop` ends the measurements after the current round.
    """
    bandwidths = BandwidthCache(file)
    pairs = neighbours(context.plan.hosts)
    keys = {pair: "|".join(sorted(f"{host}@{context.links[host].ssh_address}" for host in pair)) for pair in pairs}
    known = {pair: bandwidths.of(pair, keys[pair]) for pair in pairs}
    due = [pair for pair in pairs if known[pair].bytes_s is None or time.time() - known[pair].at > DAY_S]
    if due:
        new = _Measuring(context, stop).run(due)
        for pair, found in new.items():
            known[pair] = found if found.bytes_s is not None else replace(known[pair], why_old=found.why_old)
        bandwidths.keep({keys[pair]: figure for pair, figure in new.items() if figure.bytes_s is not None})
    return list(known.values())


@dataclass
class _Measuring:
    """Measures pairs in rounds. In each round, a host takes part in at most one measurement."""

    _context: LaunchContext
    _stop: Event
    _token: str = field(default_factory=lambda: secrets.token_hex(16))
    _listening: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, pairs: Sequence[Pair]) -> dict[Pair, Measurement]:
        links = {host: self._context.links[host] for host in dict.fromkeys(host for pair in pairs for host in pair)}
        try:
            towards = primary_address(self._context)
            pending = {host: in_background(self._listen, host, link, towards) for host, link in links.items()}
            self._listening = {host: future.result() for host, future in pending.items()}
            found: dict[Pair, Measurement] = {}
            for round_ in rounds(pairs):
                if self._stop.is_set():
                    break
                measuring = {pair: in_background(self._measure, pair) for pair in round_}
                found |= {pair: future.result() for pair, future in measuring.items()}
            return found
        except (AgentRefused, HostError) as error:
            return {pair: Measurement(pair, None, why_old=error.message.rstrip(".")) for pair in pairs}
        finally:
            for link in links.values():
                link.submit("network.close", {"token": self._token})

    def _listen(self, host: str, link: AgentLink, towards: str) -> dict[str, Any]:
        site = self._context.hosts[host]
        address = site.data_address or (towards if host == self._context.primary else None)
        if address is None and towards == LOOPBACK:
            address = LOOPBACK
        listen = {"token": self._token, "port_range": site.port_range, "traffic": True}
        where = {"address": address} if address else {"towards": towards}
        answer: dict[str, Any] = link.call("network.listen", {**listen, **where}, ANSWER_S)
        return answer

    def _measure(self, pair: Pair) -> Measurement:
        busy = [host for host in pair if self._listening[host]["busy"]]
        if busy:
            return Measurement(pair, None, why_old=f"the network of {busy[0]} is busy")
        try:
            pulls = [self._pull(receiver, sender) for receiver, sender in (pair, pair[::-1])]
            rates = [float(pull.result(ANSWER_S)["bytes_s"]) for pull in pulls]
            if min(rates) < SLOW_LINK_BYTES_S:
                # On a slow link, queued data can delay the ACKs of the other direction for too long.
                for number, (receiver, sender) in enumerate((pair, pair[::-1])):
                    alone = self._pull(receiver, sender).result(ANSWER_S)
                    rates[number] = max(rates[number], float(alone["bytes_s"]))
        except (AgentRefused, HostError, TimeoutError) as error:
            return Measurement(pair, None, why_old=str(error).rstrip(".") or "no answer")
        return Measurement(pair, min(rates), time.time())

    def _pull(self, receiver: str, sender: str) -> Future[Any]:
        here, there = self._listening[receiver], self._listening[sender]
        where = {"address": there["address"], "port": there["ports"][0], "source": here["address"]}
        return self._context.links[receiver].submit("network.pull", {"token": self._token, "seconds": PULL_S, **where})


def rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Divides the pairs into rounds in which each host occurs at most once, greedily in the order of `pairs`."""
    found: list[list[Pair]] = []
    for pair in pairs:
        for round_ in found:
            if not any(host in other for other in round_ for host in pair):
                round_.append(pair)
                break
        else:
            found.append([pair])
    return found


def check_bandwidth(figures: Sequence[Measurement], now: float) -> list[Check]:
    """Returns a checklist line with the lowest bandwidths, and warnings for slow and unmeasured pairs.

    A measurement that is more than a minute old is shown with its age.
    """
    measured = [figure for figure in figures if figure.bytes_s is not None]
    missing = [figure for figure in figures if figure.bytes_s is None]
    lines = []
    if measured:
        median = statistics.median(_rate(figure) for figure in measured)
        slow = [figure for figure in measured if len(measured) > 2 and _rate(figure) < SLOW * median]
        ordered = sorted(measured, key=_rate)
        listed = ", ".join(_described(figure, now) for figure in ordered[:NAMED])
        more = f", {len(ordered) - NAMED} more up to {bandwidth(_rate(ordered[-1]))}" if len(ordered) > NAMED else ""
        lines.append(Check("bandwidth", "", True, f"{listed}{more}"))
        for figure in slow:
            a, b = figure.pair
            message = f"{a} and {b} exchange {bandwidth(_rate(figure))}, the median pair {bandwidth(median)}."
            hint = "The slowest pair limits synchronous training: check cables, `interface` and `data_address` of both."
            lines.append(Check("bandwidth", "", True, message, hint, warning=True))
    for figure in missing[:NAMED]:
        message = f"{figure.pair[0]} and {figure.pair[1]} were not measured: {figure.why_old or 'the launch went on'}."
        lines.append(Check("bandwidth", "", True, message, warning=True))
    return lines


def _rate(figure: Measurement) -> float:
    return figure.bytes_s or 0.0


def _described(figure: Measurement, now: float) -> str:
    text = f"{figure.pair[0]} ↔ {figure.pair[1]} {bandwidth(_rate(figure))}"
    passed = now - figure.at
    if figure.why_old:
        return f"{text} (measured {age(passed)} ago: {figure.why_old})"
    return f"{text} (measured {age(passed)} ago)" if passed > 60 else text
