"""The parameters of one model and optimizer that the servers train, in the order of the layout.

Parameters that are added later come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchyard_roles.errors import UsageProblem
from torchyard_roles.exchange.parameter_layout import Chunk, Entry, Layout, added_chunks
from torchyard_roles.strategies.parameter_server import remote_optimizer


class TrainedParameters:
    """The parameters of one worker's pair. The constructor raises UsageProblem if servers cannot train them.

    Args:
        elsewhere: Returns the IDs of the other pairs' parameters.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, elsewhere: Callable[[], set[int]], strategy: str
    ) -> None:
        self.optimizer_name = remote_optimizer.class_name(optimizer)
        self.layout, self.parameters = Layout.of(model, optimizer, self.optimizer_name in remote_optimizer.SHAPED)
        self.names = [entry.name for entry in self.layout.entries]
        self.added: list[Entry] = []
        """Parameters that were added or unfrozen since distribute()."""
        self._model = model
        self._optimizer = optimizer
        self._elsewhere = elsewhere
        self._strategy = strategy
        self._seen = self._ids()
        self._check_apart(self.layout.entries, self.parameters)

    def add_new(self) -> list[Entry]:
        """Adds parameters that were unfrozen or added to the optimizer since the last call, and returns their entries.

        Raises UsageProblem if a parameter was removed from its parameter group, or if another optimizer also trains it.
        """
        ids = self._ids()
        if ids == self._seen:
            return []
        group_of = {each: number for number, group in enumerate(ids) for each, _ in group}
        for entry, parameter in zip(self.layout.entries, self.parameters):
            if group_of.get(id(parameter)) != entry.group:
                raise UsageProblem(
                    f"The parameter {entry.name} is no longer in group {entry.group} of the optimizer, where it was.",
                    "Under parameter servers freeze it with requires_grad_(False) instead; groups may only be added.",
                )
        whole = self.layout.whole_parameters
        layout, parameters = Layout.of(self._model, self._optimizer, whole)
        earlier = {id(parameter) for parameter in self.parameters}
        new = [(entry, each) for entry, each in zip(layout.entries, parameters) if id(each) not in earlier]
        entries = [entry for entry, _ in new]
        self._check_apart(entries, [parameter for _, parameter in new])
        self.layout = Layout((*self.layout.entries, *entries), whole)
        self.names += [entry.name for entry in entries]
        self.parameters += [parameter for _, parameter in new]
        self.added += entries
        self._seen = ids
        return entries

    def chunks_of(self, new: Sequence[Entry], servers: int, chunk_bytes: int | None) -> list[list[Chunk]]:
        """Returns, by server, the chunks of the entries that add_new() returned."""
        chunks: list[list[Chunk]] = [[] for _ in range(servers)]
        for number, entry in enumerate(new, len(self.parameters) - len(new)):
            for chunk in added_chunks(entry, servers, chunk_bytes, whole=self.layout.whole_parameters):
                pieces = tuple(piece._replace(parameter=number) for piece in chunk.pieces)
                chunks[chunk.shard].append(chunk._replace(pieces=pieces))
        return chunks

    def _ids(self) -> list[list[tuple[int, bool]]]:
        """Returns (ID, requires_grad) of each parameter, by parameter group."""
        return [[(id(each), each.requires_grad) for each in group["params"]] for group in self._optimizer.param_groups]

    def _check_apart(self, entries: Sequence[Entry], parameters: Sequence[torch.nn.Parameter]) -> None:
        elsewhere = self._elsewhere()
        for entry, parameter in zip(entries, parameters):
            if id(parameter) in elsewhere:
                raise UsageProblem(
                    f"Two optimizers train the parameter {entry.name}, but the servers of {self._strategy} have one "
                    "for each parameter.",
                    "Give each parameter to one optimizer, or set strategy.kind to all_reduce.",
                )
