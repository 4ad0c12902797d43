"""A program to speak SSH through (ProxyCommand), as a socket.

Its standard input and output are one end of a pair of sockets, so that to paramiko it is like any connection: with
timeouts, an end, and no busy waiting.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading

ENDS_WITHIN_S = 2.0


class ProxyCommand:
    """The running program. What it lacks of a socket, paramiko does not use."""

    def __init__(self, command: str):
        """Starts it by the shell, as ssh(1) does. Raises OSError, also where this system has no such pairs."""
        if os.name != "posix":
            raise OSError(0, "ProxyCommand needs `transport: openssh` on this system")
        ours, its = socket.socketpair()
        self._socket = ours
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self._lock = threading.Lock()
        self._closed = False
        self._last_words = ""
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )
        except BaseException:  # Ctrl-C too: nothing stays open
            ours.close()
            self._errors.close()
            raise
        finally:
            its.close()
        self.settimeout = ours.settimeout
        self.recv = ours.recv

    def send(self, data: bytes) -> int:
        """Bytes taken, as of a socket."""
        return self._socket.send(data)

    def complaint(self, within_s: float = 0.5) -> str:
        """What the program said on its standard error, where it has ended by itself with a failure; else nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(within_s):
                with self._lock:
                    return (self._last_words or self._said()) or f"it ended with {self._process.returncode}"
        return ""

    def close(self) -> None:
        """Ends the program and all that it started. Safe to call twice, and from any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_WITHIN_S)
                break
        with self._lock:
            self._last_words = self._said()
            self._errors.close()

    def _said(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._errors.fileno()).st_size
            text = os.pread(self._errors.fileno(), 4096, max(0, size - 4096))
            return " ".join(text.decode(errors="replace").split())[-300:].rstrip(".")
        return ""
