"""Messages between workers and parameter servers: their sequence, headers of pushes, and JSON payloads.

worker                                              server
  introduction: name, pair, group, rank, size … ->
                                                 <- ready, round
  describe (chief: begin) + fingerprint, options ->
                                                 <- begun (keeps) | joined | failed (message)
  assign chunk + parameters …, open              ->                     chief only, if the server is new
  pull chunk                                     ->
                                                 <- params chunk + parameters
  options + JSON, buffers + bytes                ->                     if they have changed
  push chunk, round, base + gradient             ->
                                                 <- params chunk, outcome, waited + parameters
                                                 <- refused (message) if pushes of members conflict
  add + fingerprint, options, checksums          ->                     if the optimizer has new parameters
                                                 <- add (assign) | failed (message)
  assign chunk + parameters …, added chunks      ->                     if the server lacks them
                                                 <- added
  set chunk, round + parameters, push (changed) … ->                    if the script has changed them
  push (hold) chunk, round, base + gradient      ->                     if gradients are clipped
                                                 <- held chunk, round, square
  scale round, factor                            ->
                                                 <- params chunk, outcome + parameters, for all chunks
  save step, restore step                        ->
                                                 <- saved, restored
  rest                                           ->                     chief only, after its last step
                                                 <- rest: the groups that still train
  bye                                            ->
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from torchyard_roles.errors import ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.parameter_server.push_acceptance import Push

IN_FLIGHT = 4
"""Largest number of chunks that a worker may have sent to one server without having received the answer."""
MAX_TEXT = 64 * 1024 * 1024
"""Largest size of a JSON payload in bytes.

It is sufficient for the description of a model with several hundred thousand parameter tensors.
"""


class Refusal(Exception):
    """Raised when the server cannot execute a worker's request. The message is sent to the worker."""


def text_of(value: Any) -> torch.Tensor:
    """Encodes a value as JSON in a tensor of bytes, because the JSON text may be too long for a header."""
    return torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)


def receive_text(connection: Connection, header: dict[str, Any]) -> Any:
    """Receives the JSON payload that a header announces. Raises ProtocolError if it is invalid or too long."""
    size = header.get("bytes", 0)
    if not 0 < size <= MAX_TEXT:
        raise ProtocolError(f"{connection.peer} announced {size} bytes of text; at most {MAX_TEXT} are taken.")
    received = torch.empty(size, dtype=torch.uint8, device="cpu")
    connection.receive_into(received)
    try:
        return json.loads(bytes(received.tolist()) if size < 4096 else received.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{connection.peer} sent text that is no JSON: {error}.") from None


_FIELDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("round", "chunk", "base", "changed"), int),
    **dict.fromkeys(("void", "wants", "bare", "hold"), bool),
    "absent": lambda pieces: frozenset(map(int, pieces)),
    "clip": float,
}
"""The functions that decode the fields of a push's header. A header omits fields that have their default values."""


def header_of(push: Push) -> dict[str, Any]:
    """Returns the header of a push. The header does not name the member, which the server knows by its connection."""
    header: dict[str, Any] = {"op": "push"}
    for name in _FIELDS:
        value = getattr(push, name)
        if value != Push._field_defaults.get(name, ...):
            header[name] = sorted(value) if name == "absent" else value
    return header


def push_of(header: dict[str, Any], group: int, rank: int, generation: int) -> Push:
    """Returns the push that a header describes. Raises ValueError if the header is invalid."""
    try:
        fields = {name: read(header[name]) for name, read in _FIELDS.items() if header.get(name) is not None}
        return Push(group, rank, generation, **fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a push: {error}") from error
