"""One server's slice of a fragment's outer parameters θ and momentum m, and the pseudo-gradients that groups pushed.

With a quantized encoding, groups do not receive θ itself but the changes of the *sent* parameters, which approximate θ.
A change is the encoded difference between θ and the sent parameters, so the encoding error of a change is part of the
next change. All groups hold the sent parameters of some round, and compute their pseudo-gradients from these.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchyard_roles.errors import ProtocolError
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.strategies.diloco.outer_step import Flat, OuterParameters
from torchyard_roles.strategies.diloco.server_rounds import Push

Shape = tuple[int, torch.dtype, bool]
"""The number of elements of a flat tensor's slice, its dtype, and whether it contains buffers."""


class OuterSlice:
    """One server's slice, which is empty until begin() or load() is called. All methods are thread-safe.

    Args:
        codec: The encoding of the groups' pseudo-gradients, and of changes in the sent parameters.
    """

    def __init__(self, codec: WireCodec) -> None:
        self.codec = codec
        self._lock = threading.Lock()
        self._outer = OuterParameters(())
        self._differences: dict[tuple[int, int], list[torch.Tensor]] = {}
        """Pseudo-gradients by group and base. Only the pseudo-gradients of committed pushes are averaged."""
        self._sent: list[torch.Tensor] = []
        """The sent parameters. Empty if the encoding is exact, because the sent parameters would then equal θ."""
        self._changes: dict[int, list[torch.Tensor]] = {}
        """The newest encoded changes of the sent parameters, by round. Their total size is smaller than that of θ."""

    @property
    def round(self) -> int:
        """The number of closed rounds, or -1 as long as the slice is empty."""
        return self._outer.round

    def begin(
        self, shapes: Sequence[Shape], theta: list[torch.Tensor], momentum: list[torch.Tensor], round_: int
    ) -> None:
        flats = []
        for elements, dtype, is_buffer in shapes:
            flat = Flat([], dtype, is_buffer=is_buffer)
            flat.elements = elements
            flats.append(flat)
        with self._lock:
            self._outer = OuterParameters(flats)
            self._outer.load(theta, momentum, round_)
            self._differences = {}
            self._sent = [] if self.codec.is_exact else [each.clone() for each in theta]
            self._changes = {}

    def empty(self) -> list[torch.Tensor]:
        """Returns a tensor of zeros for each flat tensor of the slice."""
        return self._outer.empty()

    def shapes(self) -> list[Shape]:
        return [(flat.elements, flat.dtype, flat.is_buffer) for flat in self._outer.flats]

    def put(self, group: int, base: int, difference: list[torch.Tensor]) -> None:
        with self._lock:
            self._differences[group, base] = difference

    def sent(self) -> tuple[int, list[torch.Tensor]]:
        """Returns the number of closed rounds, and a copy of the parameters as sent to the groups."""
        with self._lock:
            return self._outer.round, [each.clone() for each in self._sent or self._outer.theta]

    def changes_since(self, round_: int) -> list[list[torch.Tensor]] | None:
        """Returns the encoded changes of all rounds after `round_`, or None if one of them is no longer stored."""
        with self._lock:
            rounds = range(round_ + 1, self._outer.round + 1)
            return [self._changes[each] for each in rounds] if all(each in self._changes for each in rounds) else None

    def close(self, used: Sequence[Push], pushed: Mapping[int, int], lr: float, momentum: float) -> None:
        """Averages a round's pseudo-gradients, summed in the order of `used`, and takes the outer step.

        If all weights are 0, no group has trained since the last outer step, so the outer parameters do not change.

        Args:
            pushed: The base of each group's last push. The group's pseudo-gradients with this base or an earlier one
                are deleted.
        """
        with self._lock:
            if not all(push.key in self._differences for push in used):
                raise ProtocolError("a difference of this round is missing")
            self._outer.step(self._average(used), lr, momentum)
            self._differences = {
                (group, base): each for (group, base), each in self._differences.items() if base > pushed.get(group, -1)
            }
            if self._sent:
                self._change_sent()

    def _change_sent(self) -> None:
        """Encodes the difference between outer and sent parameters, and adds this change to the sent parameters."""
        changes = []
        for theta, sent in zip(self._outer.theta, self._sent):
            change = self.codec.encode(theta - sent)
            self.codec.accumulate(change, sent)
            changes.append(change)
        self._changes[self._outer.round] = changes
        changes_bytes = sum(each.nbytes for each in changes)
        theta_bytes = sum(each.nbytes for each in self._outer.theta)
        while self._changes and len(self._changes) * changes_bytes >= theta_bytes:
            del self._changes[min(self._changes)]

    def _average(self, used: Sequence[Push]) -> list[torch.Tensor]:
        """Returns the weighted average of the pseudo-gradients of pushes, or [] if all weights are 0.

        The pseudo-gradients are summed in the order of `used`.
        """
        total = sum(push.weight for push in used)
        if not total:
            return []
        sums = self.empty()
        for push in used:
            if push.weight:
                for whole, part in zip(sums, self._differences[push.key]):
                    whole.add_(part, alpha=push.weight / total)
        return sums

    def state(self, pending: Sequence[Push]) -> dict[str, Any]:
        """Returns the slice's state for a checkpoint: θ, m, the sent parameters and the pending pseudo-gradients."""
        with self._lock:
            return {
                **self._outer.state(),
                "shapes": [[elements, str(dtype), is_buffer] for elements, dtype, is_buffer in self.shapes()],
                "pending": [[*push, self._differences[push.key]] for push in pending],
                "sent": [each.clone() for each in self._sent],
            }

    def load(self, state: Mapping[str, Any]) -> list[Push]:
        """Loads the slice's state from a checkpoint, and returns the pushes of the round that was open at that time."""
        shapes = [(int(elements), dtype_of(name), bool(buffer)) for elements, name, buffer in state["shapes"]]
        self.begin(shapes, state["theta"], state["momentum"], int(state["round"]))
        if self._sent and state.get("sent"):
            self._sent = list(state["sent"])
        pending = []
        for group, base, weight, difference in state["pending"]:
            pending.append(Push(int(group), int(base), float(weight)))
            self.put(int(group), int(base), difference)
        return pending


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype of an outer parameter by its name. Raises ProtocolError if the name is unknown."""
    for dtype in (torch.float32, torch.float64):
        if str(dtype) == name:
            return dtype
    raise ProtocolError(f"{name!r} is not a dtype of outer parameters")
