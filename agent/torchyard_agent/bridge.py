"""The host's end of the SSH channel: passes bytes between it and the daemon, which it starts where none runs."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import time
from typing import Callable

from torchyard_agent import __version__
from torchyard_agent.daemon import installed
from torchyard_agent.peers import peer_uid
from torchyard_agent.protocol import places

CHUNK = 1 << 18
"""Bytes moved at a time."""
UP_WITHIN_S = 10.0
"""So long a daemon may take to come up, or another to leave in its favour."""
LOOK_EVERY_S = 0.02

Settle = Callable[[], None]
"""Unpacks an archive that runs from memory so far."""


def main(agent_dir: str, sha256: str, say: Callable[[dict[str, object]], None], settle: Settle, by: str = "") -> int:
    """Runs until either side leaves. `say` answers the desktop, which is `by`'s, before the conversation proper."""
    address = places.daemon_socket(agent_dir, os.getuid())
    try:
        daemon = _reach(address, agent_dir, sha256, settle, by)
        with contextlib.suppress(OSError):
            os.utime(places.archive_dir(agent_dir, sha256))  # a desktop uses it: housekeeping goes by its age
    except OSError as error:
        say({"error": f"the agent could not be started: {error}", "folder": agent_dir})
        return 1
    say({"ready": True, "ssh_connection": os.environ.get("SSH_CONNECTION", "")})
    _relay(daemon)
    return 0


def _reach(address: str, agent_dir: str, sha256: str, settle: Settle, by: str) -> socket.socket:
    """A connection to the daemon of this user and agent folder. Raises OSError."""
    newer = installed.newer_than(agent_dir, os.uname().nodename, __version__)
    if newer is not None:
        settle()
        with contextlib.suppress(ConnectionError):  # it does not come up: then ours is better than none
            return _bring_up(address, agent_dir, newer)
    deadline = time.monotonic() + UP_WITHIN_S
    while True:
        try:
            return _join_or_found(address, agent_dir, sha256, settle, by)
        except ConnectionError:  # it was just leaving
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY_S)


def _bring_up(address: str, agent_dir: str, sha256: str) -> socket.socket:
    """A connection to the daemon that is there, or to that of this archive, started now. Raises ConnectionError."""
    with contextlib.suppress(ConnectionError):
        return _connect(address)
    _start_daemon_of(agent_dir, sha256)
    deadline = time.monotonic() + UP_WITHIN_S
    while True:
        try:
            return _connect(address)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY_S)


def _join_or_found(address: str, agent_dir: str, sha256: str, settle: Settle, by: str) -> socket.socket:
    """A connection to whoever serves the name; where nobody does, this archive's daemon is founded.

    The name is bound here, before the fork: whoever binds it founds the daemon, nobody waits for it to come up,
    and two desktops that arrive together start one.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        settle()  # a daemon of another archive is not going to unpack this one
    else:
        with listener:
            _found_daemon(listener, agent_dir, sha256, settle, by)
    return _connect(address)


def _connect(address: str) -> socket.socket:
    """Raises ConnectionError where nobody is there, PermissionError where it is somebody else."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(address)
    except OSError:
        client.close()
        raise
    if peer_uid(client) != os.getuid():
        client.close()
        raise PermissionError(f"another user sits on the name {address[1:]}")
    return client


def _found_daemon(listener: socket.socket, agent_dir: str, sha256: str, settle: Settle, by: str) -> None:
    """Forks the daemon off this interpreter; it outlives the SSH session."""
    node = os.uname().nodename

    def serve() -> int:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio would import it for nothing: 2 MB, 10 ms
        from torchyard_agent.daemon.main import main as run

        return run(agent_dir, node, sha256, listener, settle, by)

    _detach(places.host_dir(agent_dir, node), serve)


def _start_daemon_of(agent_dir: str, sha256: str) -> None:
    """Starts the daemon of an archive other than this one, as systemd would; it binds its name itself."""
    main = os.path.join(places.archive_dir(agent_dir, sha256), "torchyard_agent", "__main__.py")
    command = [sys.executable, "-I", "-S", main, "daemon", agent_dir, sha256]
    _detach(places.host_dir(agent_dir, os.uname().nodename), lambda: os.execv(command[0], command))


def _detach(folder: str, work: Callable[[], int]) -> None:
    """Forks a process off that does `work` as nobody's child, with its output in the host's daemon.log."""
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
    except BaseException:  # the outer edge of the forked process: into its log
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def run_daemon(agent_dir: str, sha256: str) -> int:
    """The daemon in this very process, as systemd starts it; returns at once where one runs already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            listener.bind(places.daemon_socket(agent_dir, os.getuid()))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return 0
            raise
        listener.listen(64)
        node = os.uname().nodename
        os.makedirs(places.host_dir(agent_dir, node), 0o700, exist_ok=True)
        os.chdir("/")
        sys.modules["ssl"] = None  # type: ignore[assignment]  # as above: asyncio would import it for nothing
        from torchyard_agent.daemon.main import main as run

        return run(agent_dir, node, sha256, listener, lambda: None)


def _relay(daemon: socket.socket) -> None:
    """Bytes both ways until either end closes."""
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
