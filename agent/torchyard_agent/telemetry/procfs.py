"""Reads the kernel's small text files with few system calls and without buffering."""

from __future__ import annotations

import os


def read(path: str, size: int = 4096) -> bytes:
    """The first `size` bytes, in one read. Raises OSError (the process or the device may be gone)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_all(path: str) -> bytes:
    """The whole file, in several reads if the kernel returns it record by record."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(descriptor, 16384)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(descriptor)


def read_or(path: str, default: bytes = b"") -> bytes:
    """The file's beginning, or `default` if it cannot be read."""
    try:
        return read(path)
    except OSError:
        return default


def boot_id() -> str:
    """The ID of the host's current boot; empty if the kernel does not provide it."""
    return read_or("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
