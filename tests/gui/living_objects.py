"""The Python objects of given types that exist, found by the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import UnionType
from typing import Any

UNINTERRUPTED_S = 1000.0


def living_objects(kinds: type | UnionType) -> list[Any]:
    """Returns all objects of these types. No other thread runs meanwhile.

    The garbage collector's list holds a second reference to each object. A thread that builds a tuple from an iterator
    would raise a SystemError if it continued while its tuple has a second reference.
    """
    with _uninterrupted():
        # isinstance() would read `__class__`, and some of torch's objects warn about any attribute access.
        return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(UNINTERRUPTED_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
