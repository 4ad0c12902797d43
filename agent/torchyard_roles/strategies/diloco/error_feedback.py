"""The encoding of one group's pseudo-gradients and of the averages, with error feedback.

A group adds the error of its last encoding to the values that it encodes next, so errors do not accumulate: the error
of the sum over all rounds is only that of one encoding. The owner of a slice does the same for the averages of its
slice. The errors of an attempt are used only if its round is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchyard_roles.exchange import large_buffers
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.strategies.diloco.outer_step import Flat


class ErrorFeedbackCodec:
    """A codec that keeps one group's encoding errors. Flat tensors are identified by their index in `flats`.

    Args:
        has_feedback: Whether encoding errors are kept. An exact codec has none.
    """

    def __init__(self, codec: WireCodec, flats: Sequence[Flat], *, has_feedback: bool) -> None:
        self.codec = codec
        self._flats = flats
        self.has_feedback = has_feedback and not codec.is_exact
        self._errors: dict[int, torch.Tensor] = {}
        self._average_errors: dict[int, tuple[int, torch.Tensor]] = {}
        """For each flat tensor, the start of this group's slice, and the errors of the slice's average."""
        self._next_errors: dict[int, torch.Tensor] = {}
        self._next_average_errors: dict[int, tuple[int, torch.Tensor]] = {}
        self._spare: dict[int, torch.Tensor] = {}
        """For each flat tensor, memory that is reused for the next round's encoded averages."""

    def encode(self, numbers: Sequence[int], differences: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Adds the errors of the last committed round to a group's pseudo-gradients, and encodes the sums."""
        self.discard_errors()
        encoded = []
        for number, values in zip(numbers, differences):
            error = None
            if self.has_feedback:
                known = self._errors.get(number)
                error = self._next_errors[number] = torch.zeros_like(values) if known is None else known.clone()
            encoded.append(self.codec.encode(values, error))
        return encoded

    def empty(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Returns tensors for the encoded averages of a round, with arbitrary contents."""
        found = []
        for number in numbers:
            size = self.codec.size(self._flats[number].elements, self._flats[number].dtype)
            spare = self._spare.pop(number, None)
            found.append(large_buffers.zeros(size, torch.uint8) if spare is None else spare)
        return found

    def cut(self, numbers: Sequence[int], encoded: Sequence[torch.Tensor], number: int, of: int) -> list[torch.Tensor]:
        """Returns slice `number` of `of` equal slices of each encoded tensor."""
        found = []
        for flat, whole in zip((self._flats[each] for each in numbers), encoded):
            elements = self.codec.cut(flat.elements, number, of)
            start, stop = self.codec.size(elements.start, flat.dtype), self.codec.size(elements.stop, flat.dtype)
            found.append(whole[start:stop])
        return found

    def messages(self, numbers: Sequence[int], number: int, of: int) -> list[tuple[int, slice]]:
        """Returns the messages of slice `number` of `of` slices: indices in `flats`, with ranges of elements."""
        found = []
        for each in numbers:
            share = self.codec.cut(self._flats[each].elements, number, of)
            found += [(each, elements) for elements in self.codec.messages(share)]
        return found

    def size(self, message: tuple[int, slice]) -> int:
        """Returns the number of bytes of an encoded message."""
        number, elements = message
        return self.codec.size(elements.stop - elements.start, self._flats[number].dtype)

    def cut_messages(
        self, numbers: Sequence[int], encoded: Sequence[torch.Tensor], number: int, of: int
    ) -> list[torch.Tensor]:
        """Returns the messages of slice `number` of `of` slices, as views of the encoded tensors."""
        whole = dict(zip(numbers, encoded))
        found = []
        for message in self.messages(numbers, number, of):
            flat, elements = message
            start = self.codec.size(elements.start, self._flats[flat].dtype)
            found.append(whole[flat][start : start + self.size(message)])
        return found

    def begin_average(self, numbers: Sequence[int], number: int, of: int) -> None:
        """Starts averaging slice `number` of `of` slices, with the errors of the last committed round."""
        self._next_average_errors = {}
        if not self.has_feedback:
            return
        for each in numbers:
            share = self.codec.cut(self._flats[each].elements, number, of)
            size = share.stop - share.start
            start, known = self._average_errors.get(each, (-1, None))
            fits = known is not None and start == share.start and known.numel() == size
            error = known.clone() if fits else torch.zeros(size, dtype=self._flats[each].dtype, device="cpu")
            self._next_average_errors[each] = share.start, error

    def average(
        self, message: tuple[int, slice], contributions: Iterable[tuple[float, torch.Tensor]], out: torch.Tensor
    ) -> None:
        """Writes the encoded average of a message to `out`.

        Args:
            contributions: The weight of each group and its encoded pseudo-gradients. The sum of the weights is 1 or 0.
        """
        number, elements = message
        sums = torch.zeros(elements.stop - elements.start, dtype=self._flats[number].dtype, device="cpu")
        for weight, encoded in contributions:
            if weight:
                self.codec.accumulate(encoded, sums, weight)
        error = None
        if self.has_feedback:
            start, errors = self._next_average_errors[number]
            error = errors[elements.start - start : elements.stop - start]
        out.copy_(self.codec.encode(sums, error))

    def decode(self, numbers: Sequence[int], encoded: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        """Decodes the average of a committed round into `out`, and keeps the encoding errors of this round.

        The tensors in `encoded` must not be used afterwards, because empty() returns them for a later round.
        """
        for number, whole, values in zip(numbers, encoded, out):
            self.codec.decode(whole, values)
            self._spare[number] = whole
        self.keep_errors()

    def keep_errors(self) -> None:
        """Keeps the encoding errors of a committed round for the next round."""
        self._errors |= self._next_errors
        self._average_errors |= self._next_average_errors

    def discard_errors(self) -> None:
        """Discards the encoding errors of a round that was not committed."""
        self._next_errors, self._next_average_errors = {}, {}

    @property
    def average_errors(self) -> dict[int, tuple[int, torch.Tensor]]:
        """For each flat tensor, the start of the slice that this codec averages, and the errors of that average."""
        return self._average_errors

    def seed(self, average_errors: Mapping[int, tuple[int, torch.Tensor]]) -> None:
        """Replaces the encoding errors of averages, unless error feedback is off."""
        if self.has_feedback:
            self._average_errors = dict(average_errors)

    def forget(self) -> None:
        """Discards all encoding errors. Called when the outer parameters are replaced."""
        self._errors, self._average_errors = {}, {}

    def state(self) -> dict[str, Any]:
        """Returns the encoding errors, for a checkpoint. No round may be in progress."""
        return {"errors": dict(self._errors), "average_errors": dict(self._average_errors)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads the encoding errors from a checkpoint of the same model."""
        if self.has_feedback:
            self._errors, self._average_errors = dict(state["errors"]), dict(state["average_errors"])
