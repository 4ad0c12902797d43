"""The state of one chunk on a server: its parameters, its optimizer, and the gradients in unfinished rounds."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from torchyard_roles.exchange.parameter_layout import Chunk, Layout, dtype_named
from torchyard_roles.strategies.parameter_server import remote_optimizer
from torchyard_roles.strategies.parameter_server.push_acceptance import Push, Round


class Delivery(NamedTuple):
    """A message that the server sends to one member of a group."""

    group: int
    rank: int
    header: dict[str, Any]
    payload: torch.Tensor | None


class Contribution(NamedTuple):
    push: Push
    gradient: torch.Tensor | None
    arrived_at: float


class Sum:
    """The sum of the gradients of one chunk in one round."""

    def __init__(self, one: Round) -> None:
        self.round = one
        self.total: torch.Tensor | None = None
        self.waiting: dict[int, Contribution] = {}
        """Contributions that wait for contributions of lower ranks. Used only if gradients are summed in rank order."""
        self.arrived: list[Contribution] = []
        self.counted = 0
        """The number of summed contributions, including those without gradients."""
        self.is_held = False
        self.square = 0.0
        """The squared norm of the mean gradient, while the sum is held."""
        self.waited = 0.0
        """Time in seconds from the first to the last member's contribution, while the sum is held."""
        self.ready: dict[int, Delivery] | None = None
        """Deliveries of new parameters to ranks that have not yet requested theirs, or None before the step."""


class ChunkState:
    """The parameters of one chunk, with one leaf tensor per piece, and the chunk's optimizer."""

    def __init__(self, chunk: Chunk, layout: Layout, optimizer: str, options: remote_optimizer.Arguments) -> None:
        self.chunk = chunk
        self.lock = threading.Lock()
        self.parameters = torch.zeros(chunk.elements, dtype=dtype_named(chunk.dtype), device="cpu")
        self.sums: dict[tuple[int, int], Sum] = {}
        self.changes: dict[tuple[int, int], torch.Tensor] = {}
        """Parameters that the script changed, by (group, round). The step of that round starts from these values."""
        self._shaped = layout.whole_parameters
        self._layout = layout
        self._name = optimizer
        self.options = options
        self.leaves = [leaf.detach().requires_grad_() for leaf in self.views(self.parameters)]
        self.optimizer = remote_optimizer.build(optimizer, options, self.leaves)
        self._step = remote_optimizer.bare_step(self.optimizer)

    @property
    def names(self) -> list[str]:
        """The names of the chunk's parameters."""
        return [self._layout.entries[piece.parameter].name for piece in self.chunk.pieces]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns a view of a flat tensor for each piece.

        A view has its parameter's shape if pieces are whole parameters.
        """
        views, start = [], 0
        for piece in self.chunk.pieces:
            view = flat[start : start + piece.elements]
            start += piece.elements
            views.append(view.view(self._layout.entries[piece.parameter].shape) if self._shaped else view)
        return views

    def step(self, gradient: torch.Tensor, absent: frozenset[int], options: remote_optimizer.Arguments) -> None:
        if options is not self.options:
            remote_optimizer.apply(self.optimizer, options)
            self.options = options
        for number, (leaf, grad) in enumerate(zip(self.leaves, self.views(gradient))):
            leaf.grad = None if number in absent else grad
        self._step()
        for leaf in self.leaves:
            leaf.grad = None

    def load(self, saved: dict[str, Any]) -> None:
        """Restores the chunk from its entry in a state that Shard.state() returned."""
        with torch.no_grad():
            self.parameters.copy_(saved["parameters"])
        self.reset_optimizer()
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, "state": saved["optimizer"]})

    def reset_optimizer(self) -> None:
        """Replaces the optimizer with a new one without state."""
        self.optimizer = remote_optimizer.build(self._name, self.options, self.leaves)
        self._step = remote_optimizer.bare_step(self.optimizer)
