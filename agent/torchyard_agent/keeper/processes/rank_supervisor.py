"""Starts, supervises and ends the ranks of one host as ordered by the primary, and reports their states.

Orders and reports have the types FromPrimary and FromMember of `link.messages`, even if this keeper is the primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any, Callable

from torchyard_agent.background_threads import in_a_thread
from torchyard_agent.keeper import notify_command
from torchyard_agent.keeper.decisions import events, instructions
from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.link.messages import FromMember, FromPrimary
from torchyard_agent.keeper.processes import failure_diagnosis, orphans, process_control, rank_process
from torchyard_agent.keeper.processes.cgroup import Cgroup
from torchyard_agent.keeper.processes.gpu_acquisition import GpuAcquisition
from torchyard_agent.keeper.processes.orphans import still_on_gpus
from torchyard_agent.keeper.processes.rank_process import CannotStart, Rank, RunPlace
from torchyard_agent.keeper.processes.warm_interpreters import WarmInterpreters
from torchyard_agent.keeper.rank_metrics import LatestMetrics
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.log_index import LogIndexWriter
from torchyard_agent.protocol.log_times import FINEST_S
from torchyard_agent.protocol.messages import RankAssignment, ReplicaAssignment

REPORT_EVERY_S = 1.0
"""Delay in seconds from the first unreported datagram of a replica to the report, which includes later datagrams.

Metrics of the first step are reported immediately.
"""
SWEEP_EVERY_S = 0.05
"""Longest interval in seconds between two searches for orphans. An orphan that exits may leave orphans itself."""
SPARES_READY = "each rank has a spare interpreter"
"""Log message that is written when all running ranks that need spares have them, and all spares are ready."""
SPARES_EVERY_S = 1.0
"""Interval in seconds at which the keeper checks whether a spare has finished its imports, so the next can start."""
SIGNAL_WITHIN_S = 1.0
"""Time in seconds within which a scheduler that reclaims the host sends SIGTERM to all processes of a job.

The scheduler may signal the processes in any order.
"""
GPUS_EVERY_S = 0.25
"""Interval in seconds at which NVML is polled until processes that have exited no longer occupy their GPUs."""

log = logging.getLogger(__name__)


class RankSupervisor:
    """The supervisor of this host's ranks.

    All ranks, and the processes that they orphan, are children of this process.
    """

    def __init__(
        self,
        place: RunPlace,
        send: Callable[[FromMember], None],
        cgroup: Cgroup | None = None,
        exchange_key: bytes = b"",
        stuck_after_s: float = Timeouts().stuck_after_s,
        warm: WarmInterpreters | None = None,
        spares_after_s: float = Timeouts().spares_after_s,
    ):
        self.send = send
        """Sends a message to the run's primary. The primary or member replaces this function."""
        self.metrics = LatestMetrics(set())
        self.read_reports: Callable[[], None] = lambda: None
        """Reads all metrics datagrams that have arrived."""
        self.awaits_signal = False
        """Whether a scheduler may send SIGTERM to the ranks and to this process, in any order."""
        self._late_reap: asyncio.TimerHandle | None = None
        self.gpu_acquisition: GpuAcquisition | None = None
        """The acquisition of a scheduled run's GPUs."""
        self.place = place
        self._cgroup = cgroup
        self._exchange_key = exchange_key
        self._stuck_after_s = stuck_after_s
        self._warm = warm or WarmInterpreters()
        self._spares_after_s = spares_after_s
        self._spare_imports: list[str] = []
        """The modules that spare interpreters import. Empty if there are no spares."""
        self._max_restarts = 0
        self._spares_timer: asyncio.TimerHandle | None = None
        self._replicas: dict[str, ReplicaAssignment] = {}
        self._setup: list[str] = []
        self._secrets: dict[str, str] = {}
        self._live: dict[int, Rank] = {}
        self._codes: dict[str, int] = {}
        self._ending: set[str] = set()
        """Replicas that were ordered to end."""
        self._terminated: set[int] = set()
        self._stuck: set[int] = set()
        """Ranks that have been reported as stuck."""
        self._ended: set[int] = set()
        """The PIDs of the run's processes that this keeper has reaped."""
        self._oom_kills = 0
        self._unsent: dict[str, asyncio.TimerHandle] = {}
        self._reported: set[str] = set()
        self._sessions: dict[str, set[int]] = {}
        """The sessions of the ranks of each replica's newest generation."""
        self._notifications: set[int] = set()
        """PIDs of notification commands, which are children of this process that belong to no replica."""
        self.trial_keepers: set[int] = set()
        """PIDs of trial keepers, which are children of this process that belong to no replica."""
        self._clearing: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._indexing: asyncio.Task[None] | None = None
        self._kill_at = 0.0
        self._changed = asyncio.Event()

    def obey(self, order: FromPrimary) -> None:
        """Executes an order of the primary. Raises KeyError if the order does not concern ranks."""
        _EXECUTE[type(order)](self, order)

    @property
    def names(self) -> set[str]:
        return set(self._replicas)

    def pids(self) -> dict[str, list[int]]:
        """Returns the PIDs of the running ranks by replica."""
        found: dict[str, list[int]] = {}
        for rank in self._live.values():
            found.setdefault(rank.replica, []).append(rank.pid)
        return found

    def take_assignment(self, assignment: messages.Assignment) -> None:
        self._replicas = {replica["name"]: replica for replica in assignment.replicas}
        self._setup, self._secrets = assignment.setup, assignment.secrets
        self._spare_imports, self._max_restarts = assignment.spare_imports, assignment.max_restarts
        self.metrics = LatestMetrics(set(self._replicas))
        # The number of OOM kills is read here and in start_ranks(), because StartGeneration starts the first ranks if
        # the host is lost before it receives StartRanks.
        self._oom_kills = failure_diagnosis.oom_kills()
        self.send(events.HostJoined(self.place.host))

    def acquire_gpus(self, order: instructions.AcquireGpus) -> None:
        if self.gpu_acquisition is None:
            self.send(events.GpusAcquired(self.place.host))
        else:
            self.gpu_acquisition.begin(order.only_if_idle)

    def start_ranks(self, order: instructions.StartRanks) -> None:
        self._oom_kills = failure_diagnosis.oom_kills()
        for replica in self._replicas.values():
            self._start(replica)
        self._await_stability()

    def start_generation(self, order: messages.StartGeneration) -> None:
        for replica in order.replicas:
            name = replica["name"]
            self._replicas[name] = replica
            self._codes.pop(name, None)
            self._ending.discard(name)
            self._sessions.pop(name, None)
            self._reported.discard(name)
            self.metrics.forget(name)
        for replica in order.replicas:
            self._start(replica)
        self._await_stability()

    def _start(self, replica: ReplicaAssignment) -> None:
        if self._indexing is None:
            self._indexing = asyncio.get_running_loop().create_task(self._index_logs())
        name = replica["name"]
        for rank in replica["ranks"]:
            try:
                known = self._setup, self._secrets, self._cgroup, self._exchange_key, self._warm
                started = rank_process.spawn(self.place, name, rank, *known)
            except CannotStart as problem:
                log.warning("%s: %s", name, problem)
                self._codes[name] = problem.code
                self.send(events.RankFailed(name, problem.code, events.Cause(str(problem), curable=False)))
                break
            self._live[started.pid] = started
            self._sessions.setdefault(name, set()).add(started.pid)
        else:
            self.send(events.ReplicaSpawned(name))
        self._report_if_ended(name)

    async def _index_logs(self) -> None:
        """Updates the indexes of logs in threads, because a network file system may block."""
        indexes = LogIndexWriter(os.path.join(self.place.folder, "logs"))
        while True:
            await in_a_thread(indexes.update)
            await asyncio.sleep(FINEST_S)

    def _await_stability(self) -> None:
        """Schedules the start of spare interpreters, `spares_after_s` after the last start of ranks on this host."""
        if self._spares_timer is not None:
            self._spares_timer.cancel()
        if self._spare_imports:
            self._spares_timer = asyncio.get_running_loop().call_later(self._spares_after_s, self._start_spare)

    def _start_spare(self) -> None:
        """Starts a spare interpreter for a running rank that may be restarted, once earlier spares are ready.

        Then schedules the start of the next spare.
        """
        loop = asyncio.get_running_loop()
        missing = [
            rank
            for rank in self._live.values()
            if (rank.replica, rank.local_rank) not in self._warm and rank.replica not in self._ending
            if self._replicas[rank.replica]["generation"] < self._max_restarts
        ]
        if self._warm.are_ready and missing:
            key = (missing[0].replica, missing[0].local_rank)
            share = self._rank_share(missing[0])
            variables = rank_process.environment(os.environ, self.place, key[0], share, {})
            self._warm.start(key, share["argv"], variables, self.place.work, self._spare_imports, spare=True)
            # The spare could not be started, or an earlier interpreter for this rank did not work.
            if key not in self._warm:
                return
        elif self._warm.are_ready:
            log.info(SPARES_READY)
            return
        self._spares_timer = loop.call_later(SPARES_EVERY_S, self._start_spare)

    def reap(self) -> bool:
        """Reaps all children that have exited, including adopted orphans. Called on SIGCHLD.

        If a scheduler may have terminated a rank, nothing is reaped until SIGNAL_WITHIN_S later. This process has then
        received the scheduler's SIGTERM too, and the run is being stopped or paused. Therefore the rank's exit does not
        count as a failure.

        Returns whether there are children that have not been reaped.
        """
        self._changed.set()
        if self.awaits_signal and any(
            rank.replica not in self._ending and process_control.was_terminated(rank.pid)
            for rank in self._live.values()
        ):
            if self._late_reap is None:
                self._late_reap = asyncio.get_running_loop().call_later(SIGNAL_WITHIN_S, self._reap_all)
            return True
        return self._reap_all()

    def _reap_all(self) -> bool:
        if self._late_reap is not None:
            self._late_reap.cancel()
            self._late_reap = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._terminated.discard(pid)
            self._ended.add(pid)
            self._notifications.discard(pid)
            self.trial_keepers.discard(pid)
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
            if name not in self._ending:
                self._report_failure(rank, code)
        self._report_if_ended(name)

    def _report_failure(self, rank: Rank, code: int) -> None:
        out_of_memory = code == -signal.SIGKILL and failure_diagnosis.oom_kills() > self._oom_kills
        share = self._rank_share(rank)
        cause = rank_process.cause_of(self.place, rank.replica, share, self._setup, code, out_of_memory=out_of_memory)
        several = len(self._replicas[rank.replica]["ranks"]) > 1
        if several:
            cause = cause._replace(text=f"local rank {rank.local_rank} {cause.text}")
        self.send(events.RankFailed(rank.replica, code, cause))

    def _rank_share(self, rank: Rank) -> RankAssignment:
        shares = self._replicas[rank.replica]["ranks"]
        return next(share for share in shares if share["local_rank"] == rank.local_rank)

    def _report_if_ended(self, name: str) -> None:
        if not any(rank.replica == name for rank in self._live.values()):
            self.read_reports()
            self._send_metrics(name)
            self.send(events.ReplicaEnded(name, self._codes.get(name, 0)))

    def start_notification(self, command: str, state: str, reason: str) -> None:
        """Starts the user's notification command without waiting for it to exit."""
        process = notify_command.start(command, self.place, state, reason)
        if process is not None:
            self._notifications.add(process.pid)
            process.returncode = 0  # `reap` reaps this process like all other children, so Popen must not wait for it.

    def end(self, names: set[str], grace_s: float, *, is_stop: bool = False) -> None:
        """Ends the replicas' ranks by SIGTERM, and those that are still running `grace_s` later by SIGKILL.

        SIGTERM is sent to the ranks' process groups, and SIGKILL also to all their descendants.

        Args:
            is_stop: Whether the run was stopped or has succeeded. If so, a stop file that contains `grace_s` tells the
                ranks to save before they exit. If the file cannot be written, the ranks do not save.
        """
        if is_stop:
            try:
                scratch = f"{self.place.stop_file}.new"
                with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(f"{grace_s:.3f}")
                os.rename(scratch, self.place.stop_file)  # Ranks must not read an empty file.
            except OSError as error:
                log.warning("the ranks do not learn that the run is stopped: %s", error)
        self._ending |= names
        if self._late_reap is not None:
            asyncio.get_running_loop().call_soon(self.reap)
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
        """Kills the given ranks that are still running. The new processes of restarted ranks are not killed."""
        for rank in asked:
            if self._live.get(rank.pid) is not rank:
                continue
            for pid in (rank.pid, *process_control.descendants(rank.pid)):
                process_control.send(pid, signal.SIGKILL)
            process_control.send_group(rank.pid, signal.SIGKILL)
            if self._cgroup is not None:
                self._cgroup.kill([rank.replica])
        asyncio.get_running_loop().call_later(self._stuck_after_s, self._report_stuck, asked)

    def _report_stuck(self, asked: list[Rank]) -> None:
        """Reports ranks that are still running after SIGKILL.

        Such a rank is blocked in a system call, for example on a failed disk or NFS server.
        """
        left = [rank.pid for rank in asked if self._live.get(rank.pid) is rank and rank.pid not in self._stuck]
        self._stuck.update(left)
        if left:
            self.send(messages.ProcessesStuck(", ".join(map(_described, left[:5]))))

    def clear_gang(self, order: instructions.ClearGang) -> None:
        """Ends the processes that a gang's ranks left behind. Reports GangCleared when all of them have exited."""
        task = asyncio.get_running_loop().create_task(self._clear_gang(order))
        self._clearing.add(task)
        task.add_done_callback(self._on_cleared)

    def _on_cleared(self, task: asyncio.Task[None]) -> None:
        self._clearing.discard(task)
        if not task.cancelled():
            task.result()  # result() raises the task's error in the event loop, which then ends the keeper.

    async def _clear_gang(self, order: instructions.ClearGang) -> None:
        names = set(order.replicas)
        sessions = {session for name in names for session in self._sessions.get(name, ())}
        kill_at = asyncio.get_running_loop().time() + order.grace_s
        empty_scans = 0
        reported = False
        while empty_scans < 2:  # A single search may miss a process whose parent is changing at that moment.
            self.reap()
            others = [rank.pid for rank in self._live.values() if rank.replica not in names]
            others += [*self._notifications, *self.trial_keepers]
            found = orphans.of_replicas(names, sessions, others, self._warm.pids())
            if self._cgroup is not None:
                found += [pid for pid in self._cgroup.processes(names) if pid not in found]
            left = [pid for pid in found if process_control.may_signal(pid)]
            if self._cgroup is not None and asyncio.get_running_loop().time() >= kill_at:
                self._cgroup.kill(names)
            empty_scans = 0 if left else empty_scans + 1
            reported = self._signal(left, kill_at, reported)
            if left:
                await self._wait_for_change()
        self.send(events.GangCleared(self.place.host, order.gang, order.generation))

    def sweep(self, grace_s: float) -> None:
        """Ends all descendants of this process.

        Reports HostSwept when no descendant is left and the driver has released the GPUs.

        Descendants that belong to another user, for example after sudo, cannot be ended and are not waited for.
        """
        if self.gpu_acquisition is not None:
            self.gpu_acquisition.end()
        if self._spares_timer is not None:
            self._spares_timer.cancel()
        self._warm.close()
        kill_at = asyncio.get_running_loop().time() + grace_s
        if self._sweeping is None:
            self._kill_at = kill_at
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
            # result() raises the task's error in the event loop.
            self._sweeping.add_done_callback(lambda task: task.result())
        else:
            self._kill_at = min(self._kill_at, kill_at)
            self._changed.set()

    async def swept(self) -> None:
        """Waits until a sweep has ended. Another sweep may begin afterwards. Raises the sweep's error."""
        if self._sweeping is not None:
            await self._sweeping
            self._sweeping = None

    async def _sweep(self) -> None:
        reported = False
        while self.reap():
            # A search of /proc may miss a process whose parent is changing, but waitpid finds every remaining child.
            everything = process_control.descendants(os.getpid())
            left = [pid for pid in everything if process_control.may_signal(pid)]
            if everything and not left:
                log.warning("not ended, since they belong to another user: %s", ", ".join(map(_described, everything)))
                break
            if self._cgroup is not None and asyncio.get_running_loop().time() >= self._kill_at:
                self._cgroup.kill(self._replicas)
            reported = self._signal(left, self._kill_at, reported)
            await self._wait_for_change()
        if self._cgroup is not None:
            self._cgroup.remove()
        await self._wait_for_gpus(reported)
        self.send(events.HostSwept(self.place.host))

    async def _wait_for_gpus(self, reported: bool) -> None:
        """Waits until the driver has released the GPUs, which usually happens shortly after a process exits."""
        loop = asyncio.get_running_loop()
        uuids = {uuid for replica in self._replicas.values() for uuid in replica["gpus"]}
        if not uuids:
            return
        stuck_at = loop.time() + self._stuck_after_s
        while left := await in_a_thread(still_on_gpus, uuids, self._ended):
            if loop.time() > stuck_at and not reported:
                reported = True
                self.send(messages.ProcessesStuck(", ".join(left[:5])))
            await asyncio.sleep(GPUS_EVERY_S)

    def _signal(self, left: list[int], kill_at: float, reported: bool) -> bool:
        """Sends SIGTERM once to each process and, after the time `kill_at`, SIGKILL. Reports stuck processes once.

        Returns:
            Whether stuck processes have been reported.
        """
        late = asyncio.get_running_loop().time() - kill_at
        for pid in left:
            if late >= 0:
                process_control.send(pid, signal.SIGKILL)
            elif pid not in self._terminated:
                self._terminated.add(pid)
                process_control.send(pid, signal.SIGTERM)
                process_control.send(pid, signal.SIGCONT)
        if left and late > self._stuck_after_s and not reported:
            self.send(messages.ProcessesStuck(", ".join(map(_described, left[:5]))))
            return True
        return reported

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), SWEEP_EVERY_S)

    def on_datagram(self, datagram: bytes) -> None:
        """Stores a datagram's metrics, and sends them to the primary.

        The metrics of a replica's first step are sent immediately. Later metrics are sent at most once per second.
        """
        name = self.metrics.take(datagram)
        if name is None:
            return
        if name not in self._reported and (self.metrics.of(name).get("step") or 0) >= 1:
            self._reported.add(name)
            self.send(messages.ReplicaMetrics(name, self.metrics.of(name), True))
        elif name not in self._unsent:
            loop = asyncio.get_running_loop()
            self._unsent[name] = loop.call_later(REPORT_EVERY_S, self._send_metrics, name)

    def _send_metrics(self, name: str) -> None:
        waiting = self._unsent.pop(name, None)
        if waiting is not None:
            waiting.cancel()
            self.send(messages.ReplicaMetrics(name, self.metrics.of(name), False))


def _described(pid: int) -> str:
    return f"PID {pid} ({process_control.command_of(pid)})"


_EXECUTE: dict[type, Callable[[RankSupervisor, Any], None]] = {
    messages.Assignment: RankSupervisor.take_assignment,
    instructions.AcquireGpus: RankSupervisor.acquire_gpus,
    instructions.StartRanks: RankSupervisor.start_ranks,
    messages.StartGeneration: RankSupervisor.start_generation,
    instructions.ClearGang: RankSupervisor.clear_gang,
    instructions.EndRanks: lambda self, order: self.end(set(order.replicas), order.grace_s, is_stop=order.is_stop),
    instructions.Sweep: lambda self, order: self.sweep(order.grace_s),
}
