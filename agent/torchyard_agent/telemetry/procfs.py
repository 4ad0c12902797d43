"""Functions that read small text files of the kernel, unbuffered and with few system calls."""

from __future__ import annotations

import os
from collections.abc import Iterator


def read(path: str, size: int = 4096) -> bytes:
    """Returns the first `size` bytes of the file, in one read.

    Raises OSError, for example if the process has exited.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_all(path: str) -> bytes:
    """Returns the whole file. Several reads may be needed, because the kernel may return records one by one.

    Raises OSError if the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_or(path: str, default: bytes = b"") -> bytes:
    """Returns the first 4096 bytes of the file, or `default` if the file cannot be read."""
    try:
        return read(path)
    except OSError:
        return default


def boot_id() -> str:
    """Returns the ID of the host's current boot, or "" if it is not available."""
    return read_or("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def stat_fields(line: bytes) -> list[bytes]:
    """Returns the fields of a line from /proc/PID/stat, beginning with the third.

    The second field, a name in brackets, may contain any characters. Raises ValueError if the line does not have this
    format.
    """
    return line[line.rindex(b")") + 2 :].split(None, 22)


def read_stat(pid: int) -> list[bytes]:
    """Returns the `stat_fields` of a process. Raises OSError if it has exited, or ValueError as `stat_fields` does."""
    return stat_fields(read(f"/proc/{pid}/stat", 1024))


def each_process(name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the PID of each process, and the content of /proc/PID/`name` if this user may read it."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                content = read_all(f"/proc/{entry}/{name}")
            except OSError:
                continue
            yield int(entry), content
