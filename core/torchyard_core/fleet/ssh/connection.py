"""SSH connections to hosts and bastions, and their channels."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import paramiko

from torchyard_core.errors import Unreachable
from torchyard_core.fleet.ssh.route import Route

WINDOW_BYTES = 4 * 1024 * 1024
"""Receive window in bytes, large enough for downloads at the speed of the network."""
CHANNEL_TIMEOUT_S = 60.0


class Tunnel:
    """A channel through a bastion with the interface of a socket.

    `close` ignores the error that occurs if the connection to the bastion is already closed.
    """

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel
        self.recv = channel.recv
        self.send = channel.send
        self.settimeout = channel.settimeout

    @property
    def _closed(self) -> bool:  # paramiko reads this private attribute of sockets.
        return bool(self._channel.closed)

    def close(self) -> None:
        """Closes the channel. Safe to call twice and from any thread."""
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._channel.close()


class SshConnection:
    """An SSH connection to a host or bastion. `close` also releases the bastion through which the connection runs."""

    def __init__(self, route: Route, transport: paramiko.Transport, release: Callable[[], None]):
        """Creates a connection over an authenticated transport. `close` calls `release`, which releases the bastion."""
        self.route = route
        self._transport = transport
        self._release = release
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_active(self) -> bool:
        """Whether the transport is active. A broken connection may not have been detected yet."""
        return self._transport.is_active()

    @property
    def transport(self) -> paramiko.Transport:
        """The transport. Raises Unreachable if the connection has ended."""
        if not self._transport.is_active():
            raise Unreachable(self.route.name, f"{self.route.name} ({self.route.place}) closed the connection.")
        return self._transport

    def execute(self, command: str) -> SshChannel:
        """Runs `command` in a new channel, which is the only session of the connection.

        Raises Unreachable if the connection has ended.
        """
        transport = self.transport
        try:
            channel = transport.open_session(window_size=WINDOW_BYTES, timeout=CHANNEL_TIMEOUT_S)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise Unreachable(
                self.route.name,
                f"{self.route.name} ({self.route.place}) accepted the login but no command: {error or 'it closed'}.",
                hint="Does its sshd allow sessions for this user (ForceCommand, MaxSessions)?",
            ) from error
        return SshChannel(channel, self)

    def close(self) -> None:
        """Closes the connection. Safe to call twice and from any thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._transport.close()
        self._transport.sock.close()  # A transport that has ended by itself leaves the socket open.
        self._release()


class SshChannel:
    """A `Channel` over paramiko. `close` also closes the connection."""

    def __init__(self, channel: paramiko.Channel, connection: SshConnection):
        self._channel = channel
        self._connection = connection
        self._noise = b""

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (EOFError, paramiko.SSHException) as error:
            raise ConnectionResetError(f"{self._connection.route.name} is gone") from error

    def receive(self, timeout_s: float | None) -> bytes:
        self._channel.settimeout(timeout_s)
        try:
            return self._channel.recv(1 << 18)
        except TimeoutError:
            raise TimeoutError from None

    def errors(self) -> str:
        while self._channel.recv_stderr_ready():
            self._noise = (self._noise + self._channel.recv_stderr(65536))[-8192:]
        return self._noise.decode(errors="replace").strip()

    def close(self) -> None:
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            self._channel.close()  # The connection may end while the channel is being closed.
        self._connection.close()
