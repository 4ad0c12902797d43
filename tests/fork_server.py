"""A fork server: starts programs by forking a process that has imported their modules.

Forking saves each program the time of the imports. Each program is a separate process with its own environment,
working directory and files. `python -m tests.fork_server MODULE...` is the server itself: its stdin is a socket, on
which it receives orders and answers them.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.warm_python import HostListener

LARGEST_MESSAGE = 1 << 20


class Child(NamedTuple):
    """A program that the server forked. Its number is unique, but its PID may be reused within minutes."""

    number: int
    pid: int


class ForkedProcess:
    """A forked program, with some methods of subprocess.Popen. stdout and stderr are one stream."""

    def __init__(self, fork_server: ForkServer, child: Child, output: int) -> None:
        self.pid = child.pid
        self._child = child
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self._fork_server = fork_server

    @property
    def returncode(self) -> int | None:
        return self._fork_server.ended.get(self._child.number)

    def poll(self) -> int | None:
        """Returns the exit status, or None if the program is still running."""
        self._fork_server.receive_pending()
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 10.0) -> tuple[str, None]:
        """Waits until the program exits; returns its remaining output and None. Raises subprocess.TimeoutExpired."""
        found: list[str] = []
        reading = threading.Thread(target=lambda: found.append(self.stdout.read()), daemon=True)
        deadline = time.monotonic() + timeout
        reading.start()
        reading.join(timeout)
        if reading.is_alive():
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        self.wait(max(1.0, deadline - time.monotonic()))
        return found[0], None

    def wait(self, timeout: float = 10.0) -> int:
        return self._fork_server.wait(self._child, timeout)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            self._fork_server.send_signal(self._child, number)

    def close(self) -> None:
        """Kills the program unless it has exited."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        self.stdout.close()


class ForkServer:
    """The client of a fork server that has imported `modules`, for one test at a time."""

    def __init__(self, environment: dict[str, str], *modules: str) -> None:
        self.environment = environment
        self.ended: dict[int, int] = {}
        """Exit statuses, by the children's numbers."""
        self._socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forked: list[Child] = []
        self._listening: set[str] = set()
        self._signalled = 0
        with child_end:
            self._process = subprocess.Popen(  # type: ignore[call-overload]  # Popen accepts a socket, because it has a file descriptor.
                [sys.executable, "-m", "tests.fork_server", *modules],
                stdin=child_end,
                # The server's output is not a terminal, so forked programs see no terminal.
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=Path(__file__).parents[1],
            )

    def start(self, *arguments: str | Path, environment: dict[str, str]) -> ForkedProcess:
        """Starts a program with exactly this environment; see `fork` for the arguments."""
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            child = self.fork(arguments, environment, (nothing, writing, writing))
        finally:
            os.close(writing)
            os.close(nothing)
        return ForkedProcess(self, child, reading)

    def fork(
        self,
        arguments: Sequence[str | Path],
        environment: dict[str, str],
        files: tuple[int, int, int],
        folder: Path | None = None,
    ) -> Child:
        """Starts a program.

        Args:
            arguments: A script, `-c` and a text, or `-m` and a module; then the program's arguments.
            environment: The program's complete environment.
            files: Descriptors of its stdin, stdout and stderr.
            folder: Its working directory.
        """
        order = {"arguments": [str(each) for each in arguments], "environment": environment}
        if folder is not None:
            order["folder"] = str(folder)
        ancillary = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        self._socket.sendmsg([json.dumps(order).encode()], [ancillary])
        self._receive_until(lambda: bool(self._forked), 60)
        return self._forked.pop()

    def serve(self, path: Path, namespaces_of: int | None = None) -> None:
        """Forks programs for clients of the Unix socket `path`, in a process's namespaces if given; see
        `tests.warm_python`.

        Returns once clients can connect.
        """
        self._socket.send(json.dumps({"serve": str(path), "inside": namespaces_of}).encode())
        self._receive_until(lambda: str(path) in self._listening, 60)
        self._listening.remove(str(path))

    def wait(self, child: Child, timeout: float) -> int:
        """Waits for a forked program; returns its exit status. Raises subprocess.TimeoutExpired."""
        self._receive_until(lambda: child.number in self.ended, timeout)
        return self.ended[child.number]

    def send_signal(self, child: Child, number: int) -> None:
        """Makes the server send a signal; returns once the signal has been sent.

        Only the server, as the parent process, knows whether the PID still belongs to the child.
        """
        before = self._signalled
        self._socket.send(json.dumps({"signal": number, "child": child.number}).encode())
        self._receive_until(lambda: self._signalled > before, 60)

    def receive_pending(self) -> None:
        """Handles the messages that have arrived."""
        while select.select([self._socket], [], [], 0)[0]:
            self._receive()

    def _receive(self) -> None:
        message = json.loads(self._socket.recv(LARGEST_MESSAGE) or b"{}")
        if "born" in message:
            self._forked.append(Child(message["born"], message["pid"]))
        elif "served" in message:
            self._listening.add(message["served"])
        elif "signalled" in message:
            self._signalled += 1
        elif "ended" in message:
            self.ended[message["ended"]] = message["code"]
        else:
            raise AssertionError("the fork server has ended")

    def _receive_until(self, done: Callable[[], bool], timeout: float) -> None:
        """Handles messages until `done` returns true."""
        deadline = time.monotonic() + timeout
        while not done():
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                self._receive()
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked program", timeout) from None

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


def serve_orders(modules: Sequence[str]) -> list[str]:
    """Runs the server's loop. The function returns only in a forked child, with the child's arguments."""
    gc.disable()  # The garbage collector would take a fifth of the time of the imports.
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()  # The garbage collector of a child does not touch frozen objects, so their memory pages stay shared.
    orders = socket.socket(fileno=os.dup(0))
    wake_up, wake_up_writer = socket.socketpair()
    wake_up_writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_up_writer.fileno(), warn_on_full_buffer=False)
    children: dict[int, int] = {}  # The numbers of the children by PID.
    numbers = itertools.count(1)
    listeners: list[HostListener] = []

    def close_server_files() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (orders, wake_up, wake_up_writer):
            each.close()
        for listener in listeners:
            listener.close()

    while True:
        ready, _, _ = select.select([orders, wake_up, *listeners], [], [])
        if wake_up in ready:
            wake_up.recv(4096)
            _reap(orders, children)
        for listener in [listener for listener in listeners if listener in ready]:
            client = listener.accept()
            pid = os.fork()
            if not pid:
                close_server_files()
                return _prepare_child(*listener.enter(client))
            client.close()
            children[pid] = next(numbers)
        if orders not in ready:
            continue
        text, ancillary = b"", []
        with suppress(ConnectionResetError):  # The client has closed the connection without reading all messages.
            text, ancillary, _, _ = orders.recvmsg(LARGEST_MESSAGE, socket.CMSG_SPACE(12))
        if not text:
            for child in children:
                os.kill(child, signal.SIGKILL)
            os._exit(0)
        order = json.loads(text)
        if "signal" in order:
            for child in [pid for pid, number in children.items() if number == order["child"]]:
                os.kill(child, order["signal"])
            orders.send(json.dumps({"signalled": order["child"]}).encode())
            continue
        if "serve" in order:
            listeners.append(HostListener(order["serve"], order["inside"]))
            orders.send(json.dumps({"served": order["serve"]}).encode())
            continue
        files = array.array("i", ancillary[0][2])
        pid = os.fork()
        if not pid:
            close_server_files()
            return _prepare_child(order, list(files))
        for file in files:
            os.close(file)
        children[pid] = next(numbers)
        orders.send(json.dumps({"born": children[pid], "pid": pid}).encode())


def _reap(orders: socket.socket, children: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            orders.send(json.dumps({"ended": children.pop(pid), "code": code}).encode())


_OWN_PYTHONPATH = os.environ.get("PYTHONPATH", "")
"""The server's PYTHONPATH. Forked programs remove it from `sys.path`, because they have their own."""


def _prepare_child(order: dict[str, Any], files: list[int]) -> list[str]:
    for target, source in enumerate(files):
        os.dup2(source, target)
    for source in files:
        os.close(source)
    os.environ.clear()
    os.environ.update(order["environment"])
    arguments: list[str] = order["arguments"]
    if "folder" in order:
        os.chdir(order["folder"])
    first = Path() if arguments[0].startswith("-") else Path(arguments[0]).parent
    own = [path for path in order["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    rest = [path for path in sys.path[1:] if path not in _OWN_PYTHONPATH.split(os.pathsep)]
    sys.path[:] = [str(first.absolute()), *own, *rest]
    return arguments


def run_program(arguments: list[str]) -> int:
    """Runs the program; returns its exit status.

    Shuts Python down, but does not unload modules, because that would copy a hundred megabytes of shared memory pages.
    """
    code = 0
    try:
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        elif arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # Every exception is printed, as in a new interpreter.
        code = 1
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]  # The private function has no type stub.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    os._exit(run_program(serve_orders(sys.argv[1:])))
