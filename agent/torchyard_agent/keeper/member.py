"""A member of a run. It executes the primary's orders, and ends its own ranks if it loses the primary."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from torchyard_agent.background_threads import in_a_thread
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.checkpoints.checkpoint_replication import CheckpointReceiver
from torchyard_agent.keeper.decisions import state_machine
from torchyard_agent.keeper.decisions.events import HostReturned
from torchyard_agent.keeper.decisions.instructions import RecordGangRestart, RecordMembership, RecordReplicaState
from torchyard_agent.keeper.link import gang_link, messages
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, MessageChannel, Stream
from torchyard_agent.keeper.link.messages import FromMember, FromPrimary
from torchyard_agent.keeper.processes.rank_supervisor import RankSupervisor
from torchyard_agent.keeper.resources import RunResources
from torchyard_agent.keeper.run_status import RunStatus
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Member as MemberAddress
from torchyard_agent.protocol.messages import Place
from torchyard_agent.protocol.run_states import ReplicaState, RunState

if TYPE_CHECKING:
    from torchyard_agent.keeper.trial_keepers import TrialKeepers

RETRY_S = (0.02, 0.5)
"""Shortest and longest delay in seconds between attempts to connect to the primary, which may still be starting."""
LEAVE_WITHIN_S = 2.0
"""Maximum time in seconds to wait for the primary's acknowledgement when this host leaves the run."""

log = logging.getLogger(__name__)


class Member:
    """The keeper of a host that is not the primary.

    When its lease expires, the member ends its ranks and frees its GPUs. The primary may still be running and waiting
    for this host. Therefore the member tries to reconnect for another `host_wait_s` seconds, and rejoins the run if it
    succeeds.
    """

    def __init__(
        self,
        host: str,
        primary: MemberAddress,
        ranks: RankSupervisor,
        status: RunStatus,
        resources: RunResources,
        secret: bytes,
        timeouts: Timeouts,
        place: Place | None = None,
    ):
        self._host = host
        self._place = place
        """The address, ports and GPUs of this host if it belongs to a group job, otherwise None."""
        self._primary = primary
        self._ranks = ranks
        self._status = status
        self._resources = resources
        self._secret = secret
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._channel = MessageChannel(lambda data: self._on_message(messages.decode_from_primary(data)))
        self._epoch = os.urandom(8).hex()
        self._was_connected = False
        self._host_wait_s = 0.0
        self._cut_off = False
        """Whether this host has ended its ranks because its lease expired, and has not rejoined the run since."""
        self._released_gpus = False
        """Whether this host unlocked its GPUs when its lease expired. Other runs may have locked them since."""
        self._rejoining = asyncio.Lock()
        """Held while this host ends its ranks because the lease expired, and while it rejoins the run."""
        self._last_error = "no answer"
        self._finished: asyncio.Future[tuple[RunState, str]] = self._loop.create_future()
        """The run's final state and the reason for it. Set when the primary sends them, or when the run ends on this
        host without the primary."""
        folder = checkpoint_folders.checkpoints_dir(ranks.place.folder)
        self._replication = CheckpointReceiver(folder, ranks.place.run_id, host, self._dial, self._send)
        self._replicates = False
        """Whether checkpoints of the run are replicated."""
        self._leaving: asyncio.Task[None] | None = None
        self._trials: TrialKeepers | None = None
        self._answering: set[asyncio.Task[None]] = set()
        """Tasks that answer requests about trials. The event loop alone would not keep these tasks alive."""
        ranks.send = self._send

    async def run(self) -> None:
        """Serves as a member until the run has ended, or the primary is lost and all ranks of this host have ended."""
        self._status.start()
        tasks = [self._loop.create_task(self._keep_connected()), self._loop.create_task(self._watch_lease())]
        waited: set[asyncio.Future[Any]] = {self._finished, *tasks}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._status.ended is None:
                await self._end_alone(*self._finished.result())
        finally:
            for task in (*tasks, *self._answering, *([self._leaving] if self._leaving is not None else [])):
                task.cancel()
            self._replication.close()
            self._channel.close()

    def _send(self, message: FromMember) -> None:
        self._channel.send(messages.encode(message))

    def stop(
        self,
        reason: str,
        *,
        force: bool,
        asked: Message | None = None,
        pause: bool = False,
        within_s: float | None = None,
    ) -> None:
        """Forwards a stop request to the primary, or ends the run on this host if the primary is unreachable.

        Args:
            asked: The journal entry of a user's request.
            pause: Whether the run is only paused until its scheduler starts it again.
            within_s: An upper limit in seconds for the grace period. If it is None, the policy's grace period applies.
        """
        if asked is not None:
            self._status.asked(asked)
        if self._was_connected and not self._cut_off:
            self._send(messages.ForwardedStop(reason, force, asked, pause, within_s))
        else:
            self._finish(RunState.STOPPED, reason)

    def leave(self, why: str) -> None:
        """Leaves the run, because the job of this host ends. The run continues without the host."""
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._leave(why))

    async def _leave(self, why: str) -> None:
        self._send(messages.HostLeaves(why))
        deadline = self._loop.time() + LEAVE_WITHIN_S
        while not self._channel.all_acknowledged and self._channel.connected and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._finish(RunState.STOPPED, why)

    def _finish(self, state: RunState, why: str) -> None:
        if not self._finished.done():
            self._finished.set_result((state, why))

    async def _dial(self, introduction: Message) -> tuple[Stream, Message]:
        """Opens a connection to the primary in addition to the gang link.

        Raises one of NETWORK_ERRORS if this fails.
        """
        address = await _resolved(self._primary["address"])
        return await gang_link.call(address, self._primary["gang_port"], self._secret, introduction)

    async def _keep_connected(self) -> None:
        """Connects to the primary, and reconnects whenever the connection is lost."""
        address, port = self._primary["address"], self._primary["gang_port"]
        retry_s = RETRY_S[0]
        while not self._finished.done():
            cut_off = self._cut_off
            introduction = {"host": self._host, "epoch": self._epoch, "got": self._channel.received, "cut_off": cut_off}
            if self._place is not None:
                introduction["place"] = self._place
            try:
                stream, answer = await gang_link.call(await _resolved(address), port, self._secret, introduction)
            except NETWORK_ERRORS as error:
                self._last_error = str(error) or "no answer"
                if self._cut_off and isinstance(error, ConnectionRefusedError):
                    self._finish(RunState.FAILED, "the run has ended on its primary host")
            else:
                self._was_connected = True
                async with self._rejoining:
                    # If the lease has expired during the call to the primary, the introduction is outdated and must be
                    # sent again.
                    agreed = answer["lost"] or cut_off or not self._cut_off
                    if agreed and (answer["lost"] or self._cut_off):
                        await self._rejoin()
                if agreed and not self._finished.done():
                    await self._channel.run_connection(stream, int(answer["got"]))
                stream.abort()
                retry_s = RETRY_S[0]
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 1.5, RETRY_S[1])

    async def _watch_lease(self) -> None:
        """Ends this host's ranks when its lease expires, because they must not run together with the next generation.

        If this host does not reach the primary in time, at the start or after the lease has expired, the run ends on
        this host.
        """
        name, beat_at = self._primary["host"], 0.0
        join_by = self._loop.time() + self._timeouts.join_within_s
        while True:
            await asyncio.sleep(min(self._timeouts.heartbeat_s, self._timeouts.lease_s / 10))
            now = self._loop.time()
            if now >= beat_at:
                beat_at = now + self._timeouts.heartbeat_s
                self._channel.beat()
            silent_s = now - self._channel.heard_at
            if self._cut_off:
                if silent_s > self._timeouts.lease_s + self._host_wait_s:
                    self._finish(RunState.FAILED, f"the primary host {name} did not come back")
                    return
            elif self._was_connected and silent_s > self._timeouts.lease_s:
                async with self._rejoining:
                    silent_s = self._loop.time() - self._channel.heard_at
                    if silent_s <= self._timeouts.lease_s:
                        # The connection was restored while this task waited for the lock.
                        continue
                    lost = f"the primary host {name} was lost: not heard for {silent_s:.0f} s"
                    await self._end_alone(RunState.FAILED, lost)
                    self._released_gpus = self._resources.holds_gpus
                    self._resources.release_gpus()
                    self._cut_off = True
            elif not self._was_connected and now > join_by:
                self._finish(RunState.FAILED, self._cannot_reach())
                return

    async def _rejoin(self) -> None:
        """Rejoins the run without the earlier ranks of this host, which the primary may have restarted on other hosts.

        Ranks that are still running are ended first. GPUs that were released when the lease expired are locked again.
        """
        if not self._cut_off:
            await self._end_ranks()
        elif self._released_gpus:
            try:
                await self._resources.lock_gpus()
            except RpcError as held:
                log.warning("cannot rejoin the run: %s", held)
                self._finish(RunState.FAILED, f"the host could not rejoin the run: {held}")
                return
        self._ranks.send = self._send
        self._cut_off = False
        self._status.revive(f"the primary host {self._primary['host']} is connected again")
        self._send(HostReturned(self._host))
        if self._replicates:
            self._send(self._replication.newest())

    def _cannot_reach(self) -> str:
        primary = self._primary
        return (
            f"{self._host} did not reach the primary {primary['host']} at {primary['address']}:{primary['gang_port']}"
            f" ({self._last_error}); is a firewall in between? Set `ports` of {primary['host']} in the fleet file to"
            " ports that it lets through"
        )

    async def _end_alone(self, state: RunState, reason: str) -> None:
        log.warning("ending without the primary: %s", reason)
        self._channel.close()
        self._status.run_state(RunState.STOPPING, reason)
        await self._end_ranks()
        for replica in list(self._status.replicas.values()):
            if not ReplicaState(replica["state"]).is_terminal:
                self._status.replica_state(replica["name"], self._host, ReplicaState.STOPPED, None, reason)
        self._status.end(state, reason)

    async def _end_ranks(self) -> None:
        # The primary already considers the ranks of this host lost, so their end is not reported.
        self._ranks.send = lambda message: None
        self._ranks.end(self._ranks.names, state_machine.KILL_AFTER_S)
        self._ranks.sweep(state_machine.KILL_AFTER_S)
        await self._ranks.swept()

    def _on_message(self, message: FromPrimary) -> None:
        """Journals a state that the primary has sent, or executes an order."""
        if isinstance(message, messages.RunStateChanged):
            self._status.run_state(*message)
        elif isinstance(message, RecordReplicaState):
            self._status.replica_state(*message)
        elif isinstance(message, RecordGangRestart):
            self._status.gang_restart(*message)
        elif isinstance(message, RecordMembership):
            self._status.membership(*message)
        elif isinstance(message, messages.RunEnded):
            self._status.end_as(message.ended)
            # The run ends on this host only after the message RunEnded has been acknowledged.
            self._loop.call_soon(self._finish, RunState(message.ended["state"]), "")
        elif isinstance(message, messages.TrialRequest):
            task = self._loop.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif isinstance(message, messages.FetchCheckpoint):
            self._replication.fetch(message.name)
        elif isinstance(message, messages.BringCheckpoint):
            self._replication.bring(message.name)
        else:
            if isinstance(message, messages.Assignment):
                self._host_wait_s, self._replicates = message.host_wait_s, message.carry
                if self._replicates:
                    # The first start of ranks depends on the newest checkpoint of each host. Therefore the primary must
                    # receive this host's report before HostJoined.
                    self._send(self._replication.newest())
            self._ranks.obey(message)

    async def _answer(self, request: messages.TrialRequest) -> None:
        from torchyard_agent.keeper import trial_keepers  # Only a sweep needs this module.

        if self._trials is None:
            self._trials = trial_keepers.TrialKeepers(self._ranks)
        self._send(await trial_keepers.answer_request(self._trials, request))


async def _resolved(address: str) -> str:
    """Returns the IP address of a host that is given by name or address.

    Raises OSError if the name cannot be resolved.
    """
    if address.replace(".", "").isdecimal() or ":" in address:
        return address
    found = await in_a_thread(socket.getaddrinfo, address, None)
    return str(found[0][4][0])
