"""The keeper's life: prepared, then primary or member of a run, then gone; and what others may ask of it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from functools import partial
from typing import Any, Union

from torchyard_agent import unix_socket_rpc
from torchyard_agent.journal import Journal
from torchyard_agent.keeper.decisions.booking_policy import OwnBooking
from torchyard_agent.keeper.member import Member
from torchyard_agent.keeper.metrics_receiver import ReportSocket
from torchyard_agent.keeper.primary import Primary
from torchyard_agent.keeper.processes import cgroup, process_control, rank_process
from torchyard_agent.keeper.processes.gpu_acquisition import Taking
from torchyard_agent.keeper.processes.rank_process import RunPlace
from torchyard_agent.keeper.processes.rank_supervisor import Share
from torchyard_agent.keeper.processes.warm_interpreters import WarmStart
from torchyard_agent.keeper.resources import Ground, lay_out
from torchyard_agent.keeper.run_status import Record
from torchyard_agent.keeper.timeouts import Patience
from torchyard_agent.protocol import calendar, paths
from torchyard_agent.protocol.attribution import asked, cleaned
from torchyard_agent.protocol.authenticated_transport import exchange_key
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Prepared, RankShare
from torchyard_agent.protocol.run_states import ReplicaState, RunState
from torchyard_agent.unix_socket_rpc import Connection

FLUSH_S = 1.0
"""How long those who listen have for reading the last words."""
LEASE_STEP_S = 1.0
"""The silence of a launch is counted in steps of at most so long."""
Params = dict[str, Any]
Part = Union[Primary, Member]

log = logging.getLogger(__name__)


class Keeper:
    """Serves a run's methods on this host until the run is over, and leaves nothing behind."""

    def __init__(self, agent_dir: str, node: str, run_id: str, patience: Patience):
        self._agent_dir = agent_dir
        self._run_id = run_id
        self._folder = paths.run_dir(agent_dir, node, run_id)
        self._patience = patience
        self._connections: set[Connection] = set()
        self._node = node
        self._host = node
        self._secret = b""
        self._ground: Ground | None = None
        self._journal: Journal | None = None
        self._record: Record | None = None
        self._warm = WarmStart()
        self._share: Share | None = None
        self._reports = ReportSocket()
        self._part: Part | None = None
        self._calendar: calendar.Calendar | None = None
        self._asked_to_prepare = asyncio.Event()
        self._preparing_is_over = asyncio.Event()
        self._decided = asyncio.Event()
        self._silent_s = 0.0
        """For how long nothing has been heard of the launch."""
        self._has_lapsed = False
        self._discarding = False
        self._answering = 0
        self._over = asyncio.Event()
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def live(self, listener: socket.socket) -> None:
        """Serves at `listener`, bound to the run's name already, until the run is over."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        server = await unix_socket_rpc.serve(listener, self._methods(), self._connections)
        life = loop.create_task(self._live())
        try:
            await asyncio.wait({life, self._crash}, return_when=asyncio.FIRST_COMPLETED)
            (life if life.done() else self._crash).result()
        except Exception as error:  # the outer edge of the keeper: logged, journaled, and nothing is left running
            log.exception("the keeper failed")
            await self._end_after_crash(life, f"internal error of the run keeper on {self._host}: {error!r}")
        finally:
            life.cancel()
            self._release()
            self._over.set()
            await self._flush()
            server.close()

    def _methods(self) -> dict[str, unix_socket_rpc.Method]:
        methods = (
            *(self.warm, self.prepare, self.renew, self.start, self.join, self.stop, self.abort),
            *(self.calendar, self.status, self.metrics),
        )
        return {method.__name__: self._counted(method) for method in methods}

    def _counted(self, method: unix_socket_rpc.Method) -> unix_socket_rpc.Method:
        """So that no keeper leaves while it owes an answer."""

        async def answer(connection: Connection, params: Params) -> Any:
            self._answering += 1
            try:
                return await method(connection, params)
            finally:
                self._answering -= 1

        return answer

    async def _live(self) -> None:
        lease = asyncio.get_running_loop().create_task(self._count_silence())
        try:
            await self._asked_to_prepare.wait()
            await self._preparing_is_over.wait()  # also where it was given up meanwhile: what it makes is then removed
            await self._decided.wait()
        finally:
            lease.cancel()
        if self._part is not None:
            await self._part.run()

    async def _count_silence(self) -> None:
        """Gives the launch up where its lease ends before it begins.

        Counted in steps, so that a keeper that was itself stopped for a while first hears what has arrived meanwhile.
        """
        lease_s = self._patience.launch_lease_s
        step_s = min(LEASE_STEP_S, lease_s / 10)
        while self._silent_s < lease_s:
            if await _within(self._decided, step_s):
                return
            self._silent_s += step_s
        log.warning("no start, join or renewal of the launch came within %.0f s: leaving", lease_s)
        self._has_lapsed = True
        self._discarding = True
        self._leave()

    def _heard(self) -> None:
        """The launch goes on. Raises RpcError where it was given up."""
        if self._has_lapsed:
            raise RpcError(
                f"{self._host} gave up the launch of run {self._run_id}: nothing was heard of it for "
                f"{self._patience.launch_lease_s:.0f} s",
                "lease_lapsed",
                "Launch it again.",
            )
        self._silent_s = 0.0

    async def warm(self, connection: Connection, params: Params) -> Any:
        """Starts the interpreters of this host's ranks, which wait for the run's start; `prepare` follows."""
        self._heard()
        if self._asked_to_prepare.is_set():
            raise RpcError(f"the run {self._run_id} is prepared here already", "prepared")
        self._host = str(params["host"])
        connection.on_close.append(self._leave_unless_prepared)
        place = self._place()
        os.makedirs(place.work, 0o700, exist_ok=True)
        for replica in params["replicas"]:
            for planned in replica["ranks"]:
                rank = _in_folder(planned, params["run_dir"], self._folder)
                variables = rank_process.environment(os.environ, place, replica["name"], rank, {})
                key = (replica["name"], rank["local_rank"])
                self._warm.start(key, rank["argv"], variables, place.work, params["imports"], spare=False)
        return {}

    def _leave_unless_prepared(self) -> None:
        """The daemon has gone, and with it the launch's connection to this host."""
        if not self._asked_to_prepare.is_set():
            self._discarding = True
            self._leave()

    def _place(self) -> RunPlace:
        return RunPlace(self._run_id, self._host, self._folder, self._reports.address)

    async def prepare(self, connection: Connection, params: Params) -> Any:
        """Makes the run's folder and takes its GPUs and ports. Where that fails, nothing of it remains."""
        self._heard()
        if self._asked_to_prepare.is_set():
            raise RpcError(f"the run {self._run_id} is prepared here already", "prepared")
        self._asked_to_prepare.set()
        self._host = str(params["host"])
        try:
            self._secret = bytes.fromhex(params["secret"])
            if len(self._secret) != 32:
                raise RpcError("the run's secret must have 64 hex digits", "params")
            self._ground = await lay_out(self._agent_dir, self._folder, params)
            if self._decided.is_set():
                self._heard()
                raise RpcError("the run was aborted while it was prepared", "aborted")
            self._take_over(self._ground, (params.get("record") or {}).get("launched_from"))
        except BaseException:
            self._discarding = True
            self._decided.set()
            raise
        finally:
            self._preparing_is_over.set()
        ground = self._ground
        return Prepared(
            pid=os.getpid(),
            address=ground.address,
            interface=ground.interface,
            ports=ground.ports,
            gang_port=ground.gang_port,
            run_dir=self._folder,
            checkpoint=ground.checkpoint,
        )

    async def renew(self, connection: Connection, params: Params) -> Any:
        """Renews the launch's lease."""
        self._heard()
        return {}

    def _take_over(self, ground: Ground, launched_from: object) -> None:
        """From here on the run has a journal."""
        place = self._place()
        own_group = cgroup.create(self._run_id, self._node)
        key, waits = exchange_key(self._secret), self._patience
        self._share = Share(
            *(place, lambda message: None, own_group, key, waits.stuck_after_s, self._warm, waits.spares_after_s)
        )
        self._share.taking = Taking(ground, self._share.say)
        self._reports.serve(self._share.on_datagram)
        self._journal = Journal(os.path.join(self._folder, "journal.jsonl"), self._poke)
        self._record = Record(self._run_id, self._journal)
        self._record.asked(asked("launch", launched_from))
        self._record.run_state(RunState.WAITING, "")

    async def start(self, connection: Connection, params: Params) -> Any:
        """Begins the run. This keeper's host is the primary, the first of `members`."""
        share, record, ground = self._ready()
        hosts = [member["host"] for member in params["members"]]
        strangers = sorted({replica["host"] for replica in params["replicas"]} - set(hosts))
        if not params["replicas"] or strangers or hosts[:1] != [self._host] or len(set(hosts)) != len(hosts):
            raise RpcError(
                f"the plan does not fit: hosts {', '.join(hosts)}, unknown {', '.join(strangers) or 'none'}, "
                f"{len(params['replicas'])} replicas, primary {self._host}",
                "params",
            )
        try:
            start_at = None if params.get("start_at") is None else calendar.seconds_of(params["start_at"])
            own = OwnBooking.read(params.get("booking"))
        except (ValueError, KeyError, TypeError) as error:
            raise RpcError(f"start_at or booking is not understood: {error}", "params") from None
        primary = Primary(
            {
                "members": params["members"],
                "cluster": params["cluster"],
                "replicas": params["replicas"],
                "policy": params["policy"],
                "setup": params["setup"],
                "secrets": params["secrets"],
                "notify": params.get("notify"),
                "carry": bool(params.get("carry")),
                "spare_imports": [str(name) for name in params.get("spare_imports", [])],
                "start_at": start_at,
                "booking": params.get("booking"),
            },
            share,
            record,
            ground.gang_socket,
            self._secret,
            self._patience,
            own,
        )
        if self._calendar is not None:
            primary.learn(self._calendar)
        self._part = primary
        self._decided.set()
        # Whoever asks for the run's state after this answer is told what it waits for.
        await primary.begun.wait()
        return {}

    async def calendar(self, connection: Connection, params: Params) -> Any:
        """What is known of the bookings that touch this run; the newest counts."""
        self._calendar = calendar.parse(params["snapshot"])
        if isinstance(self._part, Primary):
            self._part.learn(self._calendar)
        return {}

    async def join(self, connection: Connection, params: Params) -> Any:
        """Begins the run on a host that is not the primary: `primary` says where that is."""
        share, record, ground = self._ready()
        self._part = Member(self._host, params["primary"], share, record, ground, self._secret, self._patience)
        self._decided.set()
        return {}

    def _ready(self) -> tuple[Share, Record, Ground]:
        self._heard()
        if self._share is None or self._record is None or self._ground is None:
            raise RpcError(f"the run {self._run_id} is not prepared here", "not_prepared")
        if self._decided.is_set():
            raise RpcError(f"the run {self._run_id} has begun here already", "begun")
        return self._share, self._record, self._ground

    async def stop(self, connection: Connection, params: Params) -> Any:
        """Asks for the run's end, from any of its hosts; with `force`, without the grace. `by` says who asks."""
        force, by = bool(params.get("force")), cleaned(params.get("by"))
        reason = str(params.get("reason") or (f"stopped by {by}" if by else "stopped on request"))
        self._stop(reason, force=force, told=asked("stop", by, force=force))
        return {}

    def _stop(self, reason: str, *, force: bool, told: dict[str, Any] | None = None) -> None:
        """`told`: who asked for it, where somebody did."""
        if self._part is not None:
            # In a turn of its own: an error in deciding is the keeper's end, not only this request's.
            asyncio.get_running_loop().call_soon(partial(self._part.stop, reason, force=force, told=told))
        elif not self._decided.is_set():
            if self._record is not None:
                if told is not None:
                    self._record.asked(told)
                self._record.end(RunState.STOPPED, reason)
            else:
                self._discarding = True
            self._leave()

    def _leave(self) -> None:
        """Before the run has begun: it will not."""
        if not self._asked_to_prepare.is_set():
            self._asked_to_prepare.set()
            self._preparing_is_over.set()
        self._decided.set()

    async def abort(self, connection: Connection, params: Params) -> Any:
        """Before the run begins: releases and removes all there is of it here."""
        if self._part is not None:
            raise RpcError(f"the run {self._run_id} has begun", "begun", "Stop it instead.")
        self._discarding = True
        self._leave()
        await self._over.wait()
        return {}

    async def status(self, connection: Connection, params: Params) -> Any:
        if self._record is not None:
            return self._record.status()
        return {"state": "sending", "reason": "", "replicas": [], "metrics": {}, "first_step_at": None}

    async def metrics(self, connection: Connection, params: Params) -> Any:
        """This host's replicas: the PIDs of their ranks, and their latest numbers."""
        if self._share is None:
            return {"pids": {}, "metrics": {}}
        return {"pids": self._share.pids(), "metrics": self._share.reports.all()}

    def _poke(self) -> None:
        for connection in list(self._connections):
            connection.notify("journal", {})

    def _reap(self) -> None:
        if self._share is not None:
            self._share.reap()
        else:
            self._warm.reap()

    def _on_sigterm(self) -> None:
        self._stop(f"the run keeper on {self._host} was asked to end (SIGTERM): the host shuts down?", force=False)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback or a forgotten task must not leave a run that nobody decides about."""
        error = context.get("exception")
        of_a_connection = any(word in context for word in ("transport", "protocol", "socket"))
        if isinstance(error, Exception) and not of_a_connection and not self._crash.done():
            self._crash.set_exception(error)
        else:
            log.error("%s: %r", context.get("message"), error)

    async def _end_after_crash(self, life: asyncio.Task[None], reason: str) -> None:
        """Kills whatever runs, then says in the journal why. Nothing more is decided about the run meanwhile."""
        life.cancel()
        if self._share is not None:
            self._share.tell = lambda message: None  # that its ranks are killed must not start them again
            await asyncio.wait({life}, timeout=FLUSH_S)
            while left := [pid for pid in process_control.descendants(os.getpid()) if process_control.may_signal(pid)]:
                for pid in left:
                    process_control.send(pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
                _reap_all()
        if self._record is not None and self._record.ended is None:
            for replica in list(self._record.replicas.values()):
                if not ReplicaState(replica["state"]).is_terminal:
                    told = replica["name"], replica["host"], ReplicaState.STOPPED, None, reason, replica["restarts"]
                    self._record.replica_state(*told)
            self._record.end(RunState.FAILED, reason)

    def _release(self) -> None:
        for pid in self._warm.close():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._reports.close()
        if self._journal is not None:
            self._journal.close()
        if self._ground is not None:
            self._ground.release()
        cgroup.end_leftovers(self._run_id, self._node)
        if self._discarding:
            Ground.remove(self._folder)

    async def _flush(self) -> None:
        """Lets the last answers and notifications reach those who wait for them."""
        deadline = asyncio.get_running_loop().time() + FLUSH_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
            if not self._answering and not any(connection.backlog for connection in self._connections):
                return


def _in_folder(rank: RankShare, stands_for_it: str, folder: str) -> RankShare:
    """The rank with the run's folder in place of the text that the desktop put there."""
    argv = [word.replace(stands_for_it, folder) for word in rank["argv"]]
    env = {name: value.replace(stands_for_it, folder) for name, value in rank["env"].items()}
    return RankShare(rank=rank["rank"], local_rank=rank["local_rank"], argv=argv, env=env)


def _reap_all() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True
