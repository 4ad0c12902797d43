"""An exchange of a worker with its servers: what is brought to them and back, how it ends, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.strategies.parameter_server.push_rounds import Outcomes

if TYPE_CHECKING:
    from torchyard_roles.strategies.parameter_server.server_link import ServerLink


class Gradient(NamedTuple):
    """A chunk's gradient as it is sent: 1-D on the CPU, None where all of its pieces are absent."""

    values: torch.Tensor | None
    absent: frozenset[int]


@dataclass
class Exchange:
    """What is to be brought to all servers and back: once a step. The callables come from the link's threads."""

    gradient: Callable[[Chunk], Gradient] | None
    """None where nothing is pushed."""
    target: Callable[[Chunk], torch.Tensor] | None
    """Where a chunk's new parameters are received to, 1-D on the CPU; None where none are wanted."""
    arrived: Callable[[Chunk], None] = lambda chunk: None
    void: bool = False
    hold: bool = False
    """Ends as soon as all servers have told the norms of their sums; scale() goes on with it."""
    clip: float | None = None
    """What the servers bring the elements of the mean gradient to, at most, before all else."""
    changed: Mapping[int, int] = field(default_factory=dict)
    """Of chunks that the script has changed by itself since the last step, by number: their checksums."""
    values: Callable[[Chunk], torch.Tensor] | None = None
    """What such a chunk holds now, from the one worker that brings it to the servers; None on the others."""


class Completion:
    """The end of an exchange over several links; the first error ends the waiting."""

    def __init__(self, parts: int) -> None:
        self._condition = threading.Condition()
        self._left = parts
        self._error: Exception | None = None
        self.lost: list[ServerLink] = []
        """Links whose server is gone, where that is borne."""

    def done(self) -> None:
        with self._condition:
            self._left -= 1
            self._condition.notify_all()

    def failed(self, error: Exception) -> None:
        with self._condition:
            self._error = self._error or error
            self._left -= 1
            self._condition.notify_all()

    def lose(self, link: ServerLink) -> None:
        with self._condition:
            self.lost.append(link)
            self._left -= 1
            self._condition.notify_all()

    def wait(self) -> None:
        """Raises the first link's error as soon as it is there."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or self._left <= 0)
            if self._error is not None:
                raise self._error


@dataclass
class Figures(Outcomes):
    """Of a link's exchanges so far; `waited` and `staleness` of the last."""

    waited: float = 0.0
    """Seconds the server waited for the group's other members, at most for any chunk."""
    staleness: int = 0
    lost: int = 0
    """Pushes that a server took along when it died."""


class Job:
    """An exchange over one link, while it is under way."""

    def __init__(self, exchange: Exchange, completion: Completion, left: int, base: int) -> None:
        self.exchange = exchange
        self.base = base
        self.completion = completion
        self.left = left
        self.in_flight = 0
        self.waited = 0.0
        self.squares: dict[int, float] = {}
        """Of chunks that are held: the squared norms of their mean gradients."""
        self.is_held = False
        """Whether it has come to its half: all chunks are held."""
        self.round = 0
        self.version: int | None = None
        self.outcome = ""
        self.staleness = 0
