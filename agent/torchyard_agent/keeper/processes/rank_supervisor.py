"""This host's part of a run: starts, watches and ends its ranks as the primary says, and tells what happens.

What the primary says: `share` (the replicas here), `take_gpus` (a scheduled run's time has come), `go`, `start` (a
gang's next generation), `end` (replicas, grace_s), `clear` (what ended ranks left behind), `sweep` (grace_s). What is
told: `joined`, `has_gpus`, `gpus_held`, `spawned`, `failed`, `ended`, `cleared`, `gone`, `stuck`, `report`. The same
words whether the primary is this keeper or one at the other end of the gang link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any, Callable

from torchyard_agent.keeper import notify_command
from torchyard_agent.keeper.metrics_receiver import Latest
from torchyard_agent.keeper.processes import failure_diagnosis, orphans, process_control, rank_process
from torchyard_agent.keeper.processes.cgroup import Cgroup
from torchyard_agent.keeper.processes.gpu_acquisition import Taking
from torchyard_agent.keeper.processes.orphans import still_on_gpus
from torchyard_agent.keeper.processes.rank_process import CannotStart, Rank, RunPlace
from torchyard_agent.keeper.processes.warm_interpreters import WarmStart
from torchyard_agent.keeper.resources import in_a_thread
from torchyard_agent.keeper.timeouts import Patience
from torchyard_agent.protocol.messages import RankShare, ReplicaShare

Message = dict[str, Any]

REPORT_EVERY_S = 1.0
"""A replica's numbers are passed on this often at most; its first step at once."""
LOOK_EVERY_S = 0.05
"""While sweeping: orphans of orphans are found by looking again."""
LOOK_FOR_SPARES_EVERY_S = 1.0
"""While spares are being started: the next one begins when the last one has imported all that it was to."""
LOOK_AT_GPUS_EVERY_S = 0.25
"""From SIGKILL: what is still there then hangs in the kernel, and people are told."""

log = logging.getLogger(__name__)


class Share:
    """The ranks of this host. Every rank, and every orphan below them, is a child of this process."""

    def __init__(
        self,
        place: RunPlace,
        tell: Callable[[Message], None],
        cgroup: Cgroup | None = None,
        exchange_key: bytes = b"",
        stuck_after_s: float = Patience().stuck_after_s,
        warm: WarmStart | None = None,
        spares_after_s: float = Patience().spares_after_s,
    ):
        self.tell = tell
        self.reports = Latest(set())
        self.taking: Taking | None = None
        """Takes the GPUs of a run that was scheduled."""
        self.place = place
        self._cgroup = cgroup
        self._exchange_key = exchange_key
        self._stuck_after_s = stuck_after_s
        self._warm = warm or WarmStart()
        self._spares_after_s = spares_after_s
        self._spare_imports: list[str] = []
        """What spare interpreters import; empty where there are none."""
        self._max_restarts = 0
        self._spares_timer: asyncio.TimerHandle | None = None
        self._replicas: dict[str, ReplicaShare] = {}
        self._setup: list[str] = []
        self._secrets: dict[str, str] = {}
        self._live: dict[int, Rank] = {}
        self._codes: dict[str, int] = {}
        self._asked: set[str] = set()
        self._terminated: set[int] = set()
        self._stuck: set[int] = set()
        """Ranks that people were told of, since nothing ends them."""
        self._ended: set[int] = set()
        """PIDs of this run that were ended or have ended here."""
        self._oom_kills = 0
        self._late: dict[str, asyncio.TimerHandle] = {}
        self._reported: set[str] = set()
        self._sessions: dict[str, set[int]] = {}
        """By replica: the sessions that the ranks of its last generation led."""
        self._errands: set[int] = set()
        """Notifications under way: below this process, and no part of any replica."""
        self._clearing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._kill_at = 0.0
        self._changed = asyncio.Event()

    def say(self, message: Message) -> None:
        """To whoever is the primary now."""
        self.tell(message)

    def obey(self, message: Message) -> None:
        """Does what the primary says."""
        say = message["say"]
        if say == "share":
            self._take(message)
        elif say == "go":
            self._go()
        elif say == "take_gpus":
            self._take_gpus(bool(message["only_if_idle"]))
        elif say == "start":
            self._start_generation(message["replicas"])
        elif say == "clear":
            self._clear(message)
        elif say == "end":
            self.end(set(message["replicas"]), message["grace_s"])
        elif say == "sweep":
            self.sweep(message["grace_s"])
        else:
            raise ValueError(f"the primary said {say!r}, which this keeper does not know")

    @property
    def names(self) -> set[str]:
        return set(self._replicas)

    def pids(self) -> dict[str, list[int]]:
        """The ranks that live, by replica."""
        found: dict[str, list[int]] = {}
        for rank in self._live.values():
            found.setdefault(rank.replica, []).append(rank.pid)
        return found

    def _take(self, message: Message) -> None:
        self._replicas = {replica["name"]: replica for replica in message["replicas"]}
        self._setup, self._secrets = message["setup"], message["secrets"]
        self._spare_imports, self._max_restarts = message.get("spare_imports") or [], message.get("max_restarts", 0)
        self.reports = Latest(set(self._replicas))
        self._oom_kills = failure_diagnosis.oom_kills()  # a host that is lost before `go` never has it
        self.tell({"say": "joined"})

    def _take_gpus(self, only_if_idle: bool) -> None:
        if self.taking is None:
            self.tell({"say": "has_gpus"})
        else:
            self.taking.begin(only_if_idle)

    def _go(self) -> None:
        self._oom_kills = failure_diagnosis.oom_kills()
        for replica in self._replicas.values():
            self._start(replica)
        self._await_stability()

    def _start_generation(self, replicas: list[ReplicaShare]) -> None:
        for replica in replicas:
            name = replica["name"]
            self._replicas[name] = replica
            self._codes.pop(name, None)
            self._asked.discard(name)
            self._sessions.pop(name, None)
            self._reported.discard(name)
            self.reports.forget(name)
        for replica in replicas:
            self._start(replica)
        self._await_stability()

    def _start(self, replica: ReplicaShare) -> None:
        name = replica["name"]
        for rank in replica["ranks"]:
            try:
                known = self._setup, self._secrets, self._cgroup, self._exchange_key, self._warm
                started = rank_process.spawn(self.place, name, rank, *known)
            except CannotStart as problem:
                log.warning("%s: %s", name, problem)
                self._codes[name] = problem.code
                failed = {"say": "failed", "replica": name, "exit_code": problem.code, "cause": str(problem)}
                self.tell({**failed, "curable": False})
                break
            self._live[started.pid] = started
            self._sessions.setdefault(name, set()).add(started.pid)
        else:
            self.tell({"say": "spawned", "replica": name})
        self._tell_if_ended(name)

    def _await_stability(self) -> None:
        """Spares are started once no rank of this host was started for a while."""
        if self._spares_timer is not None:
            self._spares_timer.cancel()
        if self._spare_imports:
            self._spares_timer = asyncio.get_running_loop().call_later(self._spares_after_s, self._start_spare)

    def _start_spare(self) -> None:
        """One at a time, for live ranks that may start again."""
        loop = asyncio.get_running_loop()
        missing = [
            rank
            for rank in self._live.values()
            if (rank.replica, rank.local_rank) not in self._warm and rank.replica not in self._asked
            if self._replicas[rank.replica]["generation"] < self._max_restarts
        ]
        if self._warm.are_ready and missing:
            key = (missing[0].replica, missing[0].local_rank)
            share = self._rank_share(missing[0])
            variables = rank_process.environment(os.environ, self.place, key[0], share, {})
            self._warm.start(key, share["argv"], variables, self.place.work, self._spare_imports, spare=True)
            if key not in self._warm:  # no interpreter that can be started early
                return
        elif self._warm.are_ready:
            log.info("a spare interpreter waits for each rank")
            return
        self._spares_timer = loop.call_later(LOOK_FOR_SPARES_EVERY_S, self._start_spare)

    def reap(self) -> bool:
        """Takes the exit status of every child that has ended, adopted ones included. Called on SIGCHLD.

        Returns whether there are other children still.
        """
        self._changed.set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._terminated.discard(pid)
            self._ended.add(pid)
            self._errands.discard(pid)
            self._warm.on_reaped(pid)
            rank = self._live.pop(pid, None)
            if rank is not None:
                rank.process.returncode = os.waitstatus_to_exitcode(status)
                self._on_rank_end(rank, rank.process.returncode)

    def _on_rank_end(self, rank: Rank, code: int) -> None:
        name = rank.replica
        log.info("%s, local rank %d, pid %d ended with %d", name, rank.local_rank, rank.pid, code)
        if code != 0 and name not in self._codes:
            self._codes[name] = code
            if name not in self._asked:
                self._tell_failure(rank, code)
        self._tell_if_ended(name)

    def _tell_failure(self, rank: Rank, code: int) -> None:
        out_of_memory = code == -signal.SIGKILL and failure_diagnosis.oom_kills() > self._oom_kills
        share = self._rank_share(rank)
        cause = rank_process.cause_of(self.place, rank.replica, share, self._setup, code, out_of_memory=out_of_memory)
        several = len(self._replicas[rank.replica]["ranks"]) > 1
        self.tell(
            {
                "say": "failed",
                "replica": rank.replica,
                "exit_code": code,
                "cause": f"local rank {rank.local_rank} {cause.text}" if several else cause.text,
                "consequence": cause.consequence,
                "curable": cause.curable,
            }
        )

    def _rank_share(self, rank: Rank) -> RankShare:
        shares = self._replicas[rank.replica]["ranks"]
        return next(share for share in shares if share["local_rank"] == rank.local_rank)

    def _tell_if_ended(self, name: str) -> None:
        if not any(rank.replica == name for rank in self._live.values()):
            self._report_now(name)
            self.tell({"say": "ended", "replica": name, "exit_code": self._codes.get(name, 0)})

    def run_errand(self, command: str, state: str, reason: str) -> None:
        """Starts the user's notification and leaves it to itself."""
        process = notify_command.start(command, self.place, state, reason)
        if process is not None:
            self._errands.add(process.pid)
            process.returncode = 0  # it is reaped here like every other child

    def end(self, names: set[str], grace_s: float) -> None:
        """SIGTERM to the process groups of the replicas' ranks, SIGKILL to their trees `grace_s` later."""
        self._asked |= names
        asked = [rank for rank in self._live.values() if rank.replica in names]
        if grace_s > 0:
            for rank in asked:
                self._terminated |= {rank.pid, *process_control.descendants(rank.pid)}
                process_control.send_group(rank.pid, signal.SIGTERM)
                process_control.send_group(rank.pid, signal.SIGCONT)
            asyncio.get_running_loop().call_later(grace_s, self._kill, asked)
        else:
            self._kill(asked)

    def _kill(self, asked: list[Rank]) -> None:
        """Kills those of these ranks that are still there; by now their replicas may have new ones."""
        for rank in asked:
            if self._live.get(rank.pid) is not rank:
                continue
            for pid in (rank.pid, *process_control.descendants(rank.pid)):
                process_control.send(pid, signal.SIGKILL)
            process_control.send_group(rank.pid, signal.SIGKILL)
            if self._cgroup is not None:
                self._cgroup.kill([rank.replica])
        asyncio.get_running_loop().call_later(self._stuck_after_s, self._tell_who_stays, asked)

    def _tell_who_stays(self, asked: list[Rank]) -> None:
        """Names those of these ranks that outlive SIGKILL: the kernel keeps them, for a dead disk or NFS server."""
        left = [rank.pid for rank in asked if self._live.get(rank.pid) is rank and rank.pid not in self._stuck]
        self._stuck.update(left)
        if left:
            self.tell({"say": "stuck", "what": ", ".join(map(_described, left[:5]))})

    def _clear(self, message: Message) -> None:
        """Ends what the ended ranks of a gang's generation left behind, and tells `cleared` when nothing is."""
        task = asyncio.get_running_loop().create_task(self._clear_gang(message))
        self._clearing.add(task)
        task.add_done_callback(self._on_cleared)

    def _on_cleared(self, task: asyncio.Task[None]) -> None:
        self._clearing.discard(task)
        if not task.cancelled():
            task.result()  # what went wrong must not stay in there

    async def _clear_gang(self, message: Message) -> None:
        names = set(message["replicas"])
        sessions = {session for name in names for session in self._sessions.get(name, ())}
        kill_at = asyncio.get_running_loop().time() + message["grace_s"]
        looks_empty = 0
        told_stuck = False
        while looks_empty < 2:  # one look may miss a process that is just changing its parent
            self.reap()
            others = [rank.pid for rank in self._live.values() if rank.replica not in names]
            others += self._errands
            found = orphans.of_replicas(names, sessions, others, self._warm.pids())
            if self._cgroup is not None:
                found += [pid for pid in self._cgroup.processes(names) if pid not in found]
            left = [pid for pid in found if process_control.may_signal(pid)]
            if self._cgroup is not None and asyncio.get_running_loop().time() >= kill_at:
                self._cgroup.kill(names)
            looks_empty = 0 if left else looks_empty + 1
            told_stuck = self._press(left, kill_at, told_stuck)
            if left:
                await self._look_again()
        self.tell({"say": "cleared", "gang": message["gang"], "generation": message["generation"]})

    def sweep(self, grace_s: float) -> None:
        """Ends whatever is left below this process, and tells `gone` when nothing is."""
        if self.taking is not None:
            self.taking.end()
        if self._spares_timer is not None:
            self._spares_timer.cancel()
        self._warm.close()
        kill_at = asyncio.get_running_loop().time() + grace_s
        if self._sweeping is None:
            self._kill_at = kill_at
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
            self._sweeping.add_done_callback(lambda task: task.result())  # what went wrong must not stay in there
        else:
            self._kill_at = min(self._kill_at, kill_at)
            self._changed.set()

    async def swept(self) -> None:
        """Returns when a sweep is over, and makes ready for another. Raises what went wrong in it."""
        if self._sweeping is not None:
            await self._sweeping
            self._sweeping = None

    async def _sweep(self) -> None:
        told_stuck = False
        while self.reap():  # that no child is left is the kernel's word; /proc may miss one that is just changing
            everything = process_control.descendants(os.getpid())
            left = [pid for pid in everything if process_control.may_signal(pid)]
            if everything and not left:
                log.warning("left alone, since they are another user's: %s", ", ".join(map(_described, everything)))
                break
            if self._cgroup is not None and asyncio.get_running_loop().time() >= self._kill_at:
                self._cgroup.kill(self._replicas)
            told_stuck = self._press(left, self._kill_at, told_stuck)
            await self._look_again()
        if self._cgroup is not None:
            self._cgroup.remove()
        await self._until_gpus_are_free(told_stuck)
        self.tell({"say": "gone"})

    async def _until_gpus_are_free(self, told_stuck: bool) -> None:
        """The driver lets go of a dead process a little later, and seldom not at all: then people are told."""
        loop = asyncio.get_running_loop()
        uuids = {uuid for replica in self._replicas.values() for uuid in replica["gpus"]}
        if not uuids:
            return
        stuck_at = loop.time() + self._stuck_after_s
        while left := await in_a_thread(still_on_gpus, uuids, self._ended):
            if loop.time() > stuck_at and not told_stuck:
                told_stuck = True
                self.tell({"say": "stuck", "what": ", ".join(left[:5])})
            await asyncio.sleep(LOOK_AT_GPUS_EVERY_S)

    def _press(self, left: list[int], kill_at: float, told_stuck: bool) -> bool:
        """SIGTERM once to each of these, SIGKILL from `kill_at` on. Returns whether people know of what stays."""
        late = asyncio.get_running_loop().time() - kill_at
        for pid in left:
            if late >= 0:
                process_control.send(pid, signal.SIGKILL)
            elif pid not in self._terminated:
                self._terminated.add(pid)
                process_control.send(pid, signal.SIGTERM)
                process_control.send(pid, signal.SIGCONT)
        if left and late > self._stuck_after_s and not told_stuck:
            self.tell({"say": "stuck", "what": ", ".join(map(_described, left[:5]))})
            return True
        return told_stuck

    async def _look_again(self) -> None:
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_EVERY_S)

    def on_datagram(self, datagram: bytes) -> None:
        """Takes a report. The first step is passed on at once, the rest once a second."""
        name = self.reports.take(datagram)
        if name is None:
            return
        if name not in self._reported and (self.reports.of(name).get("step") or 0) >= 1:
            self._reported.add(name)
            self.tell({"say": "report", "replica": name, "metrics": self.reports.of(name), "first": True})
        elif name not in self._late:
            loop = asyncio.get_running_loop()
            self._late[name] = loop.call_later(REPORT_EVERY_S, self._report_now, name)

    def _report_now(self, name: str) -> None:
        waiting = self._late.pop(name, None)
        if waiting is not None:
            waiting.cancel()
            self.tell({"say": "report", "replica": name, "metrics": self.reports.of(name), "first": False})


def _described(pid: int) -> str:
    return f"PID {pid} ({process_control.command_of(pid)})"
