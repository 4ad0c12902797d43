"""The primary's part: gives every host its share, lets the policy decide, and has its decisions carried out."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Callable

from torchyard_agent.keeper import carrying, checkpoint_folders, journal, moves, notify, policy
from torchyard_agent.keeper.booked import Leave, OwnBooking
from torchyard_agent.keeper.carriers import Sending
from torchyard_agent.keeper.causes import Cause
from torchyard_agent.keeper.gang import Line, Listener, Message, OnCaller, Stream
from torchyard_agent.keeper.join_store import JoinStore, Refused, StoreServer
from torchyard_agent.keeper.moves import Event, Instruction
from torchyard_agent.keeper.patience import Patience
from torchyard_agent.keeper.record import Record
from torchyard_agent.keeper.share import Share
from torchyard_agent.keeper.waiting import Timetable
from torchyard_agent.protocol.calendar import Calendar, rfc3339
from torchyard_agent.protocol.contract import Contract, has_store
from torchyard_agent.protocol.frames import exchange_key
from torchyard_agent.protocol.shapes import Member, ReplicaPlan, ReplicaShare, Start
from torchyard_agent.protocol.states import RunState

FAREWELL_S = 3.0
"""How long the members have for acknowledging the run's end."""
ARRIVAL_S = 1.5
"""How long a run that ended before a member had come waits for it, to tell it so: a member calls twice a second."""
MOST_RANKS_AT_ONCE = 1024
"""That may knock at the join store at the same moment."""

log = logging.getLogger(__name__)


class Primary:
    """Runs a whole run. What members say becomes events; what the policy instructs goes to the hosts."""

    def __init__(
        self,
        start: Start,
        share: Share,
        record: Record,
        held: socket.socket,
        secret: bytes,
        patience: Patience,
        own: OwnBooking | None = None,
    ):
        self._start = start
        self._share = share
        self._record = record
        self._held = held
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._host = start["members"][0]["host"]
        self._lines: dict[str, Line] = {}
        self._epochs: dict[str, str] = {}
        self._meeting_point = _joined(start["members"][0])
        self._contract = Contract(start["cluster"], start["replicas"], self._meeting_point)
        callers: dict[bytes, OnCaller] = {}
        if len(start["members"]) > 1:
            callers[secret] = self._on_member
        self._store = JoinStore()
        if has_store(start["cluster"]):
            callers[exchange_key(secret)] = StoreServer(self._store).serve
        self._listener = Listener(callers)
        self._listens = bool(callers)
        self.begun = asyncio.Event()
        """Set once the journal says what the run does first: start, or wait for its time."""
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._run: policy.Run | None = None
        self._asked_early: list[moves.StopAsked] = []
        self._carrying = self._start_carrying()
        gpus = [gpu for replica in start["replicas"] for gpu in replica["gpus"]]
        self._timetable = Timetable(own, start["start_at"], gpus, patience, start["policy"]["stop_grace_s"])
        self._held_back: list[Callable[[], None]] = []
        """Starts that wait until the chief's host has the newest checkpoint."""
        self._bringing: asyncio.Task[None] | None = None
        if self._listens:
            ranks = sum(replica["processes"] for replica in start["replicas"])
            # At once: a member that is turned away comes again only later, and ranks look for the store.
            held.listen(len(start["members"]) + 64 + min(ranks, MOST_RANKS_AT_ONCE))
        share.tell = lambda message: self._hear(self._host, message)

    async def run(self) -> None:
        """Returns when nothing of the run is left anywhere and every member that can be reached knows it."""
        start = self._start
        self._record.start()
        self._run, instructions = policy.begin(
            [member["host"] for member in start["members"]],
            start["replicas"],
            start["policy"],
            join_within_s=self._patience.join_within_s,
            lease_s=self._patience.lease_s,
            meeting_point=self._meeting_point,
            scheduled="" if start["start_at"] is None else _starts_at(start["start_at"]),
            gpus_within_s=self._patience.gpus_within_s,
        )
        self._act(instructions)
        self.begun.set()
        if self._listens:
            await self._listener.open(self._held)
        self._share.obey(self._share_of(self._host))
        for asked in self._asked_early:
            self._feed(asked)
        watch = self._loop.create_task(self._watch_leases())
        carry = self._loop.create_task(self._carrying.watch()) if self._carrying is not None else None
        keep_time = self._loop.create_task(self._keep_time())
        keep_time.add_done_callback(_raise_what_went_wrong)
        try:
            await asyncio.wait({self._finished, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            await self._part()
            await self._notify_of_the_end()
        finally:
            for task in (watch, carry, keep_time, self._bringing):
                if task is not None:
                    task.cancel()
            for timer in self._timers:
                timer.cancel()
            self._listener.close()
            for line in self._lines.values():
                line.close()

    def _start_carrying(self) -> Sending | None:
        """Where the hosts share no folder for checkpoints; None where they do, or there is but one host."""
        members = self._start["members"]
        if not self._start["carry"] or len(members) < 2:
            return None
        carriage = carrying.begin([member["host"] for member in members], self._start["replicas"])
        folder = checkpoint_folders.checkpoints_dir(self._share.place.folder)
        return Sending(folder, self._share.place.run_id, carriage, self._order, self._record.carried)

    async def _notify_of_the_end(self) -> None:
        command = self._start["notify"]
        if command and self._record.ended is not None:
            process = notify.start(command, self._share.place, self._record.state.value, self._record.reason)
            if process is not None:
                await notify.finish(process)

    def learn(self, known: Calendar) -> None:
        """What the daemon was told of the bookings."""
        self._timetable.learn(known)

    async def _keep_time(self) -> None:
        """Begins a scheduled run at its time, and has one leave whose booking ends."""
        if self._timetable.start_at is not None:
            verdict = await self._timetable.due(self._tell_new_start)
            if verdict.refused:
                self.stop(f"not started: {verdict.refused}", force=False)
                return
            self._feed(moves.Due(verdict.only_if_idle))
        await self._timetable.watch_the_end(self._warn_of_the_end, self._stop_at_the_end)

    def _tell_new_start(self, at: float) -> None:
        assert self._run is not None
        if self._run.scheduled and self._run.outcome is None:
            self._run = self._run._replace(scheduled=_starts_at(at))
            self.tell_run_state(moves.TellRunState(self._record.state, _starts_at(at)))

    def _warn_of_the_end(self, must: Leave) -> None:
        own = self._timetable.own
        reason = f"{must.why}; the run saves and ends before {rfc3339(must.at)}"
        self._record.booking_ends(own.id if own is not None else "", rfc3339(must.at), reason)
        if self._start["notify"] and self._record.ended is None:
            self._share.run_errand(self._start["notify"], self._record.state.value, reason)

    def _stop_at_the_end(self, must: Leave) -> None:
        self.stop(f"stopped at its booking's end: {must.why}", force=False)

    def stop(self, reason: str, *, force: bool, told: Message | None = None) -> None:
        """`told`: who asked for it, where somebody did."""
        if told is not None:
            self._record.asked(told)
        asked = moves.StopAsked(reason, force)
        if self._run is None:
            self._asked_early.append(asked)
        else:
            self._feed(asked)

    def _feed(self, event: Event) -> None:
        assert self._run is not None
        self._run, instructions = policy.transition(self._run, event, self._loop.time())
        self._act(instructions)

    def _act(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            _DO[type(instruction)](self, instruction)

    def tell_run_state(self, told: moves.TellRunState) -> None:
        waiting_for = None
        if told.waits is not None:
            until = journal.at(time.time() + told.waits.seconds)
            waiting_for = {"hosts": list(told.waits.hosts), "until": until, "cause": told.waits.cause}
        self._record.run_state(told.state, told.reason, waiting_for)
        said = {"state": told.state.value, "reason": told.reason, "waiting_for": waiting_for}
        self._tell_members({"say": "run_state", **said})

    def tell_replica_state(self, told: moves.TellReplicaState) -> None:
        self._record.replica_state(told.replica, told.host, told.state, told.exit_code, told.reason, told.restarts)
        if told.host in self._lines:
            self._lines[told.host].send(
                {
                    "say": "replica_state",
                    "replica": told.replica,
                    "host": told.host,
                    "state": told.state.value,
                    "exit_code": told.exit_code,
                    "reason": told.reason,
                    "restarts": told.restarts,
                }
            )

    def ask_for_somebody(self, asked: moves.AskForSomebody) -> None:
        if self._start["notify"]:
            self._share.run_errand(self._start["notify"], self._record.state.value, asked.reason)

    def tell_gang_restart(self, told: moves.TellGangRestart) -> None:
        log.warning("gang %s starts again as generation %d: %s", told.gang, told.generation, told.cause)
        self._record.gang_restart(told.gang, told.generation, told.cause)
        said = {"gang": told.gang, "generation": told.generation, "cause": told.cause}
        self._tell_members({"say": "gang_restart", **said})

    def take_gpus(self, asked: moves.TakeGpus) -> None:
        self._order(asked.host, {"say": "take_gpus", "only_if_idle": asked.only_if_idle})

    def go(self, instruction: moves.Go) -> None:
        self._once_the_chief_can_resume(self._go)

    def _go(self) -> None:
        self._tell_members({"say": "go"})
        self._loop.call_soon(self._share.obey, {"say": "go"})  # the network has it before our own forks begin

    def start_gang(self, asked: moves.StartGang) -> None:
        chief = next((replica["name"] for replica in self._start["replicas"] if replica["trainer"]), None)
        if chief in asked.replicas:
            self._once_the_chief_can_resume(partial(self._start_gang, asked))
        else:
            self._start_gang(asked)

    def _once_the_chief_can_resume(self, start: Callable[[], None]) -> None:
        """Starts now, or once the newest checkpoint was brought from another host."""
        if self._held_back:
            self._held_back.append(start)
        elif self._carrying is None or not self._carrying.must_bring:
            start()
        else:
            self._held_back.append(start)
            self._bringing = self._loop.create_task(self._bring(self._carrying))

    async def _bring(self, from_others: Sending) -> None:
        try:
            await from_others.bring(self._host)
        except Exception as error:  # the outer edge of this task: the run starts with what there is
            log.exception("no checkpoint could be brought")
            self._record.carried(self._host, "", f"internal error: {error!r}")
        self._release_starts()

    def _release_starts(self) -> None:
        """Nothing that was held back waits any longer: for the checkpoint has come, or an end was decided."""
        held, self._held_back = self._held_back, []
        for start in held:
            start()

    def _start_gang(self, asked: moves.StartGang) -> None:
        """Ranks and world sizes are those of the replicas that take part now."""
        assert self._run is not None
        contract = Contract(self._start["cluster"], self._taking_part(), self._meeting_point)
        by_host: dict[str, list[ReplicaShare]] = {}
        for replica in self._start["replicas"]:
            if replica["name"] in asked.replicas:
                by_host.setdefault(replica["host"], []).append(contract.share(replica, asked.generation))
        for host, replicas in by_host.items():
            self._order(host, {"say": "start", "replicas": replicas})

    def clear(self, asked: moves.Clear) -> None:
        order = {"say": "clear", "gang": asked.gang, "generation": asked.generation}
        self._order(asked.host, {**order, "replicas": list(asked.replicas), "grace_s": asked.grace_s})

    def end_ranks(self, asked: moves.EndRanks) -> None:
        if self._bringing is not None:
            self._bringing.cancel()
        self._release_starts()  # what is to end must have begun: its end is then told as every other
        self._say_why_in_the_store(asked.replicas)
        self._order(asked.host, {"say": "end", "replicas": list(asked.replicas), "grace_s": asked.grace_s})

    def _say_why_in_the_store(self, replicas: Sequence[str]) -> None:
        """Ranks that SIGTERM finds in a failed gang have nobody left to agree with on a last step: they go at once."""
        assert self._run is not None
        if self._run.outcome in (RunState.STOPPED, RunState.SUCCEEDED):
            return
        with suppress(Refused):  # a store that is full: then they find out by themselves, and take longer
            for gang in {self._run.replica(name).gang for name in replicas}:
                self._store.set(f"failed/{gang}/{self._run.gang(gang).generation}", b"1")

    def sweep(self, asked: moves.Sweep) -> None:
        self._order(asked.host, {"say": "sweep", "grace_s": asked.grace_s})

    def wait(self, asked: moves.Wait) -> None:
        fired = moves.TimerFired(asked.timer, asked.gang, asked.generation)
        self._timers.append(self._loop.call_later(asked.seconds, self._feed, fired))

    def finish(self, decided: moves.Finish) -> None:
        self._tell_members({"say": "ended", "ended": self._record.end(decided.state, decided.reason)})
        self._finished.set_result(None)

    def _order(self, host: str, message: Message) -> None:
        if host == self._host:
            self._loop.call_soon(self._share.obey, message)  # its answers are events of their own, after this one
        elif host in self._lines:
            self._lines[host].send(message)

    def _tell_members(self, message: Message) -> None:
        for line in self._lines.values():
            line.send(message)

    def _taking_part(self) -> list[ReplicaPlan]:
        assert self._run is not None
        dropped = {one.name for one in self._run.replicas if one.dropped}
        return [replica for replica in self._start["replicas"] if replica["name"] not in dropped]

    def _share_of(self, host: str) -> Message:
        here = [replica for replica in self._start["replicas"] if replica["host"] == host]
        return {
            "say": "share",
            "replicas": [self._contract.share(replica) for replica in here],
            "host_wait_s": self._start["policy"]["host_wait_s"],
            "setup": self._start["setup"],
            "secrets": self._start["secrets"],
            "carry": self._carrying is not None,
        }

    async def _on_member(self, stream: Stream, introduction: Message) -> None:
        """A keeper that knows the secret: one of the members for the first time, or after a broken connection.

        Or one that carries a checkpoint, on a connection of its own.
        """
        if "carry" in introduction:
            if self._carrying is not None:
                await self._carrying.meet(stream, introduction)
            stream.abort()
            return
        assert self._run is not None
        host, epoch = str(introduction.get("host")), str(introduction.get("epoch"))
        known = any(one.name == host for one in self._run.hosts) and host != self._host
        if not known or self._epochs.setdefault(host, epoch) != epoch:
            log.warning("turned away a keeper that calls itself %s", host)
            stream.abort()
            return
        new = host not in self._lines
        if new:
            line = self._lines[host] = Line(lambda message: self._hear(host, message))
            if self._record.ended is None:
                line.send(self._share_of(host))
                self._catch_up(line, host)
            else:  # stopped before this member came: it has nothing to do but to leave
                line.send({"say": "ended", "ended": self._record.ended})
        else:
            line = self._lines[host]
            if not self._run.host(host).lost:
                self._feed(moves.LinkBack(host))
        # A member that was given up may not have noticed: it ends its ranks first, and then says that it is back.
        stream.send({"got": line.got, "lost": self._run.host(host).lost})
        await line.converse(stream, int(introduction["got"]))
        if not line.connected and not self._run.state.is_terminal:
            self._feed(moves.LinkBroken(host))

    def _catch_up(self, line: Line, host: str) -> None:
        """What was told before this member came: the run's state, and those of its replicas."""
        line.send({"say": "run_state", "state": self._record.state.value, "reason": self._record.reason})
        for replica in self._record.replicas.values():
            if replica["host"] == host:
                told = {name: replica[name] for name in ("host", "state", "exit_code", "reason", "restarts")}
                line.send({"say": "replica_state", "replica": replica["name"], **told})

    def _hear(self, host: str, message: Message) -> None:
        """Something happened on a host."""
        _HEAR[message["say"]](self, host, message)

    def hear_joined(self, host: str, message: Message) -> None:
        self._feed(moves.Joined(host))

    def hear_has_gpus(self, host: str, message: Message) -> None:
        self._feed(moves.GpusTaken(host))

    def hear_gpus_held(self, host: str, message: Message) -> None:
        self._feed(moves.GpusHeld(host, str(message["what"])))

    def hear_spawned(self, host: str, message: Message) -> None:
        self._feed(moves.Spawned(message["replica"]))

    def hear_failed(self, host: str, message: Message) -> None:
        cause = Cause(message["cause"], message.get("consequence", False))
        curable = message.get("curable", True)
        self._feed(moves.RankFailed(message["replica"], message["exit_code"], cause, curable))

    def hear_ended(self, host: str, message: Message) -> None:
        self._feed(moves.Ended(message["replica"], message["exit_code"]))

    def hear_cleared(self, host: str, message: Message) -> None:
        self._feed(moves.Cleared(host, message["gang"], message["generation"]))

    def hear_back(self, host: str, message: Message) -> None:
        self._feed(moves.HostBack(host))

    def hear_holds(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_host(host, str(message["name"]))

    def hear_fetched(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_fetched(host, str(message["name"]), str(message["problem"]))

    def hear_not_brought(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_not_brought(host, str(message["name"]), str(message["problem"]))

    def hear_gone(self, host: str, message: Message) -> None:
        self._feed(moves.HostGone(host))

    def hear_report(self, host: str, message: Message) -> None:
        if not self._record.state.is_terminal:
            self._record.report(message["replica"], message["metrics"], first=message["first"])

    def hear_stuck(self, host: str, message: Message) -> None:
        waiting = f"waiting on {host} for {message['what']}, which the kernel has not let go yet"
        log.warning(waiting)
        before = self._record.reason
        self.tell_run_state(moves.TellRunState(self._record.state, f"{before}; {waiting}" if before else waiting))

    def hear_stop(self, host: str, message: Message) -> None:
        self.stop(message["reason"], force=message["force"], told=message.get("asked"))

    async def _watch_leases(self) -> None:
        """Heartbeats out, and an eye on those that should come in."""
        beat_at = 0.0
        while True:
            await asyncio.sleep(min(self._patience.heartbeat_s, self._patience.lease_s / 10))
            now = self._loop.time()
            beat = now >= beat_at
            if beat:
                beat_at = now + self._patience.heartbeat_s
            for host, line in list(self._lines.items()):
                if beat:
                    line.beat()
                silent_s = now - line.heard_at
                if silent_s > self._patience.lease_s and self._is_expected(host):
                    line.close()
                    if self._carrying is not None:
                        self._carrying.on_host_lost(host)
                    self._feed(moves.HostLost(host, f"its keeper was not heard for {silent_s:.0f} s"))

    def _is_expected(self, host: str) -> bool:
        assert self._run is not None
        known = self._run.host(host)
        return not known.lost and not known.gone

    async def _part(self) -> None:
        """Gives the members time to take note of the end."""
        began = self._loop.time()
        while (since_s := self._loop.time() - began) < FAREWELL_S:
            all_know = all(line.settled for line in self._lines.values() if line.connected)
            if all_know and (since_s > ARRIVAL_S or not self._some_are_on_their_way()):
                return
            await asyncio.sleep(0.02)

    def _some_are_on_their_way(self) -> bool:
        """Whether a member is still to come for the first time, and would else go on calling in vain."""
        assert self._run is not None
        others = [host for host in self._run.hosts if host.name != self._host]
        return any(host.name not in self._lines and not host.lost for host in others)


def _starts_at(seconds: float) -> str:
    return f"starts at {rfc3339(seconds)}"


def _raise_what_went_wrong(task: asyncio.Task[None]) -> None:
    """In a turn of the loop: there it is the keeper's end, and not forgotten in a task."""
    if not task.cancelled():
        task.result()


def _joined(member: Member) -> str:
    """Where ranks and members reach a keeper, `address:port`."""
    address = member["address"]
    return f"[{address}]:{member['gang_port']}" if ":" in address else f"{address}:{member['gang_port']}"


_DO: dict[type, Callable[[Primary, Any], None]] = {
    moves.TellRunState: Primary.tell_run_state,
    moves.TellReplicaState: Primary.tell_replica_state,
    moves.TellGangRestart: Primary.tell_gang_restart,
    moves.AskForSomebody: Primary.ask_for_somebody,
    moves.TakeGpus: Primary.take_gpus,
    moves.Go: Primary.go,
    moves.StartGang: Primary.start_gang,
    moves.Clear: Primary.clear,
    moves.EndRanks: Primary.end_ranks,
    moves.Sweep: Primary.sweep,
    moves.Wait: Primary.wait,
    moves.Finish: Primary.finish,
}
_HEAR: dict[str, Callable[[Primary, str, Message], None]] = {
    "joined": Primary.hear_joined,
    "has_gpus": Primary.hear_has_gpus,
    "gpus_held": Primary.hear_gpus_held,
    "spawned": Primary.hear_spawned,
    "failed": Primary.hear_failed,
    "ended": Primary.hear_ended,
    "cleared": Primary.hear_cleared,
    "back": Primary.hear_back,
    "gone": Primary.hear_gone,
    "holds": Primary.hear_holds,
    "fetched": Primary.hear_fetched,
    "not_brought": Primary.hear_not_brought,
    "report": Primary.hear_report,
    "stuck": Primary.hear_stuck,
    "stop": Primary.hear_stop,
}
