"""Logs in to hosts over SSH, through the jump hosts of their routes.

The number of concurrent logins per sshd is limited, and dropped connections are retried.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko

from torchyard_core.errors import HostError, Unreachable
from torchyard_core.fleet.credential_prompts import CredentialCache, Prompter
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.authentication import Login, LoginExpired
from torchyard_core.fleet.ssh.bastions import Bastions
from torchyard_core.fleet.ssh.connection import SshConnection, Tunnel
from torchyard_core.fleet.ssh.keepalive import KeepalivePacketizer, keep_alive, keepalive_request
from torchyard_core.fleet.ssh.known_hosts import KnownHosts, fingerprint
from torchyard_core.fleet.ssh.login_errors import explain, silent_in_key_exchange, with_jump_of
from torchyard_core.fleet.ssh.login_throttle import Backoff, EarlyDrop, LoginThrottle
from torchyard_core.fleet.ssh.proxy_command import ProxyCommand
from torchyard_core.fleet.ssh.route import Route, as_host, route_to
from torchyard_core.fleet.ssh.ssh_config import UserConfig

HANDSHAKE_TIMEOUT_S = 30.0
"""Timeout in seconds for the server's banner and for the key exchange. A server with failing DNS answers slowly."""
DROPS_FOR_S = 20.0
"""Time in seconds from the first dropped connection until the dialer treats the host as unreachable."""
LATE_ATTEMPTS = 3
PASSED_WITHIN_S = 3.0
DROPPED_MARKS = ("kex_exchange_identification", "Connection closed", "Connection reset", "MaxStartups")
"""Parts of the messages with which `ssh`, run as a ProxyCommand, reports that an sshd has dropped the connection."""

# This package explains errors itself, so the tracebacks that paramiko logs are suppressed.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class SshDialer:
    """Logs in to hosts with keys and with credentials entered by the user. Thread-safe."""

    def __init__(self, known_hosts: Path, questions: Prompter | None = None):
        """Creates a dialer.

        `known_hosts` is Torchyard's own file of host keys. The user's known_hosts is read, but never written.
        """
        self.known_hosts = known_hosts
        self._keys = KnownHosts(known_hosts)
        self._config = UserConfig()
        self._secrets = CredentialCache(questions)
        self.throttle = LoginThrottle()
        """The throttle of all logins, including those of the system's ssh."""
        self._bastions = Bastions(lambda route: self._connect(route, time.monotonic()))

    def reread(self) -> None:
        """Reads `~/.ssh/config` again. Entered credentials and logins on bastions are kept."""
        self._config = UserConfig()

    def connect(self, host: Host) -> SshConnection:
        """Logs in to `host` through its bastions.

        Raises HostError if this fails, and FileProblem for an invalid configuration.
        """
        try:
            return self._connect(self._route(host), time.monotonic())
        except HostError as error:
            raise with_jump_of(host.name, error) from error

    def host_key(self, host: Host) -> tuple[str, str]:
        """Returns the fingerprint and the known_hosts line of the key that `host` presents, trusted or not."""
        route = self._route(host)
        connection = self._retry(route, lambda: self._open(route, lambda transport: None))
        try:
            key = connection.transport.get_remote_server_key()
        finally:
            connection.close()
        return fingerprint(key), f"{route.key_name} {key.get_name()} {key.get_base64()}"

    def known_keys(self, host: Host) -> dict[str, str]:
        """Returns the fingerprints of the trusted keys of `host` by key type."""
        return {kind: fingerprint(key) for kind, key in self._keys.keys_of(self._route(host)).items()}

    def bastions(self, host: Host) -> list[Host]:
        """Returns the bastions on the way to `host`, the nearest first. A login also checks their host keys."""
        return [as_host(hop) for hop in self._route(host).hops[:-1]]

    def trust(self, host: Host, line: str) -> None:
        """Records a host's key, given as a known_hosts line, in Torchyard's file, in place of the host's older keys."""
        self._keys.trust(self._route(host), line)

    def _route(self, host: Host) -> Route:
        return route_to(host, self._config.lookup)

    def _connect(self, route: Route, began: float) -> SshConnection:
        """Logs in to the host of a route. `began` is the time of the user's request (monotonic clock)."""

        def log_in(transport: paramiko.Transport) -> None:
            self._keys.check(route, transport.get_remote_server_key())
            Login(route, transport, self._secrets, began).run()
            keep_alive(transport, route.alive_interval_s, route.alive_count)

        return self._retry(route, lambda: self._open(route, log_in))

    def _retry(self, route: Route, attempt: Callable[[], SshConnection]) -> SshConnection:
        """Calls `attempt`, and retries if the connection is dropped before the login or the login expires at a prompt.

        Raises HostError if `attempt` fails for another reason, or if the retries are exhausted.
        """
        pause = Backoff(0.2, 4.0)
        dropped_since = 0.0
        late = 0
        while True:
            try:
                return attempt()
            except EarlyDrop as drop:
                dropped_since = dropped_since or time.monotonic()
                if time.monotonic() - dropped_since > DROPS_FOR_S:
                    raise explain(route, drop) from drop
                time.sleep(pause.next())
            except LoginExpired as closed:
                late += 1
                if late == LATE_ATTEMPTS:
                    message = f"{route.name} ({route.place}) did not wait for the answer (LoginGraceTime)."
                    raise Unreachable(route.name, message, hint="Try again, and answer sooner.") from closed

    def _open(self, route: Route, log_in: Callable[[paramiko.Transport], None]) -> SshConnection:
        """Makes one attempt to log in. Raises HostError, EarlyDrop or LoginExpired if the attempt fails."""
        sock: Any = None
        # The bastion is acquired before the login slot, so that no slot is held while the login on the bastion waits.
        bastion = self._bastions.lease(route.via) if route.via else None
        release = bastion.release if bastion else lambda: None
        try:
            with self.throttle[route.throttle_key].slot():
                sock = self._socket(route, bastion.connection if bastion else None)
                transport = paramiko.Transport(sock, packetizer_class=KeepalivePacketizer)
                try:
                    self._shake_hands(route, transport, sock)
                    log_in(transport)
                    # The transport is not authenticated if the caller requested only the host key.
                    if transport.is_authenticated():
                        _await_first_response(transport)
                except BaseException:  # The transport's thread must also end after KeyboardInterrupt.
                    transport.close()
                    raise
            return SshConnection(route, transport, release)
        # The socket and the bastion must also be released after KeyboardInterrupt.
        except BaseException as error:
            if sock is not None:
                sock.close()
            release()
            if isinstance(error, (paramiko.SSHException, OSError, EOFError, UnicodeError)):
                raise explain(route, error) from error
            raise

    def _shake_hands(self, route: Route, transport: paramiko.Transport, sock: Any) -> None:
        transport.banner_timeout = max(HANDSHAKE_TIMEOUT_S, route.connect_timeout_s)
        transport.handshake_timeout = HANDSHAKE_TIMEOUT_S
        self._keys.prefer_known(route, transport)
        began = time.monotonic()
        try:
            transport.start_client(timeout=2 * HANDSHAKE_TIMEOUT_S)
        except (paramiko.SSHException, EOFError, OSError) as error:
            complaint = sock.complaint() if isinstance(sock, ProxyCommand) else ""
            if complaint and not any(mark in complaint for mark in DROPPED_MARKS):
                message = f"the ProxyCommand to {route.name} failed: {complaint}."
                raise Unreachable(route.name, message, hint="Try the command of ~/.ssh/config by hand.") from error
            if _was_dropped(error):
                # paramiko reports its own timeout in the same way as a connection closed by the server.
                if transport.remote_version and time.monotonic() - began >= transport.handshake_timeout:
                    raise silent_in_key_exchange(route) from error
                raise EarlyDrop from error
            raise

    def _socket(self, route: Route, bastion: SshConnection | None) -> Any:
        """Returns a socket, or an object with the same interface, that is connected to the host's SSH port."""
        if route.proxy_command:
            return ProxyCommand(route.proxy_command)
        if bastion is None:
            sock = socket.create_connection((route.address, route.port), timeout=route.connect_timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        try:
            place = (route.address, route.port)
            return Tunnel(
                bastion.transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=route.connect_timeout_s)
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            if isinstance(error, HostError):
                raise
            why = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            raise Unreachable(
                route.name,
                f"the bastion {bastion.route.name} cannot reach {route.name} at {route.place}: "
                f"{why.rstrip('.') or 'its connection ended'}.",
                hint="Is the host up, and does the bastion allow forwarding?",
            ) from error


def _await_first_response(transport: paramiko.Transport) -> None:
    """Waits until the server has answered a request after the login, or PASSED_WITHIN_S have elapsed.

    OpenSSH still counts a connection towards MaxStartups for a moment after the login. Without this wait, eight
    concurrent logins exceeded a limit of ten. Other servers may not answer the request.
    """
    # paramiko's global_request() has no timeout.
    answered = transport.completion_event = threading.Event()
    transport._send_user_message(keepalive_request())  # type: ignore[attr-defined]  # The type stubs lack this attribute.
    deadline = time.monotonic() + PASSED_WITHIN_S
    while transport.is_active() and not answered.wait(0.1) and time.monotonic() < deadline:
        pass


def _was_dropped(error: BaseException) -> bool:
    """Returns whether the server closed the connection, according to `error` or the errors that led to it."""
    while not isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError)):
        if error.__context__ is None:
            return False
        error = error.__context__
    return True
