"""A bidirectional byte stream to a program on a host."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Protocol


class Channel(Protocol):
    """The byte stream of a connection to a host. Each connection has exactly one channel."""

    def send(self, data: bytes) -> None:
        """Sends all of `data`. Raises OSError if the connection is closed."""

    def receive(self, timeout_s: float | None) -> bytes:
        """Returns the next bytes, or an empty value at the end of the stream.

        Raises TimeoutError if no bytes arrive within `timeout_s` seconds.
        """

    def errors(self) -> str:
        """Returns the newest output of the program on standard error, at most 8 KiB."""

    def close(self) -> None:
        """Closes the connection. May be called repeatedly and from any thread."""


class ProcessChannel:
    """A channel to a process on this computer: a shell for a local host, or `ssh` for `transport: openssh`."""

    def __init__(self, argv: Sequence[str]):
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self._errors = self._process.stderr
        # Closing a descriptor does not end a poll on it, so `close` wakes the polling thread through this pipe.
        self._wake_reader, self._wake_writer = os.pipe()
        self._reading = threading.RLock()
        self._close_once = threading.Lock()
        self._closed = False
        self._noise = b""

    def send(self, data: bytes) -> None:
        try:
            self._input.write(data)
            self._input.flush()
        except ValueError as error:  # Another thread has closed the channel.
            raise ConnectionResetError("the channel is closed") from error

    def receive(self, timeout_s: float | None) -> bytes:
        with self._reading:
            return b"" if self._closed else self._receive(timeout_s)

    def _receive(self, timeout_s: float | None) -> bytes:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        output, errors = self._output.fileno(), self._errors.fileno()
        poll = select.poll()
        for descriptor in (output, errors, self._wake_reader):
            poll.register(descriptor, select.POLLIN)
        while not self._closed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {descriptor for descriptor, _ in poll.poll(left)}
            if errors in ready:
                noise = os.read(errors, 65536)
                self._noise = (self._noise + noise)[-8192:]
                if not noise:
                    poll.unregister(errors)
            if output in ready:
                return os.read(output, 1 << 18)
            if not ready:
                raise TimeoutError
        return b""

    def errors(self) -> str:
        return self._noise.decode(errors="replace").strip()

    def close(self) -> None:
        with self._close_once:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_writer, b"x")
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._reading:  # The descriptors are closed under the lock, so that no other thread polls them.
            self._output.close()
            self._errors.close()
            os.close(self._wake_writer)
            os.close(self._wake_reader)
