"""Runs a ProxyCommand behind the interface of a socket.

The program's standard input and output are one end of a socket pair, so paramiko can use timeouts and detect the end of
the stream without busy waiting.
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
    """A running ProxyCommand with the methods of a socket that paramiko uses."""

    def __init__(self, command: str):
        """Starts the program in a shell, as ssh(1) does.

        Raises OSError if the program cannot be started. On a system that is not POSIX, this always fails.
        """
        if os.name != "posix":
            raise OSError(0, "ProxyCommand needs `transport: openssh` on this system")
        own_end, its_end = socket.socketpair()
        self._socket = own_end
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()
        self._closed = False
        self._last_output = ""
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=its_end.fileno(),
                stdout=its_end.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )
        except BaseException:  # The socket and the temporary file must be closed, even after Ctrl-C.
            own_end.close()
            self._errors.close()
            raise
        finally:
            its_end.close()
        self.settimeout = own_end.settimeout
        self.recv = own_end.recv

    def send(self, data: bytes) -> int:
        """Sends bytes and returns their number, like a socket."""
        return self._socket.send(data)

    def complaint(self, within_s: float = 0.5) -> str:
        """Returns the error output if the program fails within `within_s` seconds, otherwise an empty string."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(within_s):
                with self._lock:
                    return (self._last_output or self._error_output()) or f"it ended with {self._process.returncode}"
        return ""

    def close(self) -> None:
        """Ends the program and its process group. Safe to call twice and from any thread."""
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
            self._last_output = self._error_output()
            self._errors.close()

    def _error_output(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._errors.fileno()).st_size
            text = os.pread(self._errors.fileno(), 4096, max(0, size - 4096))
            return " ".join(text.decode(errors="replace").split())[-300:].rstrip(".")
        return ""
