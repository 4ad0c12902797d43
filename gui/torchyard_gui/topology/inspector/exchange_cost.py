"""What a strategy's exchange costs, in a sentence: the table of roles.md for the design as it is drawn.

M is the size of the gradients in bytes, B what each host's link carries in a second.
"""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.model import Strategy, StrategyKind
from torchyard_core.topology.strategies.reduction_cost import (
    Reckoned,
    Reduction,
    reckon,
    reducers_that_beat_the_ring,
    reducers_time,
    ring_time,
)


def tr(text: str) -> str:
    return QCoreApplication.translate("topology", text)


def exchange_sentence(strategy: Strategy, trainers: int, servers: int, reducers: int) -> str:
    """How long the exchange of a step takes at best; "" where that is not the question, or nothing is exchanged."""
    if trainers < 2:
        return ""
    if strategy.kind is StrategyKind.ALL_REDUCE:
        return tr("{trainers} round a ring: a step's exchange takes about {time}.").format(
            trainers=_trainers(trainers), time=_time(ring_time(trainers))
        )
    if strategy.kind is StrategyKind.SANDBLASTER and servers:
        text = tr("{trainers}, {servers}: a step's exchange takes about {time}; a ring {ring}.")
        return text.format(
            trainers=_trainers(trainers),
            servers=_servers(servers),
            time=_time(reducers_time(trainers, servers)),
            ring=_number(ring_time(trainers)),
        )
    if strategy.kind is StrategyKind.REDUCTION_SERVER and reducers:
        return _reduction(trainers, reducers, reckon(trainers, reducers))
    return ""


def _reduction(trainers: int, reducers: int, reckoned: Reckoned) -> str:
    if reckoned.best is Reduction.RING:
        text = tr("{trainers}, {reducers}: the ring is as fast, about {time}, and is taken.")
    elif reckoned.best is Reduction.MIXED:
        text = tr("{trainers}, {reducers}: mixed, about {time}; the ring takes {ring}, reducers alone {alone}.")
    else:
        text = tr("{trainers}, {reducers}: reducers alone, about {time}; the ring takes {ring}.")
    said = text.format(
        trainers=_trainers(trainers),
        reducers=tr("1 reducer") if reducers == 1 else tr("{count} reducers").format(count=reducers),
        time=_time(reckoned.time),
        ring=_number(reckoned.times[Reduction.RING]),
        alone=_number(reckoned.times[Reduction.REDUCERS]),
    )
    least = reducers_that_beat_the_ring(trainers)
    if least is None or reducers >= least:
        return said
    return said + " " + tr("Reducers alone beat the ring from {count} on.").format(count=least)


def _trainers(count: int) -> str:
    return tr("{count} trainers").format(count=count)


def _servers(count: int) -> str:
    return tr("1 server") if count == 1 else tr("{count} servers").format(count=count)


def _number(time: float) -> str:
    """1.2, 1, 1.09: no more digits than there are to tell."""
    return f"{time:.2f}".rstrip("0").rstrip(".")


def _time(time: float) -> str:
    return f"{_number(time)}·M/B"
