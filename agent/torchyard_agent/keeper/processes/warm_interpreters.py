"""Interpreters of ranks that are started early, and wait with torch imported for their rank.

Before a launch's end they save the time of its checks (`Keeper.warm`); while a run trains, one spare a rank saves it at
a restart. What the interpreter does is in `torchyard_agent.warm_start.sitecustomize`.

The rank runs as if it were started only now, or it is: where the environment differs in a variable that is read at the
start of the interpreter or at the import of torch, the process executes its command line anew.
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
RUNS_S = 0.02
PAUSES_S = 0.08
"""A spare imports in turns of such a length, so with at most a fifth of a core. Its priority stays: without privileges
no process can raise its priority again, and a rank must not train with a low one."""
PROVED_WITHIN_S = 1.0
"""From a rank's start: for an interpreter that has only just been started to say that it is one. It takes 0.1 s."""
FIRST_TO_KILL = 1000
"""oom_score_adj of a spare: where memory becomes short, the kernel ends it before any rank."""
_LATE = frozenset((*VARIABLES_OF_A_RANK, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))

log = logging.getLogger(__name__)
Key = tuple[str, int]
"""Replica, local rank."""


def is_set_late(name: str, secrets: Mapping[str, str]) -> bool:
    """Whether a variable may differ between an interpreter's early start and its rank's: nothing reads it before the
    script runs. Secrets are late unless their name is one that an interpreter or torch reads at its start."""
    if name in _LATE or name.startswith(("TORCHYARD_", "TORCHELASTIC_")):
        return True
    return name in secrets and not is_read_at_start(name)


class _Interpreter(NamedTuple):
    process: subprocess.Popen[bytes]
    channel: socket.socket
    argv: list[str]
    environment: dict[str, str]
    oom_score: str
    """What its oom_score_adj was."""


class WarmInterpreters:
    """The interpreters of a run on this host that wait for their rank."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Interpreter] = {}
        self._proved: set[Key] = set()
        """Whose command is known to be an interpreter that takes orders: others may only be about to end."""
        self._importing: set[Key] = set()
        self._in_vain: set[Key] = set()
        """Whose interpreter ended before it had imported: no other is started early."""
        self._slow: dict[Key, asyncio.TimerHandle] = {}
        """The turns of those that import slowly."""

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def pids(self) -> list[int]:
        """Of those that wait."""
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
        """Starts an interpreter that will execute `argv` in `folder`; one that cannot be started is left out.

        `environment`: the rank's as far as it is known, with a PYTHONPATH. `spare`: it imports slowly, beside a run
        that trains, and is the first to go where memory becomes short.
        """
        if key in self._waiting or key in self._in_vain:
            return
        try:
            started = self._execute(argv, environment, folder, imports)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.info("%s: no interpreter is started early: %s", key[0], error)
            return
        process, channel = started
        oom_score = _set_oom_score(process.pid, str(FIRST_TO_KILL)) if spare else ""
        self._waiting[key] = _Interpreter(process, channel, list(argv), dict(environment), oom_score)
        self._importing.add(key)
        asyncio.get_running_loop().add_reader(channel, self._hear, key)
        if spare:
            self._turn(key, signal.SIGCONT)

    @staticmethod
    def _execute(
        argv: Sequence[str], environment: Mapping[str, str], folder: str, imports: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """The process, and this keeper's end of the channel to it. Raises what cannot be started."""
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
                    preexec_fn=partial(_in_the_child, os.getpid()),
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return process, ours

    @property
    def are_ready(self) -> bool:
        """Whether each has imported all that it was to, or has ended."""
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
        """The rank's process, where one waits for it; None where a new one has to be started."""
        known = self._waiting.get(key)
        if known is None:
            return None
        if known.process.poll() is not None:
            self._forget_the_dead(key)
            return None
        if key not in self._proved:
            self._full_speed(key)
            select.select([known.channel], [], [], PROVED_WITHIN_S)
            self._hear(key)
        if key not in self._proved:
            if key in self._waiting:
                self._kill(known)
                self._forget(key)
            return None
        changed = {
            name for name in {*environment, *known.environment} if environment.get(name) != known.environment.get(name)
        }
        anew = known.argv != list(argv) or not all(is_set_late(name, secrets) for name in changed)
        self._full_speed(key)
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
            self._kill(known)
            self._forget(key)
            return None
        self._forget(key)
        return known.process

    def on_reaped(self, pid: int) -> None:
        """A child of this process has ended: an interpreter that waited is not handed a rank any more."""
        for key, known in list(self._waiting.items()):
            if known.process.pid == pid:
                known.process.returncode = 0
                self._forget_the_dead(key)

    def reap(self) -> None:
        """The same for all of them, where no other part of the keeper waits for children."""
        for key, known in list(self._waiting.items()):
            if known.process.poll() is not None:
                self._forget_the_dead(key)

    def _forget_the_dead(self, key: Key) -> None:
        log.info("%s, local rank %d: the interpreter that was started early has ended", *key)
        self._forget(key)

    def close(self) -> list[int]:
        """Kills those that wait. Returns their PIDs, of children that are yet to be reaped."""
        killed = self.pids()
        for key, known in list(self._waiting.items()):
            self._kill(known)
            self._forget(key)
        return killed

    @staticmethod
    def _kill(known: _Interpreter) -> None:
        process_control.send_group(known.process.pid, signal.SIGKILL)
        known.process.returncode = -signal.SIGKILL  # its status is the keeper's to take, not Popen's

    def _hear(self, key: Key) -> None:
        """It takes orders, has imported all that it was to, or has ended; or it has not said anything yet."""
        known = self._waiting[key]
        word = b""
        try:
            word = known.channel.recv(2)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        if word:
            self._proved.add(key)
            if not word.endswith(b"+"):
                return
        asyncio.get_running_loop().remove_reader(known.channel)
        self._full_speed(key)
        self._importing.discard(key)
        if word:
            return
        self._kill(known)
        self._in_vain.add(key)
        self._forget_the_dead(key)

    def _turn(self, key: Key, number: signal.Signals) -> None:
        process_control.send_group(self._waiting[key].process.pid, number)
        runs = number == signal.SIGCONT
        following = signal.SIGSTOP if runs else signal.SIGCONT
        loop = asyncio.get_running_loop()
        self._slow[key] = loop.call_later(RUNS_S if runs else PAUSES_S, self._turn, key, following)

    def _full_speed(self, key: Key) -> None:
        timer = self._slow.pop(key, None)
        if timer is not None:
            timer.cancel()
            process_control.send_group(self._waiting[key].process.pid, signal.SIGCONT)

    def _forget(self, key: Key) -> None:
        timer = self._slow.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._importing.discard(key)
        self._proved.discard(key)
        known = self._waiting.pop(key)
        with contextlib.suppress(RuntimeError):  # no loop runs any more
            asyncio.get_running_loop().remove_reader(known.channel)
        known.channel.close()


def _anonymous_file() -> IO[bytes]:
    """A file without a name, in memory where Python was built for that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("torchyard"), "w+b")
    import tempfile  # seldom needed

    return tempfile.TemporaryFile()


def _in_the_child(keeper: int) -> None:
    process_control.die_with(keeper)
    process_control.start_clean()


def _set_oom_score(pid: int, score: str) -> str:
    """What it was; empty where it could not be set."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "r+", encoding="ascii") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(score)
    except OSError:
        return ""
    return before
