"""Logs in on hosts: along their routes, in turn at each door, again where an sshd drops us before the login."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST

from torchyard_core.errors import HostError, Unreachable
from torchyard_core.fleet.credential_prompts import CredentialCache, Questions
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.authentication import Login, LoginExpired
from torchyard_core.fleet.ssh.bastions import Bastions
from torchyard_core.fleet.ssh.connection import SshConnection, Tunnel
from torchyard_core.fleet.ssh.keepalive import KeepalivePacketizer, keep_alive
from torchyard_core.fleet.ssh.known_hosts import KnownHosts, fingerprint
from torchyard_core.fleet.ssh.login_errors import explain, silent_in_key_exchange
from torchyard_core.fleet.ssh.login_throttle import Backoff, Doors, EarlyDrop
from torchyard_core.fleet.ssh.proxy_command import ProxyCommand
from torchyard_core.fleet.ssh.route import Route, UserConfig, as_host, route_to

HANDSHAKE_TIMEOUT_S = 30.0
"""For a server's first words, and for agreeing on keys. Name servers that do not answer make it slow."""
DROPS_FOR_S = 20.0
"""How long an sshd may go on dropping one login before it counts as unreachable. Waiting for a turn does not count."""
LATE_ATTEMPTS = 3
PASSED_WITHIN_S = 3.0
DROPPED_MARKS = ("kex_exchange_identification", "Connection closed", "Connection reset", "MaxStartups")
"""What an `ssh` as ProxyCommand says when the sshd before it has dropped it."""

# paramiko reports what we catch and explain ourselves; its tracebacks are for its developers.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class SshDialer:
    """Logs in on hosts, with the keys that are known now and what the user was asked before. Threads may share it."""

    def __init__(self, known_hosts: Path, questions: Questions | None = None):
        """`known_hosts` is the file of ours; the user's own is read beside it and never written.

        `questions`: who can be asked for passphrases, passwords and codes; nobody by default.
        """
        self.known_hosts = known_hosts
        self._keys = KnownHosts(known_hosts)
        self._config = UserConfig()
        self._secrets = CredentialCache(questions)
        self.doors = Doors()
        """Where logins wait their turn, those of the system's ssh too."""
        self._bastions = Bastions(lambda route: self._connect(route, time.monotonic()))

    def reread(self) -> None:
        """Reads `~/.ssh/config` anew. What was asked stays known, and bastions stay shared."""
        self._config = UserConfig()

    def connect(self, host: Host) -> SshConnection:
        """A login on `host`, through its bastions. Raises a HostError that says what is in the way, or FileProblem."""
        return self._connect(self._route(host), time.monotonic())

    def host_key(self, host: Host) -> tuple[str, str]:
        """(fingerprint, known_hosts line) of the key that `host` shows now, whether we know it or not."""
        route = self._route(host)
        connection = self._in_turn(route, lambda: self._open(route, lambda transport: None))
        try:
            key = connection.transport.get_remote_server_key()
        finally:
            connection.close()
        return fingerprint(key), f"{route.key_name} {key.get_name()} {key.get_base64()}"

    def known_keys(self, host: Host) -> dict[str, str]:
        """What is on record for `host`: fingerprints by the key's type."""
        return {kind: fingerprint(key) for kind, key in self._keys.keys_of(self._route(host)).items()}

    def bastions(self, host: Host) -> list[Host]:
        """The hosts that `host` is reached through, the nearest first. Their keys are checked as strictly."""
        return [as_host(hop) for hop in self._route(host).hops[:-1]]

    def trust(self, host: Host, line: str) -> None:
        """Records a host's key in our file, in place of any that we had for it."""
        self._keys.trust(self._route(host), line)

    def _route(self, host: Host) -> Route:
        return route_to(host, self._config.lookup)

    def _connect(self, route: Route, began: float) -> SshConnection:
        """`began`: when the user asked for it (monotonic)."""

        def log_in(transport: paramiko.Transport) -> None:
            self._keys.check(route, transport.get_remote_server_key())
            Login(route, transport, self._secrets, began).run()
            keep_alive(transport, route.alive_interval_s, route.alive_count)

        return self._in_turn(route, lambda: self._open(route, log_in))

    def _in_turn(self, route: Route, attempt: Callable[[], SshConnection]) -> SshConnection:
        """Attempts until one works: not many at once, and again where the sshd drops us before the login."""
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
                    raise Unreachable(
                        route.name,
                        f"{route.name} ({route.place}) did not wait for the answer (LoginGraceTime).",
                        hint="Try again, and answer sooner.",
                    ) from closed

    def _open(self, route: Route, log_in: Callable[[paramiko.Transport], None]) -> SshConnection:
        """One attempt. Raises a HostError, EarlyDrop or LoginExpired."""
        sock: Any = None
        # The bastions before the turn: who waits there must not keep others from a door.
        bastion = self._bastions.lease(route.via) if route.via else None
        release = bastion.release if bastion else lambda: None
        try:
            with self.doors[route.door].passing():
                sock = self._socket(route, bastion.connection if bastion else None)
                transport = paramiko.Transport(sock, packetizer_class=KeepalivePacketizer)
                try:
                    self._shake_hands(route, transport, sock)
                    log_in(transport)
                    if transport.is_authenticated():  # not where only the host's key was asked for
                        _pass_through(transport)
                except BaseException:  # Ctrl-C too: its thread would live on
                    transport.close()
                    raise
            return SshConnection(route, transport, release)
        except BaseException as error:  # Ctrl-C too: neither a socket nor the bastion is held
            if sock is not None:
                sock.close()
            release()
            if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
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
            said = sock.complaint() if isinstance(sock, ProxyCommand) else ""
            if said and not any(mark in said for mark in DROPPED_MARKS):
                raise Unreachable(
                    route.name,
                    f"the ProxyCommand to {route.name} failed: {said}.",
                    hint="Try it by hand; it is in ~/.ssh/config.",
                ) from error
            if _was_dropped(error):
                # paramiko reports its own timeout as the server's closing.
                if transport.remote_version and time.monotonic() - began >= transport.handshake_timeout:
                    raise silent_in_key_exchange(route) from error
                raise EarlyDrop from error
            raise

    def _socket(self, route: Route, bastion: SshConnection | None) -> Any:
        """A socket to the host's SSH port, or what does for one."""
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


def _pass_through(transport: paramiko.Transport) -> None:
    """Waits for an answer from beyond the login.

    An sshd still counts us towards MaxStartups when it tells us that we are in. The process that answers the next
    request has been let go of; seen: without it, the eleventh of eight at once. Servers of other makes may leave the
    question unanswered: then it costs a moment.
    """
    # paramiko's own global_request() has no bound.
    answered = transport.completion_event = threading.Event()
    question = paramiko.Message()
    question.add_byte(cMSG_GLOBAL_REQUEST)
    question.add_string("keepalive@openssh.com")
    question.add_boolean(True)
    transport._send_user_message(question)  # type: ignore[attr-defined]  # the stubs leave it out
    deadline = time.monotonic() + PASSED_WITHIN_S
    while transport.is_active() and not answered.wait(0.1) and time.monotonic() < deadline:
        pass


def _was_dropped(error: BaseException) -> bool:
    """Whether the server closed before it had agreed on keys. paramiko says it with the error that it caught."""
    while not isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError)):
        if error.__context__ is None:
            return False
        error = error.__context__
    return True
