"""A store for torch.distributed that uses the join store, so process groups need no TCPStore on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore


_alive: list[TorchStore] = []
"""Keeps Python objects alive. A process group refers only to the C++ object, which fails without its Python object."""


class TorchStore(dist.Store):  # type: ignore[misc]  # mypy does not analyse torch, see pyproject.toml.
    """A store for `init_process_group(store=TorchStore(join_store, "pairs/"), rank=…, world_size=…)`.

    The join store outlives process groups, and each group needs new keys. `prefix` must therefore be unique, for
    example by containing the generation. torch 2.13 calls two of the methods by their C++ names.
    """

    def __init__(self, store: JoinStore, prefix: str = "", timeout_s: float = 300.0) -> None:
        super().__init__()
        _alive.append(self)
        self._store = store
        self._prefix = prefix
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        self._store.set(self._prefix + key, _as_bytes(value))

    def get(self, key: str) -> bytes:
        """Waits for a key up to the timeout, and returns its value.

        Raises StoreTimeout if the key is not set in time.
        """
        return self._store.get(self._prefix + key, self._timeout_s)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._prefix + key, amount)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets a key if its value is `expected`, and returns the value after the call, as torch's own stores do.

        An empty `expected` means that the key is not set. If the key is not set and `expected` is not empty, the result
        is `expected`.
        """
        now = self._store.compare_set(self._prefix + key, _as_bytes(expected) or None, _as_bytes(desired))
        return now or _as_bytes(expected)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._store.wait([self._prefix + key for key in keys], timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._store.try_get(self._prefix + key) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete(self._prefix + key)

    deleteKey = delete_key

    def num_keys(self) -> int:
        """Returns the number of keys in the whole join store, including those with other prefixes."""
        return self._store.count()

    getNumKeys = num_keys

    def append(self, key: str, value: bytes | str) -> None:
        while True:
            before = self._store.try_get(self._prefix + key)
            after = (before or b"") + _as_bytes(value)
            if self._store.compare_set(self._prefix + key, before, after) == after:
                return

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def clone(self) -> TorchStore:
        return TorchStore(self._store, self._prefix, self._timeout_s)


def _as_bytes(value: bytes | str | Sequence[int]) -> bytes:
    """Converts an argument to bytes: torch passes text, bytes, or a list of integers."""
    return value.encode() if isinstance(value, str) else bytes(value)
