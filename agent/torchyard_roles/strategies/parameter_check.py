"""Compares parameters: bitwise between two tensors, and by one number per parameter between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

CHECK_EVERY = 1000
"""Number of steps between two comparisons of parameters, after earlier comparisons at steps 1, 2, 4, 8 …"""
TOLERANCE = 1e-3
"""Allowed relative difference of a parameter's norm between ranks with different hardware.

The results of such ranks are not bitwise equal.
"""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by element size, for bitwise comparison. Compared as integers, a NaN equals itself."""


def is_due(count: int) -> bool:
    """Returns whether parameters are compared after `count` steps."""
    return count % CHECK_EVERY == 0 if count >= CHECK_EVERY else count & (count - 1) == 0


def figures(parameters: Sequence[torch.Tensor], *, exact: bool) -> torch.Tensor:
    """Returns one number for each parameter, as a tensor on the CPU.

    If `exact` is true, the number is a checksum: the sum of the elements' bit patterns, read as integers. Otherwise it
    is the parameter's norm.
    """
    each = [_figure(parameter, exact) for parameter in parameters]
    stacked = torch.stack([figure.to(each[0].device) for figure in each])
    return stacked.to("cpu", torch.int64 if exact else torch.float64)


def first_difference(bounds: torch.Tensor, *, exact: bool) -> int | None:
    """Returns the index of the first parameter that differs between ranks, or None if all parameters are equal.

    Args:
        bounds: The maxima over all ranks of the numbers from figures(), followed by the maxima of the negated numbers.
        exact: Whether the numbers are checksums. If not, they are norms, which may differ by TOLERANCE.
    """
    most, negative = bounds.chunk(2)
    least = -negative
    if exact:
        differs = most != least
    else:
        differs = ~((most - least <= TOLERANCE * most) | (most == least) | (most.isnan() & least.isnan()))
    return int(differs.nonzero()[0]) if bool(differs.any()) else None


def _figure(parameter: torch.nn.Parameter, exact: bool) -> torch.Tensor:
    """Returns the sum of a parameter's bits, interpreted as integers, or its norm."""
    values = parameter.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    if not exact:
        return torch.linalg.vector_norm(values, dtype=torch.float64)
    return values.contiguous().reshape(-1).view(INTEGERS[values.element_size()]).sum(dtype=torch.int64)


def are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have equal shape, dtype and device."""
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors of equal shape, dtype and device are bitwise equal."""
    size = one.element_size()
    if one.is_complex():
        one, other, size = torch.view_as_real(one), torch.view_as_real(other), size // 2
    places = (one.storage_offset(), other.storage_offset(), one.numel())
    if one.is_contiguous() and other.is_contiguous() and not any(place * size % 8 for place in places):
        # 64-bit integers are compared twice as fast as 32-bit elements.
        return bool(torch.equal(one.view(-1).view(torch.int64), other.view(-1).view(torch.int64)))
    return bool(torch.equal(one.view(INTEGERS[size]), other.view(INTEGERS[size])))
