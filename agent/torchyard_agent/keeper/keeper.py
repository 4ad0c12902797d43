"""The keeper of a run on a host. It prepares the host, acts as the primary or a member, and answers the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Union

from torchyard_agent import unix_socket_rpc
from torchyard_agent.journal import Journal
from torchyard_agent.keeper.decisions.booking_policy import OwnBooking
from torchyard_agent.keeper.member import Member
from torchyard_agent.keeper.primary import Primary
from torchyard_agent.keeper.processes import cgroup, process_control, rank_process
from torchyard_agent.keeper.processes.gpu_acquisition import GpuAcquisition
from torchyard_agent.keeper.processes.rank_process import RunPlace
from torchyard_agent.keeper.processes.rank_supervisor import RankSupervisor
from torchyard_agent.keeper.processes.warm_interpreters import WarmInterpreters
from torchyard_agent.keeper.rank_metrics import MetricsReceiver
from torchyard_agent.keeper.resources import RunResources, acquire
from torchyard_agent.keeper.run_status import RunStatus
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.protocol import calendar, paths, timestamps
from torchyard_agent.protocol.attribution import attribution_entry, clean_name
from torchyard_agent.protocol.authenticated_transport import exchange_key
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import OwnJobs, Place, Prepared, RankAssignment
from torchyard_agent.protocol.run_states import ReplicaState, RunState
from torchyard_agent.unix_socket_rpc import Connection

if TYPE_CHECKING:
    from torchyard_agent.telemetry.sampler import Sampler

FLUSH_S = 1.0
"""Maximum time in seconds to wait for clients to read the last answers and notifications."""
LEASE_STEP_S = 1.0
"""Longest interval in seconds between two increments of the time since the last renewal of the launch lease.

A suspension of the host counts as one interval, so it does not use up the lease.
"""
Params = dict[str, Any]
Participant = Union[Primary, Member]

log = logging.getLogger(__name__)


class Keeper:
    """Serves the RPC methods of one run on this host until the run has ended and all its processes have exited."""

    def __init__(self, agent_dir: str, node: str, run_id: str, timeouts: Timeouts):
        self._agent_dir = agent_dir
        self._run_id = run_id
        self._folder = paths.run_dir(agent_dir, node, run_id)
        self._timeouts = timeouts
        self._connections: set[Connection] = set()
        self._node = node
        self._host = node
        self._secret = b""
        self._resources: RunResources | None = None
        self._journal: Journal | None = None
        self._status: RunStatus | None = None
        self._warm = WarmInterpreters()
        self._ranks: RankSupervisor | None = None
        self._metrics = MetricsReceiver()
        self._participant: Participant | None = None
        self._calendar: calendar.Calendar | None = None
        self._preparing = asyncio.Event()
        self._prepared = asyncio.Event()
        """Set once the preparation has succeeded or failed."""
        self._decided = asyncio.Event()
        """Set once the run has begun on this host, or the launch was abandoned."""
        self._silent_s = 0.0
        """Seconds since the launch lease was last renewed."""
        self._has_expired = False
        self._discarding = False
        self._answering = 0
        self.on_sigterm: Callable[[], None] | None = None
        """The handler of SIGTERM if the run is a scheduler's job. If it is None, SIGTERM ends the run."""
        self.continues = False
        """Whether the run's folder is kept if the run cannot begin.

        The folder of a scheduler's job is kept, because an earlier start of the job may have used it.
        """
        self._sampler: Sampler | None = None
        self._over = asyncio.Event()
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, listener: socket.socket) -> None:
        """Serves clients at the bound socket `listener` until the run is over."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        server = await unix_socket_rpc.serve(listener, self._methods(), self._connections)
        running = loop.create_task(self._run())
        try:
            await asyncio.wait({running, self._crash}, return_when=asyncio.FIRST_COMPLETED)
            (running if running.done() else self._crash).result()
        except Exception as error:  # An error that reaches this point is logged and journaled, and ends all ranks.
            log.exception("the keeper failed")
            await self._end_after_crash(running, f"internal error of the run keeper on {self._host}: {error!r}")
        finally:
            running.cancel()
            self._release()
            self._over.set()
            await self._flush()
            server.close()

    def _methods(self) -> dict[str, unix_socket_rpc.Method]:
        methods = (
            *(self.warm, self.prepare, self.renew, self.start, self.join, self.stop, self.abort),
            *(self.calendar, self.status, self.metrics, self.sample, self.invite, self.hold, self.grow, self.withdraw),
            *(self.sweep, self.trial, self.fail),
        )
        return {method.__name__: self._counted(method) for method in methods}

    def _counted(self, method: unix_socket_rpc.Method) -> unix_socket_rpc.Method:
        """Wraps a method to count its pending calls, for which the keeper waits before it exits (see `_flush`)."""

        async def answer(connection: Connection, params: Params) -> Any:
            self._answering += 1
            try:
                return await method(connection, params)
            finally:
                self._answering -= 1

        return answer

    async def _run(self) -> None:
        """Waits until the run begins on this host, and then takes part in the run until it ends.

        Returns early if the launch is abandoned.
        """
        lease = asyncio.get_running_loop().create_task(self._watch_lease())
        try:
            await self._preparing.wait()
            # Even if the launch was aborted, the preparation must finish before the folder is removed.
            await self._prepared.wait()
            await self._decided.wait()
        finally:
            lease.cancel()
        if self._participant is not None:
            await self._participant.run()

    async def _watch_lease(self) -> None:
        """Gives up the launch if its lease expires before the run begins.

        Time is counted in steps instead of being read from a clock. After a suspension of the host, the keeper then
        handles pending calls first, and these may renew the lease.
        """
        lease_s = self._timeouts.launch_lease_s
        step_s = min(LEASE_STEP_S, lease_s / 10)
        while self._silent_s < lease_s:
            if await _within(self._decided, step_s):
                return
            self._silent_s += step_s
        log.warning("no start, join or renewal of the launch within %.0f s: exiting", lease_s)
        self._has_expired = True
        self._discarding = True
        self._give_up_launch()

    def _renew_lease(self) -> None:
        """Renews the launch lease. Raises RpcError if the lease has expired."""
        if self._has_expired:
            raise RpcError(
                f"{self._host} gave up the launch of run {self._run_id}: its desktop had not renewed it "
                f"for {self._timeouts.launch_lease_s:.0f} s",
                "lease_lapsed",
                "Launch it again.",
            )
        self._silent_s = 0.0

    async def warm(self, connection: Connection, params: Params) -> Any:
        """Starts interpreters for this host's ranks before `prepare`.

        The interpreters import the modules in `imports`, and then wait for the start of their ranks.
        """
        self._renew_lease()
        if self._preparing.is_set():
            raise RpcError(f"the run {self._run_id} is prepared here already", "prepared")
        self._host = str(params["host"])
        connection.on_close.append(self._give_up_unless_prepared)
        place = self._place()
        os.makedirs(place.work, 0o700, exist_ok=True)
        for replica in params["replicas"]:
            for planned in replica["ranks"]:
                rank = _in_folder(planned, params["run_dir"], self._folder)
                variables = rank_process.environment(os.environ, place, replica["name"], rank, {})
                key = (replica["name"], rank["local_rank"])
                self._warm.start(key, rank["argv"], variables, place.work, params["imports"], spare=False)
        return {}

    def _give_up_unless_prepared(self) -> None:
        """Gives up the launch unless `prepare` was called. Called when the connection that called `warm` is closed."""
        if not self._preparing.is_set():
            self._discarding = True
            self._give_up_launch()

    def _place(self) -> RunPlace:
        return RunPlace(self._run_id, self._host, self._folder, self._metrics.address)

    async def prepare(self, connection: Connection, params: Params) -> Any:
        """Creates the run's folder and reserves the run's resources (see `resources.acquire`)."""
        self._renew_lease()
        if self._preparing.is_set():
            raise RpcError(f"the run {self._run_id} is prepared here already", "prepared")
        self._preparing.set()
        self._host = str(params["host"])
        try:
            self._secret = bytes.fromhex(params["secret"])
            if len(self._secret) != 32:
                raise RpcError("the run's secret must have 64 hex digits", "params")
            self._resources = await acquire(self._agent_dir, self._folder, params)
            if self._decided.is_set():
                self._renew_lease()
                raise RpcError("the run was aborted while it was prepared", "aborted")
            status = self._open_journal(self._resources)
            if not params.get("continues"):  # The journal of a continued run already begins with the job's submission.
                launched_from = (params.get("record") or {}).get("launched_from")
                status.asked(attribution_entry("launch", launched_from))
                status.run_state(RunState.WAITING, "")
        except BaseException:  # The launch is abandoned after every error, and also if this call is cancelled.
            self._discarding = True
            self._decided.set()
            raise
        finally:
            self._prepared.set()
        resources = self._resources
        return Prepared(
            pid=os.getpid(),
            address=resources.address,
            interface=resources.interface,
            ports=resources.ports,
            gang_port=resources.gang_port,
            run_dir=self._folder,
            checkpoint=resources.checkpoint,
        )

    async def renew(self, connection: Connection, params: Params) -> Any:
        self._renew_lease()
        return {}

    def _open_journal(self, resources: RunResources) -> RunStatus:
        """Opens the run's journal, and creates the supervisor of its ranks."""
        place = self._place()
        own_group = cgroup.create(self._run_id, self._node)
        key, timeouts = exchange_key(self._secret), self._timeouts
        ranks = RankSupervisor(
            *(place, lambda message: None, own_group, key, timeouts.stuck_after_s, self._warm, timeouts.spares_after_s)
        )
        ranks.awaits_signal = self.on_sigterm is not None
        ranks.gpu_acquisition = GpuAcquisition(resources, self._host, lambda message: ranks.send(message))
        self._ranks = ranks
        self._metrics.serve(ranks.on_datagram)
        ranks.read_reports = self._metrics.read_last
        self._journal = Journal(os.path.join(self._folder, "journal.jsonl"), self._notify_journal_growth)
        self._status = RunStatus(self._run_id, self._journal)
        return self._status

    async def start(self, connection: Connection, params: Params) -> Any:
        """Begins the run with this keeper as its primary. The first of `members` must be this host."""
        ranks, status, resources = self._ready()
        hosts = [member["host"] for member in params["members"]]
        unknown = sorted({replica["host"] for replica in params["replicas"]} - set(hosts))
        if not params["replicas"] or unknown or hosts[:1] != [self._host] or len(set(hosts)) != len(hosts):
            raise RpcError(
                f"the plan does not fit: hosts {', '.join(hosts)}, unknown {', '.join(unknown) or 'none'}, "
                f"{len(params['replicas'])} replicas, primary {self._host}",
                "params",
            )
        try:
            start_at = None if params.get("start_at") is None else timestamps.parse_timestamp(params["start_at"])
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
                "sweep": params.get("sweep"),
                "own_jobs": params.get("own_jobs") or OwnJobs(replicas=[], masters={}),
            },
            ranks,
            status,
            resources.gang_socket,
            self._secret,
            self._timeouts,
            own,
        )
        if self._calendar is not None:
            primary.update_calendar(self._calendar)
        self._participant = primary
        self._decided.set()
        await primary.begun.wait()  # The run's first state must be in the journal before this call is answered.
        return {}

    async def calendar(self, connection: Connection, params: Params) -> Any:
        """Stores a calendar from the daemon. The calendar contains only the bookings that concern this run."""
        self._calendar = calendar.parse(params["snapshot"])
        if isinstance(self._participant, Primary):
            self._participant.update_calendar(self._calendar)
        return {}

    async def join(self, connection: Connection, params: Params) -> Any:
        """Begins the run with this keeper as a member. `primary` describes the primary (`protocol.messages.Member`)."""
        ranks, status, resources = self._ready()
        primary = params["primary"]
        place = None
        if params.get("own_job"):
            place = Place(
                address=resources.address,
                interface=resources.interface,
                ports=resources.ports,
                run_dir=self._folder,
                gpus=list(resources.gpus),
            )
        self._participant = Member(self._host, primary, ranks, status, resources, self._secret, self._timeouts, place)
        self._decided.set()
        return {}

    def _ready(self) -> tuple[RankSupervisor, RunStatus, RunResources]:
        self._renew_lease()
        if self._ranks is None or self._status is None or self._resources is None:
            raise RpcError(f"the run {self._run_id} is not prepared here", "not_prepared")
        if self._decided.is_set():
            raise RpcError(f"the run {self._run_id} has begun here already", "begun")
        return self._ranks, self._status, self._resources

    async def invite(self, connection: Connection, params: Params) -> Any:
        """Returns the data that a host needs to join the live run (`protocol.growth_messages.Invitation`)."""
        return self._primary().growth.invite(str(params["host"]))

    async def hold(self, connection: Connection, params: Params) -> Any:
        """Reserves ports for replicas that will be added on this host. Returns the same values as `prepare`."""
        resources = self._resources
        if self._participant is None or resources is None:
            raise RpcError(f"the run {self._run_id} has not begun here", "not_prepared")
        return Prepared(
            pid=os.getpid(),
            address=resources.address,
            interface=resources.interface,
            ports=await resources.hold_more(int(params["ports"])),
            gang_port=resources.gang_port,
            run_dir=self._folder,
            checkpoint=resources.checkpoint,
        )

    async def grow(self, connection: Connection, params: Params) -> Any:
        """Adds replicas to the live run (`protocol.growth_messages.Grow`)."""
        growth, replicas = self._primary().growth, params["replicas"]
        host = growth.check(params)  # type: ignore[arg-type]  # The parameters are untyped JSON.
        names = [str(replica["name"]) for replica in replicas]
        entry = attribution_entry("grow", params.get("by"), host=host, replicas=names)
        # The event loop calls `grow`, because its exception handler ends the keeper. If `grow` were called
        # here, an error in the decisions would only fail this request.
        asyncio.get_running_loop().call_soon(growth.grow, host, replicas, entry)
        return {}

    async def withdraw(self, connection: Connection, params: Params) -> Any:
        """Cancels the addition of replicas that are not members yet."""
        why = f"{clean_name(params.get('by')) or 'the user'} has interrupted their addition"
        names = [str(name) for name in params["replicas"]]
        asyncio.get_running_loop().call_soon(self._primary().growth.withdraw, names, why)
        return {}

    async def sweep(self, connection: Connection, params: Params) -> Any:
        """Returns the sweep's lost hosts and, if `full` is true, also the sweep. Called by the sweep's coordinator."""
        return self._primary().sweep(full=bool(params.get("full")))

    async def trial(self, connection: Connection, params: Params) -> Any:
        """Calls the method `method` of a trial's keeper on `host`, at the request of the sweep's coordinator."""
        return await self._primary().call_trial(str(params["host"]), str(params["method"]), params["params"])

    async def fail(self, connection: Connection, params: Params) -> Any:
        """Ends the sweep as failed, at the request of its coordinator."""
        asyncio.get_running_loop().call_soon(self._primary().fail, str(params["reason"]))
        return {}

    def _primary(self) -> Primary:
        if not isinstance(self._participant, Primary) or self._participant.has_finished:
            raise RpcError(f"{self._host} is not the primary of a live run {self._run_id}", "not_primary")
        return self._participant

    async def stop(self, connection: Connection, params: Params) -> Any:
        """Requests the end of the run on all its hosts. `force` skips the grace period.

        `by` is the name of the user.
        """
        force, by = bool(params.get("force")), clean_name(params.get("by"))
        reason = str(params.get("reason") or (f"stopped by {by}" if by else "stopped on request"))
        self._stop(reason, force=force, entry=attribution_entry("stop", by, force=force))
        return {}

    def end_run(self, reason: str, *, is_pause: bool, within_s: float | None = None) -> None:
        """Ends the run at the request of its job or, if `is_pause` is true, pauses it until the job starts again.

        `within_s` is an upper limit in seconds for the grace period. If it is None, the policy's grace period applies.
        """
        self._stop(reason, force=False, pause=is_pause, within_s=within_s)

    def leave(self, reason: str) -> None:
        """Makes this host leave the run, because the host's job ends. The run continues with its other jobs."""
        if isinstance(self._participant, Member):
            asyncio.get_running_loop().call_soon(self._participant.leave, reason)
        elif not self._decided.is_set():
            self._give_up_launch()

    @property
    def outcome(self) -> dict[str, Any] | None:
        """How the run ended, or None if it has not ended.

        Contains the run's `state`, `reason` and last `metrics`, and whether the run is only `paused`.
        """
        status = self._status
        if status is None or status.ended is None:
            return None
        paused = bool(status.pause_reason) and status.state is RunState.WAITING
        return {**{name: status.ended[name] for name in ("state", "reason", "metrics")}, "paused": paused}

    def _stop(
        self,
        reason: str,
        *,
        force: bool,
        entry: dict[str, Any] | None = None,
        pause: bool = False,
        within_s: float | None = None,
    ) -> None:
        """Ends the run or, if it has not begun, its launch. `entry` is the journal entry of a user's request."""
        if self._participant is not None:
            # `stop` is called by the event loop, whose exception handler ends the keeper. If it were called here, an
            # internal error would only make this request fail, and the keeper would continue with an invalid state.
            asyncio.get_running_loop().call_soon(
                partial(self._participant.stop, reason, force=force, asked=entry, pause=pause, within_s=within_s)
            )
        elif not self._decided.is_set():
            if self._status is None:
                self._discarding = True
            elif not pause:  # After a pause, the run begins when its job starts again.
                if entry is not None:
                    self._status.asked(entry)
                self._status.end(RunState.STOPPED, reason)
            self._give_up_launch()

    def _give_up_launch(self) -> None:
        """Abandons the launch, so that this keeper exits. Must not be called after the run has begun."""
        if not self._preparing.is_set():
            self._preparing.set()
            self._prepared.set()
        self._decided.set()

    async def abort(self, connection: Connection, params: Params) -> Any:
        """Releases the resources of a run that has not begun, and removes its folder."""
        if self._participant is not None:
            raise RpcError(f"the run {self._run_id} has begun", "begun", "Stop it instead.")
        self._discarding = True
        self._give_up_launch()
        await self._over.wait()
        return {}

    async def status(self, connection: Connection, params: Params) -> Any:
        if self._status is not None:
            return self._status.status()
        return {"state": "sending", "reason": "", "replicas": [], "metrics": {}, "first_step_at": None}

    async def metrics(self, connection: Connection, params: Params) -> Any:
        """Returns the PIDs and latest metrics of this host's replicas."""
        if self._ranks is None:
            return {"pids": {}, "metrics": {}}
        return {"pids": self._ranks.pids(), "metrics": self._ranks.metrics.all()}

    async def sample(self, connection: Connection, params: Params) -> Any:
        """Returns a sample of this host and its replicas' metrics, in the format of the daemon's `telemetry.sample`."""
        if self._sampler is None:
            # The sampler is imported here, because only a run without a daemon needs it, and each import uses memory in
            # every keeper.
            from torchyard_agent.telemetry.sampler import Sampler

            self._sampler = Sampler(self._agent_dir)
        pids = {} if self._ranks is None else self._ranks.pids()
        metrics = {} if self._status is None else self._status.metrics
        return {
            **self._sampler.sample({f"{self._run_id}/{replica}": found for replica, found in pids.items()}),
            "reports": {f"{self._run_id}/{replica}": found for replica, found in metrics.items()},
        }

    def _notify_journal_growth(self) -> None:
        for connection in list(self._connections):
            connection.notify("journal", {})

    def _reap(self) -> None:
        if self._ranks is not None:
            self._ranks.reap()
        else:
            self._warm.reap()

    def _on_sigterm(self) -> None:
        if self.on_sigterm is not None:
            self.on_sigterm()
            return
        reason = f"the run keeper on {self._host} received SIGTERM; possibly the host is shutting down"
        self._stop(reason, force=False)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ends the keeper after an error in a callback or task, because a decision may not have been executed.

        Errors of connections are only logged.
        """
        error = context.get("exception")
        of_a_connection = any(word in context for word in ("transport", "protocol", "socket"))
        if isinstance(error, Exception) and not of_a_connection and not self._crash.done():
            self._crash.set_exception(error)
        else:
            log.error("%s: %r", context.get("message"), error)

    async def _end_after_crash(self, running: asyncio.Task[None], reason: str) -> None:
        """Kills all processes of the run on this host, and journals the reason."""
        running.cancel()
        if self._ranks is not None:
            self._ranks.send = lambda message: (
                None
            )  # The ranks' exit is not reported, so the primary does not restart them.
            await asyncio.wait({running}, timeout=FLUSH_S)
            while left := [pid for pid in process_control.descendants(os.getpid()) if process_control.may_signal(pid)]:
                for pid in left:
                    process_control.send(pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
                with contextlib.suppress(ChildProcessError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
        if self._status is not None and self._status.ended is None:
            for replica in list(self._status.replicas.values()):
                if not ReplicaState(replica["state"]).is_terminal:
                    name, host, restarts = replica["name"], replica["host"], replica["restarts"]
                    self._status.replica_state(name, host, ReplicaState.STOPPED, None, reason, restarts)
            self._status.end(RunState.FAILED, reason)

    def _release(self) -> None:
        for pid in self._warm.close():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._metrics.close()
        if self._journal is not None:
            self._journal.close()
        if self._resources is not None:
            self._resources.release()
        cgroup.end_leftovers(self._run_id, self._node)
        if self._discarding and not self.continues:
            RunResources.remove(self._folder)

    async def _flush(self) -> None:
        """Waits until clients have received the last answers and notifications, for at most FLUSH_S."""
        deadline = asyncio.get_running_loop().time() + FLUSH_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
            if not self._answering and not any(connection.backlog for connection in self._connections):
                return


def _in_folder(rank: RankAssignment, placeholder: str, folder: str) -> RankAssignment:
    """Returns the assignment with the desktop's placeholder replaced by `folder`, the path of the run's folder."""
    argv = [word.replace(placeholder, folder) for word in rank["argv"]]
    env = {name: value.replace(placeholder, folder) for name, value in rank["env"].items()}
    return RankAssignment(rank=rank["rank"], local_rank=rank["local_rank"], argv=argv, env=env)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True
