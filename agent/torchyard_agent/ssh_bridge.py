"""The bridge at the host's end of the SSH channel.

It relays bytes to the daemon, which it starts if none is running.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Callable

from torchyard_agent import __version__, installed_version
from torchyard_agent.peer_credentials import peer_uid
from torchyard_agent.protocol import paths

CHUNK = 1 << 18
"""Maximum number of bytes that are relayed at once."""
START_DEADLINE_S = 10.0
"""Time limit in seconds for a daemon to start, or for another daemon to exit."""
POLL_S = 0.02

Settle = Callable[[], None]
"""A function that unpacks the archive if the agent runs from memory."""


def main(agent_dir: str, sha256: str, answer: Callable[[dict[str, object]], None], settle: Settle, by: str = "") -> int:
    """Relays bytes until the desktop or the daemon disconnects.

    Args:
        answer: Sends a line to the desktop before the relay begins.
        settle: Unpacks the archive if the agent runs from memory.
        by: The name of the desktop's user.
    """
    address = paths.daemon_socket(agent_dir, os.getuid())
    start_error = _StartError()
    try:
        daemon = _connect_to_daemon(address, agent_dir, sha256, settle, by, start_error)
        with contextlib.suppress(OSError):
            # The modification time tells garbage collection when the archive was last used.
            os.utime(paths.archive_dir(agent_dir, sha256))
    except OSError as error:
        answer({"error": f"the agent could not be started: {error}", "folder": agent_dir})
        return 1
    answer({"ready": True, "ssh_connection": os.environ.get("SSH_CONNECTION", "")})
    # When a daemon exits, the connections that it has not accepted are reset.
    with contextlib.suppress(ConnectionError):
        relay(daemon)
    if failure := start_error.read():
        fault = {"jsonrpc": "2.0", "method": "fault", "params": {"error": failure, "folder": agent_dir}}
        with contextlib.suppress(BrokenPipeError):  # The desktop has disconnected in the meantime.
            os.write(1, json.dumps(fault).encode() + b"\n")
    return 0


class _StartError:
    """A pipe through which a daemon that fails to start reports its error.

    The daemon's log cannot be used for this, because its disk may be full.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def report(self, error: BaseException) -> None:
        """Sends an error to the bridge. Called in the daemon's process."""
        text = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        with contextlib.suppress(OSError):
            os.write(self._write, f"{text}{where}".encode("utf-8", "replace")[:1024])

    def read(self) -> str:
        """Returns the reported error, or "" if there is none."""
        try:
            return os.read(self._read, 1024).decode("utf-8", "replace")
        except BlockingIOError:
            return ""


def _connect_to_daemon(
    address: str, agent_dir: str, sha256: str, settle: Settle, by: str, start_error: _StartError
) -> socket.socket:
    """Returns a connection to the daemon for this user and agent folder, which is started if it is not running.

    If the host has a newer agent than this archive, the newer agent's daemon is started. Raises OSError if no daemon
    can be started.
    """
    newer = installed_version.newer_than(agent_dir, os.uname().nodename, __version__)
    if newer is not None:
        settle()
        with contextlib.suppress(ConnectionError):
            # If the newer daemon does not start, this archive's daemon is used.
            return _connect_to_archive(address, agent_dir, newer, start_error)
    return _retry(lambda: _connect_or_start(address, agent_dir, sha256, settle, by, start_error))


def _retry(connect: Callable[[], socket.socket]) -> socket.socket:
    """Calls `connect` until it raises no ConnectionError, because a daemon may be starting or exiting.

    Raises the last ConnectionError after START_DEADLINE_S.
    """
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            return connect()
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _connect_to_archive(address: str, agent_dir: str, sha256: str, start_error: _StartError) -> socket.socket:
    """Returns a connection to the running daemon or, if there is none, to the daemon of the archive `sha256`.

    Raises OSError if the daemon cannot be started.
    """
    with contextlib.suppress(ConnectionError):
        return _connect(address)
    _start_archive(agent_dir, sha256, start_error)
    return _retry(lambda: _connect(address))


def _connect_or_start(
    address: str, agent_dir: str, sha256: str, settle: Settle, by: str, start_error: _StartError
) -> socket.socket:
    """Returns a connection to the running daemon or, if there is none, to this archive's daemon, which is then started.

    Raises OSError if the daemon cannot be started. The daemon's socket is bound before the fork. Therefore clients need
    not wait until the daemon has started, and two concurrent bridges start only one daemon.
    """
    listener = _bind(address)
    if listener is None:
        settle()  # The running daemon may belong to another archive, in which case it would not unpack this one.
    else:
        with listener:
            _fork_daemon(listener, agent_dir, sha256, settle, by, start_error)
    return _connect(address)


def _bind(address: str) -> socket.socket | None:
    """Returns a socket that listens at the abstract address, or None if another process has bound the address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return listener


def _connect(address: str) -> socket.socket:
    """Connects to the abstract address.

    Raises:
        ConnectionError: No process listens at the address.
        PermissionError: A process of another user listens at the address.
        TimeoutError: The listening process accepts no connection within START_DEADLINE_S.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The timeout is set in the kernel. With Python's timeout, the socket would be non-blocking, and connect() would
        # fail immediately if the listen backlog is full.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *_seconds(START_DEADLINE_S)))
        try:
            client.connect(address)
        except BlockingIOError:
            raise TimeoutError(f"the process that holds the name @{address[1:]} accepts no connections") from None
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        if (uid := peer_uid(client)) != os.getuid():
            from torchyard_agent.telemetry.process_owners import user_name

            raise PermissionError(
                f"the name @{address[1:]} is held by a process of user {user_name(uid)} (UID {uid}); "
                "ask the user or the host's administrator to end it"
            )
    except OSError:
        client.close()
        raise
    return client


def _seconds(duration: float) -> tuple[int, int]:
    """Returns the seconds and microseconds of a duration, for `struct timeval`."""
    return int(duration), int(duration % 1 * 1e6)


def _fork_daemon(
    listener: socket.socket, agent_dir: str, sha256: str, settle: Settle, by: str, start_error: _StartError
) -> None:
    """Forks the daemon from this interpreter. The daemon outlives the SSH session."""
    node = os.uname().nodename

    def serve() -> int:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # Otherwise asyncio imports it, which takes 2 MB and 10 ms.
        from torchyard_agent.daemon.main import main as run

        return run(agent_dir, node, sha256, listener, settle, by)

    _detach(paths.host_dir(agent_dir, node), serve, start_error)


def _start_archive(agent_dir: str, sha256: str, start_error: _StartError) -> None:
    """Starts the daemon of another archive, as systemd would. That daemon binds its socket itself."""
    main = os.path.join(paths.archive_dir(agent_dir, sha256), "torchyard_agent", "__main__.py")
    command = [sys.executable, "-I", "-S", main, "daemon", agent_dir, sha256]
    _detach(paths.host_dir(agent_dir, os.uname().nodename), lambda: os.execv(command[0], command), start_error)


def _detach(folder: str, work: Callable[[], int], start_error: _StartError) -> None:
    """Runs `work` in a detached process, whose output is appended to `daemon.log` in `folder`.

    The process is forked twice, so its parent becomes init.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        os.setsid()
        if os.fork():
            status = 0
            return
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(os.path.join(folder, "daemon.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.close(null)
        os.close(log)
        status = work()
    except BaseException as error:
        # Any error of the forked process is reported to the bridge and logged.
        start_error.report(error)
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def run_daemon(agent_dir: str, sha256: str) -> int:
    """Runs the daemon in this process, as systemd does. Returns immediately if a daemon is already running.

    Raises PermissionError if another user has bound the daemon's address.
    """
    address = paths.daemon_socket(agent_dir, os.getuid())
    listener = _bind(address)
    if listener is None:
        with contextlib.suppress(ConnectionError):  # The other daemon is exiting, or has not yet started.
            _connect(address).close()
        return 0
    with listener:
        node = os.uname().nodename
        os.makedirs(paths.host_dir(agent_dir, node), 0o700, exist_ok=True)
        os.chdir("/")
        sys.modules["ssl"] = None  # type: ignore[assignment]  # Prevents the import by asyncio, as in _fork_daemon().
        from torchyard_agent.daemon.main import main as run

        return run(agent_dir, node, sha256, listener, lambda: None)


def relay(daemon: socket.socket) -> None:
    """Relays bytes in both directions until either end closes."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(daemon, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                data = os.read(0, CHUNK)
                if data:
                    daemon.sendall(data)
            else:
                data = daemon.recv(CHUNK)
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            if not data:
                return
