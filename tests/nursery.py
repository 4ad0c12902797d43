"""Starts programs by forking a process that has imported what they need: many of them in the time of one import.

Each is a process like any other, with its own environment, folder and files; only the import is not made again.
Run as a program, with the names of the modules, it is the process that is forked: it takes orders on the socket that
is its stdin, and answers each there.
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

from tests.warm_python import Door

HUGE = 1 << 20


class Child(NamedTuple):
    """A program of a nursery. The system gives process IDs again, within minutes where there are 32768 of them: what
    is known of a child's end is filed under a number that no other child has."""

    number: int
    pid: int


class Forked:
    """A program of a nursery, to be used like a subprocess.Popen with stdout and stderr in one text."""

    def __init__(self, nursery: Nursery, child: Child, output: int) -> None:
        self.pid = child.pid
        self._child = child
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self._nursery = nursery

    @property
    def returncode(self) -> int | None:
        return self._nursery.ended.get(self._child.number)

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        self._nursery.catch_up()
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 10.0) -> tuple[str, None]:
        """What it still prints until it has ended. Raises subprocess.TimeoutExpired."""
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
        return self._nursery.wait(self._child, timeout)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            self._nursery.send_signal(self._child, number)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        self.stdout.close()


class Nursery:
    """The process that is forked, with the modules that it has imported. One test at a time uses it."""

    def __init__(self, environment: dict[str, str], *modules: str) -> None:
        self.environment = environment
        self.ended: dict[int, int] = {}
        """Exit statuses, by the children's numbers."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._born: list[Child] = []
        self._served: set[str] = set()
        self._signalled = 0
        with theirs:
            self._process = subprocess.Popen(  # type: ignore[call-overload]  # a socket has a descriptor
                [sys.executable, "-m", "tests.nursery", *modules],
                stdin=theirs,
                stdout=subprocess.DEVNULL,  # what is forked never believes that it prints on a terminal
                env=environment,
                cwd=Path(__file__).parents[1],
            )

    def start(self, *arguments: str | Path, environment: dict[str, str]) -> Forked:
        """Run a script with this environment, and no other."""
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            child = self.fork(arguments, environment, (nothing, writing, writing))
        finally:
            os.close(writing)
            os.close(nothing)
        return Forked(self, child, reading)

    def fork(
        self,
        arguments: Sequence[str | Path],
        environment: dict[str, str],
        files: tuple[int, int, int],
        folder: Path | None = None,
    ) -> Child:
        """Start a program with these stdin, stdout and stderr: a script, `-c` and a text, or `-m` and a module, with
        its arguments."""
        order = {"arguments": [str(each) for each in arguments], "environment": environment}
        if folder is not None:
            order["folder"] = str(folder)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        self._socket.sendmsg([json.dumps(order).encode()], [rights])
        self._hear(lambda: bool(self._born), 60)
        return self._born.pop()

    def serve(self, place: Path, inside: int) -> None:
        """Fork whatever is asked for at the Unix socket `place` (`tests.warm_python`), into the namespaces of process
        `inside`. Returns once somebody may ask."""
        self._socket.send(json.dumps({"serve": str(place), "inside": inside}).encode())
        self._hear(lambda: str(place) in self._served, 60)
        self._served.remove(str(place))

    def wait(self, child: Child, timeout: float) -> int:
        """The exit status of one of its programs. Raises subprocess.TimeoutExpired."""
        self._hear(lambda: child.number in self.ended, timeout)
        return self.ended[child.number]

    def send_signal(self, child: Child, number: int) -> None:
        """By the child's parent, which alone knows whether the process ID is still the child's: another program may
        have it a minute after the child's end. Returns once the signal is sent."""
        before = self._signalled
        self._socket.send(json.dumps({"signal": number, "child": child.number}).encode())
        self._hear(lambda: self._signalled > before, 60)

    def catch_up(self) -> None:
        """Take what the process has said by now."""
        while select.select([self._socket], [], [], 0)[0]:
            self._take()

    def _take(self) -> None:
        said = json.loads(self._socket.recv(HUGE) or b"{}")
        if "born" in said:
            self._born.append(Child(said["born"], said["pid"]))
        elif "served" in said:
            self._served.add(said["served"])
        elif "signalled" in said:
            self._signalled += 1
        elif "ended" in said:
            self.ended[said["ended"]] = said["code"]
        else:
            raise AssertionError("the nursery has ended")

    def _hear(self, enough: Callable[[], bool], timeout: float) -> None:
        """Take what the process says until it is enough."""
        deadline = time.monotonic() + timeout
        while not enough():
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                self._take()
            except TimeoutError:
                raise subprocess.TimeoutExpired("a program of the nursery", timeout) from None

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


def rear(modules: Sequence[str]) -> list[str]:
    """The process itself. Returns in each child, with its arguments."""
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that no child's collector writes to pages that it shares with all others
    orders = socket.socket(fileno=os.dup(0))
    waking, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    living: dict[int, int] = {}  # numbers, by process ID
    numbers = itertools.count(1)
    doors: list[Door] = []

    def leave_the_nursery() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (orders, waking, woken):
            each.close()
        for door in doors:
            door.close()

    while True:
        ready, _, _ = select.select([orders, waking, *doors], [], [])
        if waking in ready:
            waking.recv(4096)
            _bury(orders, living)
        for door in [door for door in doors if door in ready]:
            client = door.accept()
            pid = os.fork()
            if not pid:
                leave_the_nursery()
                return _become(*door.enter(client))
            client.close()
            living[pid] = next(numbers)
        if orders not in ready:
            continue
        text, rights = b"", []
        with suppress(ConnectionResetError):  # nobody has read of the last ends
            text, rights, _, _ = orders.recvmsg(HUGE, socket.CMSG_SPACE(12))
        if not text:
            for child in living:
                os.kill(child, signal.SIGKILL)
            os._exit(0)
        order = json.loads(text)
        if "signal" in order:
            for child in [pid for pid, number in living.items() if number == order["child"]]:
                os.kill(child, order["signal"])
            orders.send(json.dumps({"signalled": order["child"]}).encode())
            continue
        if "serve" in order:
            doors.append(Door(order["serve"], order["inside"]))
            orders.send(json.dumps({"served": order["serve"]}).encode())
            continue
        files = array.array("i", rights[0][2])
        pid = os.fork()
        if not pid:
            leave_the_nursery()
            return _become(order, list(files))
        for file in files:
            os.close(file)
        living[pid] = next(numbers)
        orders.send(json.dumps({"born": living[pid], "pid": pid}).encode())


def _bury(orders: socket.socket, living: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            orders.send(json.dumps({"ended": living.pop(pid), "code": code}).encode())


_FOUND_BY_US = os.environ.get("PYTHONPATH", "")
"""Where this process looks for modules; who is forked has a PYTHONPATH of its own."""


def _become(order: dict[str, Any], files: list[int]) -> list[str]:
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
    rest = [path for path in sys.path[1:] if path not in _FOUND_BY_US.split(os.pathsep)]
    sys.path[:] = [str(first.absolute()), *own, *rest]
    return arguments


def live(arguments: list[str]) -> int:
    """Runs the program, and does all that Python does when it ends but for taking a hundred megabytes of modules apart,
    which for a fork means to copy them first. The exit status."""
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
    except BaseException as error:
        code = 1
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    os._exit(live(rear(sys.argv[1:])))
