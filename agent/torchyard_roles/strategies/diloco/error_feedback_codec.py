"""The encoding of one group's parameter differences and averages, with feedback of encoding errors.

A group adds the error of its last encoding to the values that it encodes next, so errors do not accumulate: the error
of the sum over all rounds remains that of one encoding. The owner of a slice does the same for the averages of its
slice. The errors of an attempt are used only if its round is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchyard_roles.exchange.wire_codec import WireCodec
from torchyard_roles.strategies.diloco.outer_step import Flat
from torchyard_roles.strategies.diloco.slice_server import Contribution


class ErrorFeedbackCodec:
    """A codec with the encoding errors of this group. Methods take the numbers of flat tensors.

    Args:
        has_feedback: Whether encoding errors are kept. An exact codec has none.
    """

    def __init__(self, codec: WireCodec, flats: Sequence[Flat], *, has_feedback: bool) -> None:
        self.codec = codec
        self._flats = flats
        self._has_feedback = has_feedback and not codec.is_exact
        self._errors: dict[int, torch.Tensor] = {}
        self._average_errors: dict[int, tuple[int, torch.Tensor]] = {}
        """By flat tensor: the first element of this group's slice, and the errors of the slice's average."""
        self._next_errors: dict[int, torch.Tensor] = {}
        self._next_average_errors: dict[int, tuple[int, torch.Tensor]] = {}

    def encode(self, numbers: Sequence[int], differences: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Encodes all parameter differences of a round."""
        self._next_errors, self._next_average_errors = {}, {}
        encoded = []
        for number, values in zip(numbers, differences):
            error = None
            if self._has_feedback:
                known = self._errors.get(number)
                error = self._next_errors[number] = torch.zeros_like(values) if known is None else known.clone()
            encoded.append(self.codec.encode(values, error))
        return encoded

    def empty(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Returns empty tensors with the sizes of a round's encoded averages."""
        sizes = [self.codec.size(self._flats[number].elements, self._flats[number].dtype) for number in numbers]
        return [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes]

    def cut(self, numbers: Sequence[int], encoded: Sequence[torch.Tensor], number: int, of: int) -> list[torch.Tensor]:
        """Returns slice `number` of `of` equal slices of encoded tensors."""
        found = []
        for flat, whole in zip((self._flats[each] for each in numbers), encoded):
            elements = self.codec.cut(flat.elements, number, of)
            start, stop = self.codec.size(elements.start, flat.dtype), self.codec.size(elements.stop, flat.dtype)
            found.append(whole[start:stop])
        return found

    def average(
        self, numbers: Sequence[int], contributions: Mapping[int, Contribution], number: int, of: int
    ) -> list[torch.Tensor]:
        """Returns the encoded weighted average of a slice. Values are summed in the order of groups.

        The average is 0 if all weights are 0.
        """
        total = sum(each.weight for each in contributions.values())
        ordered = [contributions[group] for group in sorted(contributions)]
        found = []
        for at, flat_number in enumerate(numbers):
            flat = self._flats[flat_number]
            elements = self.codec.cut(flat.elements, number, of)
            sums = torch.zeros(elements.stop - elements.start, dtype=flat.dtype, device="cpu")
            for each in ordered:
                if each.weight:
                    self.codec.accumulate(each.differences[at], sums, each.weight / total)
            error = None
            if self._has_feedback:
                start, known = self._average_errors.get(flat_number, (-1, sums))
                fits = start == elements.start and known.numel() == sums.numel()
                error = known.clone() if fits else torch.zeros_like(sums)
                self._next_average_errors[flat_number] = elements.start, error
            found.append(self.codec.encode(sums, error))
        return found

    def decode(self, encoded: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        """Writes the average of a committed round to `out`, and keeps the encoding errors of this round."""
        for whole, values in zip(encoded, out):
            self.codec.decode(whole, values)
        self.keep_errors()

    def keep_errors(self) -> None:
        """Keeps the encoding errors of a committed round for the next round."""
        self._errors |= self._next_errors
        self._average_errors |= self._next_average_errors

    def forget(self) -> None:
        """Forgets all encoding errors. Called when the outer parameters are replaced."""
        self._errors, self._average_errors = {}, {}

    def state(self) -> dict[str, Any]:
        """Returns the encoding errors, for a checkpoint. No round may be in progress."""
        return {"errors": self._errors, "average_errors": self._average_errors}

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads the encoding errors from a checkpoint of the same model."""
        if self._has_feedback:
            self._errors, self._average_errors = dict(state["errors"]), dict(state["average_errors"])
