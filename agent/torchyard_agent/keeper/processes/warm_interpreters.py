"""Interpreters that are started early. They import modules such as torch, and then wait until their rank must start.

They are started while a launch is checked (`Keeper.warm`) and, while a run trains, as one spare per rank for a restart.
The code that runs in the interpreter is `torchyard_agent.warm_start.sitecustomize`.

A rank behaves as if its interpreter were started only when the rank starts: if the value of a variable that Python
reads at its start, or that torch reads during its import, has changed, the process executes its command line again.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, BinaryIO, NamedTuple

from torchyard_agent import umask
from torchyard_agent.keeper.processes import process_control
from torchyard_agent.keeper.processes.cgroup import Cgroup
from torchyard_agent.protocol.rank_environment import VARIABLES_OF_A_RANK, is_read_at_start

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "warm_start")
VARIABLE = "TORCHYARD_WARM_START"
NO_INTERPRETER = 97
SLICE_S = 0.02
PAUSE_S = 0.08
"""Pause in seconds after each SLICE_S of a spare's imports. A spare therefore uses at most a fifth of a core.

The priority of a spare is not lowered, because raising it again for the rank would require privileges.
"""
CONFIRM_TIMEOUT_S = 1.0
"""Time limit in seconds, from the rank's start, for its interpreter to confirm that it accepts orders.

The confirmation usually takes 0.1 s.
"""
SPARE_OOM_SCORE = 1000
"""The oom_score_adj of a spare. If memory is short, the kernel kills a spare rather than a rank."""
_LATE = frozenset((*VARIABLES_OF_A_RANK, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))

log = logging.getLogger(__name__)
Key = tuple[str, int]
"""A rank of this host, as (replica, local rank)."""


def is_set_late(name: str, secrets: Mapping[str, str]) -> bool:
    """Returns whether an environment variable may be set after the interpreter has started.

    This is the case if only the script reads it. A secret may be set unless Python reads the variable when it starts,
    or torch when it is imported.
    """
    if name in _LATE or name.startswith(("TORCHYARD_", "TORCHELASTIC_")):
        return True
    return name in secrets and not is_read_at_start(name)


class _Interpreter(NamedTuple):
    process: subprocess.Popen[bytes]
    channel: socket.socket
    argv: list[str]
    environment: dict[str, str]
    oom_score: str
    """The original oom_score_adj of the process, or "" if it was not changed."""


class WarmInterpreters:
    """The interpreters of a run that were started early on this host and wait for the start of their ranks."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Interpreter] = {}
        self._confirmed: set[Key] = set()
        """Ranks whose waiting interpreter has confirmed that it accepts orders."""
        self._importing: set[Key] = set()
        self._failed: set[Key] = set()
        """Ranks whose interpreter exited during its imports. No other interpreter is started early for them."""
        self._throttled: dict[Key, asyncio.TimerHandle] = {}
        """The timers that stop and continue spares during their imports."""

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def pids(self) -> list[int]:
        """Returns the PIDs of the waiting interpreters."""
        return [interpreter.process.pid for interpreter in self._waiting.values()]

    def start(
        self,
        key: Key,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        imports: Sequence[str],
        *,
        spare: bool,
    ) -> None:
        """Starts an interpreter that will execute `argv` in `folder`. Errors are logged.

        Has no effect if an interpreter is already waiting for the rank, or an earlier one has failed.

        Args:
            environment: The rank's environment as far as it is known. It must contain PYTHONPATH.
            spare: Whether the interpreter is a spare. A spare imports slowly, which avoids disturbing the training. It
                is the first process that the kernel kills if memory is short.
        """
        if key in self._waiting or key in self._failed:
            return
        try:
            started = self._execute(argv, environment, folder, imports)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.info("%s: no interpreter is started early: %s", key[0], error)
            return
        process, channel = started
        oom_score = _set_oom_score(process.pid, str(SPARE_OOM_SCORE)) if spare else ""
        self._waiting[key] = _Interpreter(process, channel, list(argv), dict(environment), oom_score)
        self._importing.add(key)
        asyncio.get_running_loop().add_reader(channel, self._on_channel, key)
        if spare:
            self._alternate(key, signal.SIGCONT)

    @staticmethod
    def _execute(
        argv: Sequence[str], environment: Mapping[str, str], folder: str, imports: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Starts an interpreter, and returns its process and this keeper's end of the channel to it.

        Raises OSError, ValueError or SubprocessError if this fails.
        """
        ours, theirs = socket.socketpair()
        try:
            order = {"channel": theirs.fileno(), "argv": list(argv), "imports": list(imports)}
            path = os.pathsep.join((FOLDER, environment["PYTHONPATH"]))
            with _anonymous_file() as output:
                process = subprocess.Popen(
                    [argv[0], "-c", f"raise SystemExit({NO_INTERPRETER})"],
                    env={**environment, VARIABLE: json.dumps(order), "PYTHONPATH": path},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    umask=umask.of_login(),
                    preexec_fn=partial(_prepare_child, os.getpid()),
                )
        except BaseException:  # The channel is also closed after KeyboardInterrupt or SystemExit.
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return process, ours

    @property
    def are_ready(self) -> bool:
        """Whether all interpreters have finished their imports or have exited."""
        return not self._importing

    def hand_over(
        self,
        key: Key,
        argv: Sequence[str],
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        output: BinaryIO,
        cgroup: Cgroup | None,
    ) -> subprocess.Popen[bytes] | None:
        """Assigns the waiting interpreter to its rank. Returns its process, or None if the rank needs a new process."""
        known = self._waiting.get(key)
        if known is None:
            return None
        if known.process.poll() is not None:
            self._on_ended(key)
            return None
        if key not in self._confirmed:
            self._end_throttling(key)
            select.select([known.channel], [], [], CONFIRM_TIMEOUT_S)
            self._on_channel(key)
        if key not in self._confirmed:
            if key in self._waiting:
                self._discard(key)
            return None
        changed = {
            name for name in {*environment, *known.environment} if environment.get(name) != known.environment.get(name)
        }
        anew = known.argv != list(argv) or not all(is_set_late(name, secrets) for name in changed)
        self._end_throttling(key)
        if known.oom_score:
            _set_oom_score(known.process.pid, known.oom_score)
        if cgroup is not None:
            cgroup.join(key[0], known.process.pid)
        orders = {"environment": dict(environment), "argv": list(argv), "anew": anew}
        try:
            with _anonymous_file() as file:
                file.write(json.dumps(orders).encode())
                file.flush()
                files = array.array("i", (file.fileno(), output.fileno()))
                known.channel.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        except OSError as error:
            log.info("%s: the interpreter that was started early does not answer: %s", key[0], error)
            self._discard(key)
            return None
        self._forget(key)
        return known.process

    def on_reaped(self, pid: int) -> None:
        """Removes the interpreter with this PID, if there is one.

        Called after the process has exited and been reaped.
        """
        for key, known in list(self._waiting.items()):
            if known.process.pid == pid:
                known.process.returncode = 0
                self._on_ended(key)

    def reap(self) -> None:
        """Removes all interpreters that have exited.

        Called only until the rank supervisor exists, because the supervisor then reaps all children.
        """
        for key, known in list(self._waiting.items()):
            if known.process.poll() is not None:
                self._on_ended(key)

    def _on_ended(self, key: Key) -> None:
        log.info("%s, local rank %d: the interpreter that was started early has ended", *key)
        self._forget(key)

    def close(self) -> list[int]:
        """Kills all waiting interpreters. Returns their PIDs. The caller must reap these processes."""
        killed = self.pids()
        for key in list(self._waiting):
            self._discard(key)
        return killed

    def _discard(self, key: Key) -> None:
        process = self._waiting[key].process
        process_control.send_group(process.pid, signal.SIGKILL)
        # Another part of the keeper reaps this process, so Popen must not wait for it.
        process.returncode = -signal.SIGKILL
        self._forget(key)

    def _on_channel(self, key: Key) -> None:
        """Reads a message from an interpreter, if one has arrived.

        The interpreter reports that it accepts orders, and later that it has finished its imports. If the channel is
        closed, the interpreter has exited.
        """
        known = self._waiting[key]
        word = b""
        try:
            word = known.channel.recv(2)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        if word:
            self._confirmed.add(key)
            if not word.endswith(b"+"):
                return
        asyncio.get_running_loop().remove_reader(known.channel)
        self._end_throttling(key)
        self._importing.discard(key)
        if word:
            return
        self._failed.add(key)
        log.info("%s, local rank %d: the interpreter that was started early has ended", *key)
        self._discard(key)

    def _alternate(self, key: Key, number: signal.Signals) -> None:
        process_control.send_group(self._waiting[key].process.pid, number)
        runs = number == signal.SIGCONT
        following = signal.SIGSTOP if runs else signal.SIGCONT
        loop = asyncio.get_running_loop()
        self._throttled[key] = loop.call_later(SLICE_S if runs else PAUSE_S, self._alternate, key, following)

    def _end_throttling(self, key: Key) -> None:
        timer = self._throttled.pop(key, None)
        if timer is not None:
            timer.cancel()
            process_control.send_group(self._waiting[key].process.pid, signal.SIGCONT)

    def _forget(self, key: Key) -> None:
        timer = self._throttled.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._importing.discard(key)
        self._confirmed.discard(key)
        known = self._waiting.pop(key)
        with contextlib.suppress(RuntimeError):  # The event loop may already be closed.
            asyncio.get_running_loop().remove_reader(known.channel)
        known.channel.close()


def _anonymous_file() -> IO[bytes]:
    """Opens a file without a name, in memory if this Python supports that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("torchyard"), "w+b")
    import tempfile  # The module is imported here because only Python versions without memfd_create need it.

    return tempfile.TemporaryFile()


def _prepare_child(keeper: int) -> None:
    process_control.die_with(keeper)
    process_control.start_clean()


def _set_oom_score(pid: int, score: str) -> str:
    """Sets oom_score_adj of a process. Returns the previous value, or "" if it could not be set."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "r+", encoding="ascii") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(score)
    except OSError:
        return ""
    return before
