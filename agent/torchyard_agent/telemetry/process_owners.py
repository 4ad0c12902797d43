"""The users and programs of processes."""

from __future__ import annotations

import functools
import pwd
from typing import Any

from torchyard_agent.telemetry.display_servers import draws_screen, is_display_server
from torchyard_agent.telemetry.procfs import read

UNKNOWN = "unknown"
CACHED_S = 10.0


class Owners:
    """The users and programs of processes.

    The results are cached for CACHED_S, because finding a user may query a directory service.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, str, str, bool | None]] = {}

    def of(self, pid: int, now: float) -> tuple[str, str]:
        """Returns the user and the program of a process at monotonic time `now`.

        A value is "unknown" if the daemon's user may not read it, for example for a process in a container.
        """
        return self._about(pid, now)[1:3]

    def describe(self, process: dict[str, Any], now: float) -> None:
        """Adds `user`, `program` and `draws_screen` to an entry of NVML's process list."""
        _, process["user"], process["program"], display_server = self._about(process["pid"], now)
        process["draws_screen"] = draws_screen(display_server, process["program"], process["computes"])

    def _about(self, pid: int, now: float) -> tuple[float, str, str, bool | None]:
        known = self._known.get(pid)
        if known is None or now - known[0] >= CACHED_S:
            if len(self._known) > 1000:
                self._known.clear()
            known = self._known[pid] = (now, *self._read_status(pid), is_display_server(pid))
        return known

    def _read_status(self, pid: int) -> tuple[str, str]:
        try:
            status = read(f"/proc/{pid}/status", 1024)
        except OSError:
            return UNKNOWN, UNKNOWN
        user = program = UNKNOWN
        for line in status.split(b"\n"):
            if line.startswith(b"Name:"):
                program = line[5:].strip().decode(errors="replace")
            elif line.startswith(b"Uid:"):
                user = user_name(int(line.split()[1]))
                break
        return user, program


@functools.lru_cache(maxsize=1000)
def user_name(uid: int) -> str:
    """Returns the login name of a UID, or the UID as text if the host has no name for it. The result is cached."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)
