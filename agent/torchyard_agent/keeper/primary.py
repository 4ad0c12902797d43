"""The primary of a run: sends assignments to hosts, passes events to the decisions, and executes the instructions."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from torchyard_agent.keeper import notify_command
from torchyard_agent.keeper.assignments import Assignments
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.checkpoints.checkpoint_replication import CheckpointSender
from torchyard_agent.keeper.checkpoints.checkpoint_restore import CheckpointRestore
from torchyard_agent.keeper.decisions import events, instructions, replication_policy, state_machine
from torchyard_agent.keeper.decisions.booking_policy import Deadline, OwnBooking, StartVerdict
from torchyard_agent.keeper.decisions.events import Event
from torchyard_agent.keeper.decisions.instructions import Instruction
from torchyard_agent.keeper.decisions.schedule import Schedule
from torchyard_agent.keeper.link import messages
from torchyard_agent.keeper.link.gang_link import CallerHandler, Listener, Message, Stream
from torchyard_agent.keeper.link.join_store import JoinStore, Refused, StoreServer
from torchyard_agent.keeper.link.member_connections import MemberConnections
from torchyard_agent.keeper.link.messages import FromMember, FromPrimary
from torchyard_agent.keeper.processes.rank_supervisor import RankSupervisor
from torchyard_agent.keeper.run_status import RunStatus
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.protocol.authenticated_transport import exchange_key
from torchyard_agent.protocol.calendar import Calendar
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Place, Start
from torchyard_agent.protocol.rank_environment import has_store
from torchyard_agent.protocol.run_states import ReplicaState, RunState
from torchyard_agent.protocol.timestamps import rfc3339, with_milliseconds

if TYPE_CHECKING:
    from torchyard_agent.keeper.run_growth import RunGrowth
    from torchyard_agent.keeper.trial_keepers import TrialCalls

DISMISS_S = 3.0
"""Longest time in seconds to wait for the members to acknowledge the run's end."""
LATE_JOIN_S = 1.5
"""Longest time in seconds for which an ended run waits for members that never connected.

Members try to connect at least twice a second.
"""
MAX_PENDING_RANKS = 1024
"""Maximum number of ranks for which the listen backlog of the gang link's socket has room."""
MAX_SLEEP_S = 30.0
"""Longest sleep in seconds before the wall clock is read again.

The clock may be adjusted, or the host suspended, during a sleep.
"""

log = logging.getLogger(__name__)


class Primary:
    """The primary of a run. It makes the decisions for all hosts, and serves the members.

    Args:
        ranks: The supervisor of the ranks on the primary's own host.
        status: The status of the run, with its journal on the primary's own host.
        gang_socket: A socket that is bound to the port of the gang link.
        own: The booking for which the run was launched, or None.
    """

    def __init__(
        self,
        start: Start,
        ranks: RankSupervisor,
        status: RunStatus,
        gang_socket: socket.socket,
        secret: bytes,
        timeouts: Timeouts,
        own: OwnBooking | None = None,
    ):
        self._start = start
        self._ranks = ranks
        self._status = status
        self._gang_socket = gang_socket
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._host = start["members"][0]["host"]
        self._members = MemberConnections(self._on_message)
        self._secret = secret
        callers: dict[bytes, CallerHandler] = {}
        self._callers = callers
        if len(start["members"]) > 1:
            callers[secret] = self._on_member
        self._store = JoinStore()
        if has_store(start["cluster"]):
            callers[exchange_key(secret)] = StoreServer(self._store).serve
        self._listener = Listener(callers)
        self._listens = bool(callers)
        self.begun = asyncio.Event()
        """Set once the run's first state (starting or waiting) is in the journal."""
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._run: state_machine.Run | None = None
        self._growth: RunGrowth | None = None
        self._trials: TrialCalls | None = None
        self._early_stops: list[events.StopRequested] = []
        self._replication = self._create_replication()
        self._assignments = Assignments(start, replicates=self._replication is not None and len(start["members"]) > 1)
        self._own_jobs = {replica["host"] for replica in start["own_jobs"]["replicas"]}
        """The hosts that belong to group jobs."""
        self._schedule = Schedule(
            own,
            start["start_at"],
            [gpu for replica in start["replicas"] for gpu in replica["gpus"]],
            submitted=time.time(),
            warn_s=timeouts.booking_warn_s,
            notice_s=timeouts.booking_notice_s,
            grace_s=start["policy"]["stop_grace_s"],
        )
        self._calendar_changed = asyncio.Event()
        on_problem = partial(status.checkpoint_copied, self._host, "")
        self._restore = CheckpointRestore(self._replication, self._host, self._order, on_problem)
        if self._listens:
            expected = sum(replica["processes"] for replica in start["replicas"])
            # The socket listens before the run begins. Otherwise members and ranks could be refused and would have to
            # try again.
            gang_socket.listen(len(start["members"]) + 64 + min(expected, MAX_PENDING_RANKS))
        ranks.send = lambda message: self._on_message(self._host, message)

    async def run(self) -> None:
        """Serves as the primary until the run has ended, and up to DISMISS_S longer until members acknowledge it."""
        start = self._start
        self._status.start()
        self._run, first = state_machine.begin(
            [member["host"] for member in start["members"]],
            start["replicas"],
            start["policy"],
            join_within_s=self._timeouts.join_within_s,
            lease_s=self._timeouts.lease_s,
            collect_s=self._timeouts.collect_s,
            meeting_point=self._assignments.meeting_point,
            scheduled="" if start["start_at"] is None else _starts_at(start["start_at"]),
            gpus_within_s=self._timeouts.gpus_within_s,
            own_jobs=self._own_jobs,
        )
        self._execute(first)
        self.begun.set()
        if self._listens:
            await self._listener.open(self._gang_socket)
        self._ranks.obey(self._assignments.of_host(self._host))
        for request in self._early_stops:
            self._feed(request)
        leases = self._loop.create_task(self._members.watch_leases(self._timeouts, self._is_expected, self._on_silence))
        saves = self._loop.create_task(self._replication.watch()) if self._replication is not None else None
        schedule = self._loop.create_task(self._follow_schedule())
        schedule.add_done_callback(_raise_error_of)
        try:
            await asyncio.wait({self._finished, leases}, return_when=asyncio.FIRST_COMPLETED)
            if leases.done():
                leases.result()
            await self._dismiss_members()
            await self._notify_of_end()
        finally:
            for task in (leases, saves, schedule):
                if task is not None:
                    task.cancel()
            self._restore.cancel()
            for timer in self._timers:
                timer.cancel()
            self._listener.close()
            self._members.close()

    def _create_replication(self) -> CheckpointSender | None:
        """Returns a sender of checkpoints, or None if the hosts share a checkpoint folder.

        If the run has only one host, the sender only reports saved checkpoints.
        """
        members = self._start["members"]
        if not self._start["carry"]:
            return None
        replication = replication_policy.begin([member["host"] for member in members], self._start["replicas"])
        folder = checkpoint_folders.checkpoints_dir(self._ranks.place.folder)
        run_id = self._ranks.place.run_id
        status = self._status
        return CheckpointSender(
            *(folder, run_id, replication, self._order, status.checkpoint_copied), status.checkpoint_saved
        )

    async def _notify_of_end(self) -> None:
        command = self._start["notify"]
        if command and self._status.ended is not None:
            process = notify_command.start(command, self._ranks.place, self._status.state.value, self._status.reason)
            if process is not None:
                await notify_command.finish(process)

    @property
    def has_finished(self) -> bool:
        """Whether the run has ended or has not begun yet."""
        return self._run is None or self._run.state.is_terminal

    def update_calendar(self, calendar: Calendar) -> None:
        if self._schedule.update(calendar):
            self._calendar_changed.set()

    async def _follow_schedule(self) -> None:
        """Begins a scheduled run at its start time, and ends a run before the deadline of its booking."""
        if self._schedule.start_at is not None:
            verdict = await self._start_time()
            if verdict.refused:
                self.stop(f"not started: {verdict.refused}", force=False)
                return
            self._feed(events.StartDue(verdict.only_if_idle))
        while True:
            now = time.time()
            action, deadline, again_at = self._schedule.next_end(now)
            if action == "stop" and deadline is not None:
                self.stop(f"stopped at its booking's end: {deadline.why}", force=False)
                return
            if action == "warn" and deadline is not None:
                self._warn_of_end(deadline)
            else:
                await self._sleep(MAX_SLEEP_S if again_at is None else again_at - now)

    async def _start_time(self) -> StartVerdict:
        """Waits until the run's start time, and returns whether the run may start."""
        announced = self._schedule.start_at
        while True:
            now = time.time()
            at, verdict = self._schedule.next_start(now)
            if verdict is not None:
                return verdict
            if at != announced:
                announced = at
                self._announce_start(at)
            await self._sleep(at - now)

    async def _sleep(self, seconds: float) -> None:
        """Sleeps for `seconds`, or until a new calendar arrives or MAX_SLEEP_S have passed."""
        self._calendar_changed.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._calendar_changed.wait(), min(max(seconds, 0.01), MAX_SLEEP_S))

    def _announce_start(self, at: float) -> None:
        assert self._run is not None
        if self._run.scheduled and self._run.outcome is None:
            self._run = self._run._replace(scheduled=_starts_at(at))
            self.record_run_state(instructions.RecordRunState(self._status.state, _starts_at(at)))

    def _warn_of_end(self, deadline: Deadline) -> None:
        own = self._schedule.own
        reason = f"{deadline.why}; the run saves and ends before {rfc3339(deadline.at)}"
        self._status.booking_ends(own.id if own is not None else "", rfc3339(deadline.at), reason)
        if self._status.ended is None:
            self._notify(reason)

    def _notify(self, reason: str) -> None:
        if self._start["notify"]:
            self._ranks.start_notification(self._start["notify"], self._status.state.value, reason)

    def stop(
        self,
        reason: str,
        *,
        force: bool,
        asked: Message | None = None,
        pause: bool = False,
        within_s: float | None = None,
    ) -> None:
        """Ends the run or, if `pause` is true, lets it wait until its scheduler starts it again.

        Args:
            asked: The journal entry of a user's request.
            within_s: An upper limit in seconds for the grace period. If it is None, the policy's grace period applies.
        """
        self._status.pause_reason = reason if pause else ""  # A user's stop request replaces a pause in progress.
        if asked is not None:
            self._status.asked(asked)
        request = events.StopRequested(reason, force, within_s=within_s)
        if self._run is None:
            self._early_stops.append(request)
        else:
            self._feed(request)

    def fail(self, reason: str) -> None:
        """Ends the run as failed, at the request of its sweep's coordinator."""
        self._feed(events.StopRequested(reason, is_failure=True))

    def _feed(self, event: Event) -> None:
        assert self._run is not None
        self._run, following = state_machine.transition(self._run, event, self._loop.time())
        self._execute(following)

    def _execute(self, following: list[Instruction]) -> None:
        for instruction in following:
            _EXECUTE[type(instruction)](self, instruction)

    def record_run_state(self, change: instructions.RecordRunState) -> None:
        """Journals a state of the run on this host and on the members, each of which has its own journal."""
        waiting_for = None
        if change.waits is not None:
            until = with_milliseconds(time.time() + change.waits.seconds)
            waiting_for = {"hosts": list(change.waits.hosts), "until": until, "cause": change.waits.cause}
        self._status.run_state(change.state, change.reason, waiting_for)
        self._members.send_all(messages.RunStateChanged(change.state, change.reason, waiting_for))

    def record_replica_state(self, change: instructions.RecordReplicaState) -> None:
        self._status.replica_state(*change)
        self._members.send(change.host, change)

    def record_gang_restart(self, change: instructions.RecordGangRestart) -> None:
        log.warning("gang %s restarts as generation %d: %s", change.gang, change.generation, change.cause)
        self._status.gang_restart(*change)
        self._members.send_all(change)

    def record_membership(self, change: instructions.RecordMembership) -> None:
        log.warning("gang %s continues with %s: %s", change.gang, ", ".join(change.members), change.cause)
        self._status.membership(*change)
        self._members.send_all(change)
        seats = self._assignments.seats(change.gang, self._dropped())
        lost = [name for name, _ in seats if name not in change.members]
        membership = {"number": change.number, "lost": lost, "joined": change.joined, "seats": seats}
        # If the join store is full, the ranks cannot be informed of the membership. They then fail one after another,
        # and the gang is restarted.
        with suppress(Refused):
            self._store.set(f"members/{change.gang}/{change.generation}", json.dumps(membership).encode())

        if self._growth is not None:
            self._growth.on_membership(change.members)

    def _watch_training(self, gang: str, generation: int) -> None:
        """Watches the join store for reports that all ranks have completed a step or are at a step boundary."""
        if self._start["policy"].get("on_worker_loss") == "continue":
            trains = events.GangTrains(gang, generation)
            self._store.watch(f"trains/{gang}/{generation}", lambda *_: self._feed(trains))
            self._store.watch(f"boundary/{gang}/{generation}", partial(self._on_boundary, gang, generation))

    def _on_boundary(self, gang: str, generation: int, key: str, value: bytes, version: int) -> None:
        if value.isdigit():
            self._feed(events.BoundaryReached(gang, generation, int(value)))

    def announce_return(self, instruction: instructions.AnnounceReturn) -> None:
        with suppress(Refused):  # If the join store is full, the replica stays lost until the gang's next restart.
            self._store.set(f"returning/{instruction.gang}/{instruction.generation}", b"%d" % instruction.number)

    def _catch_up(self, host: str) -> None:
        """Sends the current states of the run and of the host's replicas to a member that has just connected."""
        self._members.send(host, messages.RunStateChanged(self._status.state, self._status.reason))
        for one in self._status.replicas.values():
            if one["host"] == host:
                state, code, reason = ReplicaState(one["state"]), one["exit_code"], one["reason"]
                change = instructions.RecordReplicaState(one["name"], host, state, code, reason, one["restarts"])
                self._members.send(host, change)

    def start_ranks(self, instruction: instructions.StartRanks) -> None:
        for gang in dict.fromkeys(replica["gang"] for replica in self._start["replicas"]):
            self._watch_training(gang, 0)
        # The ranks on hosts of group jobs are started by StartGang.
        hosts = [member["host"] for member in self._start["members"] if member["host"] not in self._own_jobs]
        self._restore.start_when_restored(dict.fromkeys(hosts, instruction))

    def start_gang(self, instruction: instructions.StartGang) -> None:
        assert self._run is not None
        self._watch_training(instruction.gang, instruction.generation)
        if any(self._run.replica(name).trainer for name in instruction.replicas):
            self._assignments.begin_generation([one.name for one in self._run.replicas if one.added])
        by_host = self._assignments.of_gang(instruction.replicas, instruction.generation, self._dropped())
        orders: dict[str, FromPrimary] = {host: messages.StartGeneration(part) for host, part in by_host.items()}
        chief = next((replica["name"] for replica in self._start["replicas"] if replica["trainer"]), None)
        if chief in instruction.replicas:
            self._restore.start_when_restored(orders)
        else:
            for host, order in orders.items():
                self._order(host, order)

    def _dropped(self) -> set[str]:
        """Returns the replicas that do not count in ranks and world sizes.

        The replicas of a worker group that has lost all its members still count, because the number of shards of a
        shared model is fixed.
        """
        run = self._run
        assert run is not None
        return {one.name for one in run.replicas if one.dropped and run.members(run.gang(one.gang))}

    def start_replica(self, instruction: instructions.StartReplica) -> None:
        name, attempt = instruction.replica, instruction.attempt
        log.info("%s is started again (attempt %d)", name, attempt)
        ready = events.ReplicaReady(name, attempt)
        key = f"ready/{instruction.gang}/{instruction.generation}/{name}/{attempt}"
        self._store.watch(key, lambda *_: self._feed(ready))
        parts = self._assignments.of_gang([name], instruction.generation, self._dropped(), attempt)
        for host, part in parts.items():
            self._order(host, messages.StartGeneration(part))

    def end_ranks(self, instruction: instructions.EndRanks) -> None:
        # Delayed ranks are started first, because only ranks that were started report that they have exited.
        self._restore.give_up()
        self._order(instruction.host, instruction)

    def set_timer(self, instruction: instructions.SetTimer) -> None:
        fired = events.TimerFired(instruction.timer, instruction.gang, instruction.generation)
        self._timers.append(self._loop.call_later(instruction.seconds, self._feed, fired))

    def finish_run(self, instruction: instructions.FinishRun) -> None:
        if self._replication is not None:
            self._replication.scan()
        self._members.send_all(messages.RunEnded(self._status.end(instruction.state, instruction.reason)))
        self._finished.set_result(None)

    @property
    def growth(self) -> RunGrowth:
        """The object that adds replicas to the live run."""
        if self._growth is None:
            # Imported only when needed: hosts are added to few runs, and each import uses memory in every keeper.
            from torchyard_agent.keeper.run_growth import RunGrowth

            place = self._ranks.place
            known = place.run_id, place.folder, self._start["members"][0], self._secret, self._timeouts.join_within_s
            self._growth = RunGrowth(
                *known, self._status, self._assignments, self._current_run, self._feed, self._expect_host
            )
        return self._growth

    def sweep(self, *, full: bool) -> dict[str, Any]:
        """Returns the lost hosts of a sweep and, if `full` is true, also the sweep (`sweep_messages.Sweep`)."""
        lost = [host.name for host in self._current_run().hosts if host.lost]
        return {"lost": lost, **({"sweep": self._start["sweep"]} if full else {})}

    async def call_trial(self, host: str, method: str, params: Message) -> Any:
        """Calls the keeper of a trial on a host of the sweep. Raises RpcError."""
        if self._start["sweep"] is None or not any(host == one.name for one in self._current_run().hosts):
            raise RpcError(f"{host} takes part in no sweep {self._ranks.place.run_id}", "params")
        if self._trials is None:
            # `trial_keepers` is imported here, because only a sweep needs it.
            from torchyard_agent.keeper.trial_keepers import TrialCalls

            self._trials = TrialCalls(
                self._host, self._ranks, self._members.send, lambda name: self._current_run().host(name).lost
            )
        if method == "start":  # The coordinator does not know the secrets, so they are added here.
            params = {**params, "setup": self._start["setup"], "secrets": self._start["secrets"]}
        return await self._trials.call(host, method, params)

    def on_trial_answer(self, host: str, message: messages.TrialAnswer) -> None:
        if self._trials is not None:
            self._trials.on_answer(host, message)

    def _current_run(self) -> state_machine.Run:
        assert self._run is not None
        return self._run

    def _expect_host(self, host: str) -> None:
        """Allows the keeper of a host that is being added to the run to connect."""
        self._members.forget(host)
        self._callers[self._secret] = self._on_member
        if self._replication is not None:
            self._assignments.replicates = True
            self._replication.add_host(host)

    def dismiss_host(self, instruction: instructions.DismissHost) -> None:
        ended = {
            "run_id": self._ranks.place.run_id,
            "state": RunState.STOPPED.value,
            "reason": instruction.why,
            "replicas": [],
            "metrics": {},
            "timings": {},
        }
        self._members.send(instruction.host, messages.RunEnded(ended))
        if self._replication is not None:
            self._replication.on_host_lost(instruction.host)

    def _order(self, host: str, message: FromPrimary) -> None:
        if host == self._host:
            # This host executes its order after the current callback, so that the orders to members are sent before
            # this host forks. Results are reported as events.
            self._loop.call_soon(self._ranks.obey, message)
        else:
            self._members.send(host, message)

    async def _on_member(self, stream: Stream, introduction: Message) -> None:
        """Serves a member's connection, which is a new or restored gang link, or the transfer of a checkpoint."""
        if "carry" in introduction:
            if self._replication is not None:
                await self._replication.serve(stream, introduction)
            stream.abort()
            return
        assert self._run is not None
        host, epoch = str(introduction.get("host")), str(introduction.get("epoch"))
        known = any(one.name == host for one in self._run.hosts) and host != self._host
        if known and self._run.host(host).dismissed and self._members.channel(host) is None:
            known = False
        is_fresh = int(introduction["got"]) == 0 and not introduction.get("cut_off")
        if known and host in self._own_jobs and "place" in introduction and is_fresh:
            self._prepare_for(host, epoch, introduction["place"])
        if not known or not self._members.admits(host, epoch):
            log.warning("rejected a keeper with the name %s", host)
            stream.abort()
            return
        cut_off = bool(introduction.get("cut_off"))  # Members of older versions do not send `cut_off`.
        if cut_off and not self._run.host(host).lost:
            # The member has ended its ranks, but its lease has not expired here, because its heartbeats arrived in
            # time.
            self._lose(host, f"its keeper did not hear {self._host} in time, and ended its ranks")
        channel = self._members.channel(host)
        is_lost = self._run.host(host).lost
        if channel is None:
            is_lost = is_lost and host not in self._own_jobs
            channel = self._members.open_channel(host)
            if self._status.ended is None:
                self._members.send(host, self._assignments.of_host(host))
                self._catch_up(host)
            else:  # The run had ended before this member connected.
                self._members.send(host, messages.RunEnded(self._status.ended))
        elif not self._run.host(host).lost:
            self._feed(events.LinkRestored(host))
        # A member that is considered lost may not be aware of this. `lost` makes it end its ranks and then report its
        # return.
        stream.send({"got": channel.received, "lost": cut_off or is_lost})
        await channel.run_connection(stream, int(introduction["got"]))
        if not channel.connected and not self._run.state.is_terminal:
            self._feed(events.LinkBroken(host))

    def _prepare_for(self, host: str, epoch: str, place: Place) -> None:
        """Accepts the keeper of a restarted group job as the new keeper of `host`.

        The new keeper replaces the previous keeper of the job, and may run on another node.
        """
        if self._members.is_known(host, epoch):
            return
        if not self._current_run().host(host).lost:
            self._lose(host, "its job has started again")
        self._members.forget(host)
        self._assignments.place(host, place)

    def on_host_leaves(self, host: str, message: messages.HostLeaves) -> None:
        self._lose(host, message.why, has_left=True)

    def _on_message(self, host: str, message: FromMember) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._feed(message)  # type: ignore[arg-type]  # All other messages are events.
        else:
            handler(self, host, message)

    def on_checkpoint_held(self, host: str, message: messages.CheckpointHeld) -> None:
        if self._replication is not None:
            self._replication.on_host(host, message.name)

    def on_checkpoint_fetched(self, host: str, message: messages.CheckpointFetched) -> None:
        if self._replication is not None:
            self._replication.on_fetched(host, message.name, message.problem)

    def on_checkpoint_not_brought(self, host: str, message: messages.CheckpointNotBrought) -> None:
        if self._replication is not None:
            self._replication.on_not_brought(host, message.name, message.problem)

    def on_metrics(self, host: str, message: messages.ReplicaMetrics) -> None:
        if not self._status.state.is_terminal:
            self._status.report(message.replica, message.metrics, first=message.first)

    def on_stuck(self, host: str, message: messages.ProcessesStuck) -> None:
        waiting = f"waiting on {host} for {message.what}, which the kernel has not ended yet"
        log.warning(waiting)
        before = self._status.reason
        reason = f"{before}; {waiting}" if before else waiting
        self.record_run_state(instructions.RecordRunState(self._status.state, reason))

    def on_stop(self, host: str, message: messages.ForwardedStop) -> None:
        self.stop(
            message.reason, force=message.force, asked=message.asked, pause=message.pause, within_s=message.within_s
        )

    def _on_silence(self, host: str, silent_s: float) -> None:
        self._lose(host, f"its keeper was not heard for {silent_s:.0f} s")

    def _lose(self, host: str, why: str, *, has_left: bool = False) -> None:
        self._members.withdraw_orders(host)
        self._restore.remove_host(host)
        if self._replication is not None:
            self._replication.on_host_lost(host)
        self._feed(events.HostLost(host, why, has_left))
        if self._trials is not None:
            self._trials.on_host_lost(host)

    def _is_expected(self, host: str) -> bool:
        assert self._run is not None
        known = self._run.host(host)
        return not known.lost and not known.swept

    async def _dismiss_members(self) -> None:
        """Waits at most DISMISS_S until the members have acknowledged the run's end."""
        began = self._loop.time()
        while (since_s := self._loop.time() - began) < DISMISS_S:
            if self._members.are_settled and (since_s > LATE_JOIN_S or not self._members_are_missing()):
                return
            await asyncio.sleep(0.02)

    def _members_are_missing(self) -> bool:
        """Returns whether a member that is not lost has never connected.

        Such a member could no longer connect after this keeper has exited.
        """
        assert self._run is not None
        others = [host for host in self._run.hosts if host.name != self._host]
        return any(self._members.channel(host.name) is None and not host.lost for host in others)


def _starts_at(seconds: float) -> str:
    return f"starts at {rfc3339(seconds)}"


def _raise_error_of(task: asyncio.Task[None]) -> None:
    """Raises a task's error in the event loop, whose exception handler ends the keeper."""
    if not task.cancelled():
        task.result()


_EXECUTE: dict[type, Callable[[Primary, Any], None]] = {
    instructions.RecordRunState: Primary.record_run_state,
    instructions.RecordReplicaState: Primary.record_replica_state,
    instructions.RecordGangRestart: Primary.record_gang_restart,
    instructions.RecordMembership: Primary.record_membership,
    instructions.RecordWithdrawal: lambda self, change: self._status.withdrawal(*change),
    instructions.NotifyUser: lambda self, instruction: self._notify(instruction.reason),
    instructions.AcquireGpus: lambda self, order: self._order(order.host, order),
    instructions.StartRanks: Primary.start_ranks,
    instructions.StartGang: Primary.start_gang,
    instructions.StartReplica: Primary.start_replica,
    instructions.AnnounceReturn: Primary.announce_return,
    instructions.DismissHost: Primary.dismiss_host,
    instructions.ClearGang: lambda self, order: self._order(order.host, order),
    instructions.EndRanks: Primary.end_ranks,
    instructions.Sweep: lambda self, order: self._order(order.host, order),
    instructions.SetTimer: Primary.set_timer,
    instructions.FinishRun: Primary.finish_run,
}
_HANDLERS: dict[type, Callable[[Primary, str, Any], None]] = {
    messages.CheckpointHeld: Primary.on_checkpoint_held,
    messages.CheckpointFetched: Primary.on_checkpoint_fetched,
    messages.CheckpointNotBrought: Primary.on_checkpoint_not_brought,
    messages.ReplicaMetrics: Primary.on_metrics,
    messages.ProcessesStuck: Primary.on_stuck,
    messages.ForwardedStop: Primary.on_stop,
    messages.HostLeaves: Primary.on_host_leaves,
    messages.TrialAnswer: Primary.on_trial_answer,
}
"""The handlers of messages that are not events for the decisions."""
