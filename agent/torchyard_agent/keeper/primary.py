"""The primary's part: gives every host its share, lets the policy decide, and has its decisions carried out."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Callable

from torchyard_agent.keeper import notify_command
from torchyard_agent.keeper.assignments import Shares
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.checkpoints.checkpoint_replication import Sending
from torchyard_agent.keeper.checkpoints.checkpoint_restore import Bringing
from torchyard_agent.keeper.decisions import events, replication_policy, state_machine
from torchyard_agent.keeper.decisions.booking_policy import Leave, OwnBooking
from torchyard_agent.keeper.decisions.events import Event, Instruction
from torchyard_agent.keeper.decisions.schedule import Timetable
from torchyard_agent.keeper.link import event_decoding
from torchyard_agent.keeper.link.gang_link import Listener, Message, OnCaller, Stream
from torchyard_agent.keeper.link.join_store import JoinStore, Refused, StoreServer
from torchyard_agent.keeper.link.member_connections import Members
from torchyard_agent.keeper.link.state_broadcast import Telling
from torchyard_agent.keeper.processes.rank_supervisor import Share
from torchyard_agent.keeper.run_status import Record
from torchyard_agent.keeper.timeouts import Patience
from torchyard_agent.protocol.authenticated_transport import exchange_key
from torchyard_agent.protocol.calendar import Calendar, rfc3339
from torchyard_agent.protocol.messages import Start
from torchyard_agent.protocol.rank_environment import has_store
from torchyard_agent.protocol.run_states import RunState

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
        self._members = Members(self._hear)
        self._telling = Telling(record, self._members)
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
        self._run: state_machine.Run | None = None
        self._asked_early: list[events.StopAsked] = []
        self._carrying = self._start_carrying()
        self._shares = Shares(start, carries=self._carrying is not None)
        gpus = [gpu for replica in start["replicas"] for gpu in replica["gpus"]]
        self._timetable = Timetable(own, start["start_at"], gpus, patience, start["policy"]["stop_grace_s"])
        complain = partial(record.carried, self._host, "")
        self._bringing = Bringing(self._carrying, self._host, self._order, complain)
        if self._listens:
            ranks = sum(replica["processes"] for replica in start["replicas"])
            # At once: a member that is turned away comes again only later, and ranks look for the store.
            held.listen(len(start["members"]) + 64 + min(ranks, MOST_RANKS_AT_ONCE))
        share.tell = lambda message: self._hear(self._host, message)

    async def run(self) -> None:
        """Returns when nothing of the run is left anywhere and every member that can be reached knows it."""
        start = self._start
        self._record.start()
        self._run, instructions = state_machine.begin(
            [member["host"] for member in start["members"]],
            start["replicas"],
            start["policy"],
            join_within_s=self._patience.join_within_s,
            lease_s=self._patience.lease_s,
            collect_s=self._patience.collect_s,
            meeting_point=self._shares.meeting_point,
            scheduled="" if start["start_at"] is None else _starts_at(start["start_at"]),
            gpus_within_s=self._patience.gpus_within_s,
        )
        self._act(instructions)
        self.begun.set()
        if self._listens:
            await self._listener.open(self._held)
        self._share.obey(self._shares.of_host(self._host))
        for asked in self._asked_early:
            self._feed(asked)
        watch = self._loop.create_task(self._members.watch_leases(self._patience, self._is_expected, self._on_silence))
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
            for task in (watch, carry, keep_time):
                if task is not None:
                    task.cancel()
            self._bringing.cancel()
            for timer in self._timers:
                timer.cancel()
            self._listener.close()
            self._members.close()

    def _start_carrying(self) -> Sending | None:
        """Where the hosts share no folder for checkpoints; None where they do, or there is but one host."""
        members = self._start["members"]
        if not self._start["carry"] or len(members) < 2:
            return None
        carriage = replication_policy.begin([member["host"] for member in members], self._start["replicas"])
        folder = checkpoint_folders.checkpoints_dir(self._share.place.folder)
        return Sending(folder, self._share.place.run_id, carriage, self._order, self._record.carried)

    async def _notify_of_the_end(self) -> None:
        command = self._start["notify"]
        if command and self._record.ended is not None:
            process = notify_command.start(command, self._share.place, self._record.state.value, self._record.reason)
            if process is not None:
                await notify_command.finish(process)

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
            self._feed(events.Due(verdict.only_if_idle))
        await self._timetable.watch_the_end(self._warn_of_the_end, self._stop_at_the_end)

    def _tell_new_start(self, at: float) -> None:
        assert self._run is not None
        if self._run.scheduled and self._run.outcome is None:
            self._run = self._run._replace(scheduled=_starts_at(at))
            self._telling.run_state(events.TellRunState(self._record.state, _starts_at(at)))

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
        asked = events.StopAsked(reason, force)
        if self._run is None:
            self._asked_early.append(asked)
        else:
            self._feed(asked)

    def _feed(self, event: Event) -> None:
        assert self._run is not None
        self._run, instructions = state_machine.transition(self._run, event, self._loop.time())
        self._act(instructions)

    def _act(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            _DO[type(instruction)](self, instruction)

    def tell_run_state(self, told: events.TellRunState) -> None:
        self._telling.run_state(told)

    def tell_replica_state(self, told: events.TellReplicaState) -> None:
        self._telling.replica_state(told)

    def tell_gang_restart(self, told: events.TellGangRestart) -> None:
        self._telling.gang_restart(told)

    def ask_for_somebody(self, asked: events.AskForSomebody) -> None:
        if self._start["notify"]:
            self._share.run_errand(self._start["notify"], self._record.state.value, asked.reason)

    def take_gpus(self, asked: events.TakeGpus) -> None:
        self._order(asked.host, {"say": "take_gpus", "only_if_idle": asked.only_if_idle})

    def go(self, instruction: events.Go) -> None:
        self._bringing.once_it_is_there({member["host"]: {"say": "go"} for member in self._start["members"]})

    def start_gang(self, asked: events.StartGang) -> None:
        assert self._run is not None
        run = self._run
        # A worker group that is gone altogether still counts: in how many parts the groups share a model is fixed.
        dropped = {one.name for one in run.replicas if one.dropped and run.members(run.gang(one.gang))}
        shares = self._shares.of_gang(asked.replicas, asked.generation, dropped)
        orders: dict[str, Message] = {host: {"say": "start", "replicas": replicas} for host, replicas in shares.items()}
        chief = next((replica["name"] for replica in self._start["replicas"] if replica["trainer"]), None)
        if chief in asked.replicas:
            self._bringing.once_it_is_there(orders)
        else:
            for host, order in orders.items():
                self._order(host, order)

    def clear(self, asked: events.Clear) -> None:
        order = {"say": "clear", "gang": asked.gang, "generation": asked.generation}
        self._order(asked.host, {**order, "replicas": list(asked.replicas), "grace_s": asked.grace_s})

    def end_ranks(self, asked: events.EndRanks) -> None:
        self._bringing.give_up()  # what is to end must have begun: its end is then told as every other
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

    def sweep(self, asked: events.Sweep) -> None:
        self._order(asked.host, {"say": "sweep", "grace_s": asked.grace_s})

    def wait(self, asked: events.Wait) -> None:
        fired = events.TimerFired(asked.timer, asked.gang, asked.generation)
        self._timers.append(self._loop.call_later(asked.seconds, self._feed, fired))

    def finish(self, decided: events.Finish) -> None:
        self._members.tell_all({"say": "ended", "ended": self._record.end(decided.state, decided.reason)})
        self._finished.set_result(None)

    def _order(self, host: str, message: Message) -> None:
        if host == self._host:
            # Its answers are events of their own, after this one; and the network has a start before our forks begin.
            self._loop.call_soon(self._share.obey, message)
        else:
            self._members.tell(host, message)

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
        if not known or not self._members.admits(host, epoch):
            log.warning("turned away a keeper that calls itself %s", host)
            stream.abort()
            return
        cut_off = bool(introduction.get("cut_off"))  # older members do not say
        if cut_off and not self._run.host(host).lost:
            # It was heard in time, or heard again, and has ended its ranks all the same: nobody else will tell of that.
            self._lose(host, f"its keeper did not hear {self._host} in time, and ended its ranks")
        line = self._members.line(host)
        if line is None:
            line = self._members.open_line(host)
            if self._record.ended is None:
                line.send(self._shares.of_host(host))
                self._telling.catch_up(line, host)
            else:  # stopped before this member came: it has nothing to do but to leave
                line.send({"say": "ended", "ended": self._record.ended})
        elif not self._run.host(host).lost:
            self._feed(events.LinkBack(host))
        # A member that was given up may not have noticed: it ends its ranks first, and then says that it is back.
        stream.send({"got": line.got, "lost": cut_off or self._run.host(host).lost})
        await line.converse(stream, int(introduction["got"]))
        if not line.connected and not self._run.state.is_terminal:
            self._feed(events.LinkBroken(host))

    def _hear(self, host: str, message: Message) -> None:
        """Something happened on a host."""
        event = event_decoding.event_of(host, message)
        if event is not None:
            self._feed(event)
        else:
            _HEAR[message["say"]](self, host, message)

    def hear_holds(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_host(host, str(message["name"]))

    def hear_fetched(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_fetched(host, str(message["name"]), str(message["problem"]))

    def hear_not_brought(self, host: str, message: Message) -> None:
        if self._carrying is not None:
            self._carrying.on_not_brought(host, str(message["name"]), str(message["problem"]))

    def hear_report(self, host: str, message: Message) -> None:
        if not self._record.state.is_terminal:
            self._record.report(message["replica"], message["metrics"], first=message["first"])

    def hear_stuck(self, host: str, message: Message) -> None:
        waiting = f"waiting on {host} for {message['what']}, which the kernel has not let go yet"
        log.warning(waiting)
        before = self._record.reason
        reason = f"{before}; {waiting}" if before else waiting
        self._telling.run_state(events.TellRunState(self._record.state, reason))

    def hear_stop(self, host: str, message: Message) -> None:
        self.stop(message["reason"], force=message["force"], told=message.get("asked"))

    def _on_silence(self, host: str, silent_s: float) -> None:
        self._lose(host, f"its keeper was not heard for {silent_s:.0f} s")

    def _lose(self, host: str, why: str) -> None:
        self._members.take_back_orders(host)
        self._bringing.leave_out(host)
        if self._carrying is not None:
            self._carrying.on_host_lost(host)
        self._feed(events.HostLost(host, why))

    def _is_expected(self, host: str) -> bool:
        assert self._run is not None
        known = self._run.host(host)
        return not known.lost and not known.gone

    async def _part(self) -> None:
        """Gives the members time to take note of the end."""
        began = self._loop.time()
        while (since_s := self._loop.time() - began) < FAREWELL_S:
            if self._members.all_know and (since_s > ARRIVAL_S or not self._some_are_on_their_way()):
                return
            await asyncio.sleep(0.02)

    def _some_are_on_their_way(self) -> bool:
        """Whether a member is still to come for the first time, and would else go on calling in vain."""
        assert self._run is not None
        others = [host for host in self._run.hosts if host.name != self._host]
        return any(self._members.line(host.name) is None and not host.lost for host in others)


def _starts_at(seconds: float) -> str:
    return f"starts at {rfc3339(seconds)}"


def _raise_what_went_wrong(task: asyncio.Task[None]) -> None:
    """In a turn of the loop: there it is the keeper's end, and not forgotten in a task."""
    if not task.cancelled():
        task.result()


_DO: dict[type, Callable[[Primary, Any], None]] = {
    events.TellRunState: Primary.tell_run_state,
    events.TellReplicaState: Primary.tell_replica_state,
    events.TellGangRestart: Primary.tell_gang_restart,
    events.AskForSomebody: Primary.ask_for_somebody,
    events.TakeGpus: Primary.take_gpus,
    events.Go: Primary.go,
    events.StartGang: Primary.start_gang,
    events.Clear: Primary.clear,
    events.EndRanks: Primary.end_ranks,
    events.Sweep: Primary.sweep,
    events.Wait: Primary.wait,
    events.Finish: Primary.finish,
}
_HEAR: dict[str, Callable[[Primary, str, Message], None]] = {
    "holds": Primary.hear_holds,
    "fetched": Primary.hear_fetched,
    "not_brought": Primary.hear_not_brought,
    "report": Primary.hear_report,
    "stuck": Primary.hear_stuck,
    "stop": Primary.hear_stop,
}
"""What is no event of the policy's: see `hearing`."""
