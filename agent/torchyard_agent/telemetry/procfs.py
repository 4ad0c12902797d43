"""Functions that read the kernel's small text files with few system calls and without buffering."""

from __future__ import annotations

import os
from collections.abc import Iterator


def read(path: str, size: int = 4096) -> bytes:
    """Returns the first `size` bytes, in one read. Raises OSError, for example if the process has ended."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_all(path: str) -> bytes:
    """Returns the whole file, in several reads if the kernel returns it record by record. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_or(path: str, default: bytes = b"") -> bytes:
    """Returns the first 4096 bytes of the file, or `default` if the file cannot be read."""
    try:
        return read(path)
    except OSError:
        return default


def boot_id() -> str:
    """Returns the ID of the host's current boot, or "" if the kernel does not provide it."""
    return read_or("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def stat_fields(line: bytes) -> list[bytes]:
    """Returns the fields of /proc/PID/stat from the third on.

    The second field, a name in brackets, may contain any character. Raises ValueError if the line is not from that
    file.
    """
    return line[line.rindex(b")") + 2 :].split(None, 22)


def read_stat(pid: int) -> list[bytes]:
    """Returns the `stat_fields` of a process. Raises OSError or ValueError."""
    return stat_fields(read(f"/proc/{pid}/stat", 1024))


def each_process(name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the PID and the content of /proc/PID/`name` of all processes for which this user may read that file."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                content = read_all(f"/proc/{entry}/{name}")
            except OSError:
                continue
            yield int(entry), content
