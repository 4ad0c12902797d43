"""How fast the hosts of a run exchange bytes: measured pair by pair, kept for a day, never on a busy link."""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, FileProblem, HostError
from torchyard_core.formatting import age, bandwidth
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.checks.connectivity import neighbours
from torchyard_core.launch.checks.host_facts import Check
from torchyard_core.launch.planning import Ground
from torchyard_core.launch.submission import LOOPBACK, primary_address

PULL_S = 0.4
"""Seconds that bytes flow for one pair, both ways at once; a pair is done within 2 s at the worst."""
DAY_S = 86400.0
ANSWER_S = 10.0
NAMED = 6
SLOW = 0.5
"""Of the middle pair: less than that is worth a warning."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Figure:
    """What one pair carries. `at` is when it was measured, in seconds since 1970."""

    pair: Pair
    bytes_s: float | None
    """The slower way of the two; None where it was never measured."""
    at: float = 0.0
    why_old: str = ""
    """Why it was not measured just now, although it was due."""


class Bandwidths:
    """Figures of earlier launches, in a file; None keeps none."""

    def __init__(self, file: Path | None):
        self._file = file
        self._known: dict[str, Any] = {}
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
            self._known = known if isinstance(known, dict) else {}

    def of(self, pair: Pair, key: str) -> Figure:
        """The last figure of a pair; `key` names it by where the hosts are."""
        entry: Any = self._known.get(key)
        try:
            return Figure(pair, float(entry["bytes_s"]), float(entry["at"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            return Figure(pair, None)

    def keep(self, figures: Mapping[str, Figure]) -> None:
        """Writes figures over what was known. A file that cannot be written is none."""
        if self._file is None or not figures:
            return
        self._known |= {key: {"bytes_s": round(f.bytes_s or 0), "at": round(f.at, 3)} for key, f in figures.items()}
        with suppress(FileProblem):
            write_atomically(self._file, json.dumps(self._known, indent=1) + "\n", 0o600)


def measure(ground: Ground, file: Path | None, stop: Event) -> list[Figure]:
    """The figures of all pairs that count; those that are older than a day are measured, unless a link is busy.

    `stop` ends it after the pair that is under way.
    """
    bandwidths = Bandwidths(file)
    pairs = neighbours(ground.plan.hosts)
    keys = {pair: "|".join(sorted(f"{host}@{ground.links[host].ssh_address}" for host in pair)) for pair in pairs}
    known = {pair: bandwidths.of(pair, keys[pair]) for pair in pairs}
    due = [pair for pair in pairs if known[pair].bytes_s is None or time.time() - known[pair].at > DAY_S]
    if due:
        new = _Measuring(ground, stop).run(due)
        for pair, found in new.items():
            known[pair] = found if found.bytes_s is not None else _old(known[pair], found.why_old)
        bandwidths.keep({keys[pair]: figure for pair, figure in new.items() if figure.bytes_s is not None})
    return list(known.values())


def _old(figure: Figure, why: str) -> Figure:
    return Figure(figure.pair, figure.bytes_s, figure.at, why)


class _Measuring:
    """Hosts that listen, and pairs that take turns: no host is in two at once."""

    def __init__(self, ground: Ground, stop: Event):
        self._ground = ground
        self._stop = stop
        self._token = secrets.token_hex(16)
        self._there: dict[str, dict[str, Any]] = {}

    def run(self, pairs: Sequence[Pair]) -> dict[Pair, Figure]:
        links = {host: self._ground.links[host] for host in dict.fromkeys(host for pair in pairs for host in pair)}
        try:
            towards = primary_address(self._ground)
            asked = {host: in_background(self._listen, host, link, towards) for host, link in links.items()}
            self._there = {host: future.result() for host, future in asked.items()}
            found: dict[Pair, Figure] = {}
            for turn in rounds(pairs):
                if self._stop.is_set():
                    break
                measuring = {pair: in_background(self._measure, pair) for pair in turn}
                found |= {pair: future.result() for pair, future in measuring.items()}
            return found
        except (AgentRefused, HostError) as error:
            return {pair: Figure(pair, None, why_old=error.message.rstrip(".")) for pair in pairs}
        finally:
            for link in links.values():
                link.submit("network.close", {"token": self._token})

    def _listen(self, host: str, link: AgentLink, towards: str) -> dict[str, Any]:
        site = self._ground.hosts[host]
        address = site.data_address or (towards if host == self._ground.primary else None)
        if address is None and towards == LOOPBACK:
            address = LOOPBACK
        listen = {"token": self._token, "port_range": site.port_range, "traffic": True}
        where = {"address": address} if address else {"towards": towards}
        answer: dict[str, Any] = link.call("network.listen", {**listen, **where}, ANSWER_S)
        return answer

    def _measure(self, pair: Pair) -> Figure:
        busy = [host for host in pair if self._there[host]["busy"]]
        if busy:
            return Figure(pair, None, why_old=f"the network of {busy[0]} is busy")
        try:
            pulls = [self._pull(taker, giver) for taker, giver in (pair, (pair[1], pair[0]))]
            rates = [float(pull.result(ANSWER_S)["bytes_s"]) for pull in pulls]
        except (AgentRefused, HostError, TimeoutError) as error:
            return Figure(pair, None, why_old=str(error).rstrip(".") or "no answer")
        return Figure(pair, min(rates), time.time())

    def _pull(self, taker: str, giver: str) -> Future[Any]:
        here, there = self._there[taker], self._there[giver]
        where = {"address": there["address"], "port": there["ports"][0], "source": here["address"]}
        return self._ground.links[taker].submit("network.pull", {"token": self._token, "seconds": PULL_S, **where})


def rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The pairs in as few rounds as comes easily, no host twice in one."""
    turns: list[list[Pair]] = []
    for pair in pairs:
        for turn in turns:
            if not any(host in other for other in turn for host in pair):
                turn.append(pair)
                break
        else:
            turns.append([pair])
    return turns


def check_bandwidth(figures: Sequence[Figure], now: float) -> list[Check]:
    """One line for all pairs; a warning where one is far slower than the rest. Old figures are called so."""
    measured = [figure for figure in figures if figure.bytes_s is not None]
    missing = [figure for figure in figures if figure.bytes_s is None]
    lines = []
    if measured:
        middle = statistics.median(_rate(figure) for figure in measured)
        slow = [figure for figure in measured if len(measured) > 2 and _rate(figure) < SLOW * middle]
        ordered = sorted(measured, key=_rate)
        said = ", ".join(_said(figure, now) for figure in ordered[:NAMED])
        more = f", {len(ordered) - NAMED} more up to {bandwidth(_rate(ordered[-1]))}" if len(ordered) > NAMED else ""
        lines.append(Check("bandwidth", "", True, f"{said}{more}", warning=False))
        for figure in slow:
            a, b = figure.pair
            message = f"{a} and {b} exchange {bandwidth(_rate(figure))}, the middle pair {bandwidth(middle)}."
            hint = (
                f"Synchronous training is as slow as that: look at {a}'s and {b}'s cables, `interface`, `data_address`."
            )
            lines.append(Check("bandwidth", "", True, message, hint, warning=True))
    for figure in missing[:NAMED]:
        message = f"{figure.pair[0]} and {figure.pair[1]} were not measured: {figure.why_old or 'the launch went on'}."
        lines.append(Check("bandwidth", "", True, message, warning=True))
    return lines


def _rate(figure: Figure) -> float:
    return figure.bytes_s or 0.0


def _said(figure: Figure, now: float) -> str:
    text = f"{figure.pair[0]} ↔ {figure.pair[1]} {bandwidth(_rate(figure))}"
    passed = now - figure.at
    if figure.why_old:
        return f"{text} (old, of {age(passed)} ago: {figure.why_old})"
    return f"{text} (of {age(passed)} ago)" if passed > 60 else text
