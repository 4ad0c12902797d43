"""A member's part: holds a line to the primary, does what it says, and stops its own ranks when it is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.checkpoints.checkpoint_replication import Receiving
from torchyard_agent.keeper.decisions import state_machine
from torchyard_agent.keeper.link import gang_link
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Line, Message, Stream
from torchyard_agent.keeper.processes.rank_supervisor import Share
from torchyard_agent.keeper.resources import Ground, in_a_thread
from torchyard_agent.keeper.run_status import Record
from torchyard_agent.keeper.timeouts import Patience
from torchyard_agent.protocol import messages
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.run_states import ReplicaState, RunState

AGAIN_S = (0.02, 0.5)
"""Between two attempts to reach the primary: soon at first, when it is just starting too, then less and less."""

log = logging.getLogger(__name__)


class Member:
    """The keeper of a host that is not the primary.

    Once the primary has been silent for the length of the lease, the run is over as far as this host can know: its
    ranks end, its GPUs are free. But it may be this host alone that was cut off, and the primary waits for it: so it
    goes on calling for `host_wait_s`, and takes part again once it is heard.
    """

    def __init__(
        self,
        host: str,
        primary: messages.Member,
        share: Share,
        record: Record,
        ground: Ground,
        secret: bytes,
        patience: Patience,
    ):
        self._host = host
        self._primary = primary
        self._share = share
        self._record = record
        self._ground = ground
        self._secret = secret
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._line = Line(self._hear)
        self._epoch = os.urandom(8).hex()
        self._met = False
        self._host_wait_s = 0.0
        self._cut_off = False
        """Whether this host's ranks have been ended because the primary was not heard."""
        self._let_go = False
        """Whether it held GPUs until then, which others may have now."""
        self._turning = asyncio.Lock()
        """Held while this host withdraws from the run or comes back to it."""
        self._last_error = "no answer"
        self._finished: asyncio.Future[tuple[RunState, str]] = self._loop.create_future()
        """How the run ends here where the primary does not tell."""
        folder = checkpoint_folders.checkpoints_dir(share.place.folder)
        self._carrying = Receiving(folder, share.place.run_id, host, self._dial, self._line.send)
        self._carries = False
        """Whether the primary has checkpoints carried."""
        share.tell = self._line.send

    async def run(self) -> None:
        """Returns when the primary has told the run's end, or is gone and nothing of the run is left here."""
        self._record.start()
        tasks = [self._loop.create_task(self._keep_in_touch()), self._loop.create_task(self._watch_lease())]
        waited: set[asyncio.Future[Any]] = {self._finished, *tasks}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._record.ended is None:
                await self._end_alone(*self._finished.result())
        finally:
            for task in tasks:
                task.cancel()
            self._carrying.close()
            self._line.close()

    def stop(self, reason: str, *, force: bool, told: Message | None = None) -> None:
        """Passes the wish on to the primary; where it cannot be reached, this host leaves on its own."""
        if told is not None:
            self._record.asked(told)
        if self._met and not self._cut_off:
            self._line.send({"say": "stop", "reason": reason, "force": force, "asked": told})
        else:
            self._leave(RunState.STOPPED, reason)

    def _leave(self, state: RunState, why: str) -> None:
        if not self._finished.done():
            self._finished.set_result((state, why))

    async def _dial(self, introduction: Message) -> tuple[Stream, Message]:
        """A connection to the primary beside the gang link. Raises one of NETWORK_ERRORS."""
        address = await _resolved(self._primary["address"])
        return await gang_link.call(address, self._primary["gang_port"], self._secret, introduction)

    async def _keep_in_touch(self) -> None:
        """Connects, and connects again whenever the connection breaks."""
        address, port = self._primary["address"], self._primary["gang_port"]
        again_s = AGAIN_S[0]
        while not self._finished.done():
            cut_off = self._cut_off
            introduction = {"host": self._host, "epoch": self._epoch, "got": self._line.got, "cut_off": cut_off}
            try:
                stream, answer = await gang_link.call(await _resolved(address), port, self._secret, introduction)
            except NETWORK_ERRORS as error:
                self._last_error = str(error) or "no answer"
                if self._cut_off and isinstance(error, ConnectionRefusedError):
                    self._leave(RunState.FAILED, "the run has ended on its primary host")
            else:
                self._met = True
                async with self._turning:
                    # This host may have withdrawn while it was calling: the primary must know before it is back.
                    understood = answer["lost"] or cut_off or not self._cut_off
                    if understood and (answer["lost"] or self._cut_off):
                        await self._come_back()
                if understood and not self._finished.done():
                    await self._line.converse(stream, int(answer["got"]))
                stream.abort()
                again_s = AGAIN_S[0]
            await asyncio.sleep(again_s)
            again_s = min(again_s * 1.5, AGAIN_S[1])

    async def _watch_lease(self) -> None:
        """The lease: a member that does not hear the primary ends its own ranks, so that no second set ever runs."""
        name, beat_at = self._primary["host"], 0.0
        join_by = self._loop.time() + self._patience.join_within_s
        while True:
            await asyncio.sleep(min(self._patience.heartbeat_s, self._patience.lease_s / 10))
            now = self._loop.time()
            if now >= beat_at:
                beat_at = now + self._patience.heartbeat_s
                self._line.beat()
            silent_s = now - self._line.heard_at
            if self._cut_off:
                if silent_s > self._patience.lease_s + self._host_wait_s:
                    self._leave(RunState.FAILED, f"the primary host {name} did not come back")
                    return
            elif self._met and silent_s > self._patience.lease_s:
                async with self._turning:
                    silent_s = self._loop.time() - self._line.heard_at
                    if silent_s <= self._patience.lease_s:  # it came back to the run while this waited for its turn
                        continue
                    lost = f"the primary host {name} was lost: not heard for {silent_s:.0f} s"
                    await self._end_alone(RunState.FAILED, lost)
                    self._let_go = self._ground.holds_gpus
                    self._ground.let_go_of_gpus()
                    self._cut_off = True
            elif not self._met and now > join_by:
                self._leave(RunState.FAILED, self._cannot_reach())
                return

    async def _come_back(self) -> None:
        """The primary is heard again, and may have started others meanwhile: first nothing of the run is left here."""
        if not self._cut_off:
            await self._end_ranks()
        elif self._let_go:
            try:
                await self._ground.retake_gpus()
            except RpcError as held:
                log.warning("cannot take part again: %s", held)
                self._leave(RunState.FAILED, f"it could not take part again: {held}")
                return
        self._share.tell = self._line.send
        self._cut_off = False
        self._record.revive(f"the primary host {self._primary['host']} is heard again")
        self._line.send({"say": "back"})
        if self._carries:
            self._line.send(self._carrying.holds())

    def _cannot_reach(self) -> str:
        primary = self._primary
        return (
            f"{self._host} did not reach the primary {primary['host']} at {primary['address']}:{primary['gang_port']}"
            f" ({self._last_error}): is a firewall in between? Set `ports` of {primary['host']} in the fleet file to"
            " what it lets through"
        )

    async def _end_alone(self, state: RunState, reason: str) -> None:
        log.warning("ending without the primary: %s", reason)
        self._line.close()
        self._record.run_state(RunState.STOPPING, reason)
        await self._end_ranks()
        for replica in list(self._record.replicas.values()):
            if not ReplicaState(replica["state"]).is_terminal:
                self._record.replica_state(replica["name"], self._host, ReplicaState.STOPPED, None, reason)
        self._record.end(state, reason)

    async def _end_ranks(self) -> None:
        self._share.tell = lambda message: None  # the primary counts them as lost already
        self._share.end(self._share.names, state_machine.KILL_AFTER_S)
        self._share.sweep(state_machine.KILL_AFTER_S)
        await self._share.swept()

    def _hear(self, message: Message) -> None:
        """Something that the primary says: news for the journal, or an order for the share."""
        say = message["say"]
        if say == "run_state":
            self._record.run_state(RunState(message["state"]), message["reason"], message.get("waiting_for"))
        elif say == "replica_state":
            code: int | None = message["exit_code"]
            state = ReplicaState(message["state"])
            said = message["replica"], message["host"], state, code, message["reason"], message["restarts"]
            self._record.replica_state(*said)
        elif say == "gang_restart":
            self._record.gang_restart(message["gang"], message["generation"], message["cause"])
        elif say == "ended":
            self._record.end_as(message["ended"])
            self._loop.call_soon(self._leave, RunState(message["ended"]["state"]), "")  # after its acknowledgement
        elif say in ("fetch", "bring"):
            self._carrying.obey(message)
        else:
            self._host_wait_s = message.get("host_wait_s", self._host_wait_s)
            self._carries = message.get("carry", self._carries)
            if say == "share" and self._carries:
                self._line.send(self._carrying.holds())  # before this host has joined, so that the first start knows
            self._share.obey(message)


async def _resolved(address: str) -> str:
    """An IP address for what the fleet file calls the primary on the data network. Raises OSError."""
    if address.replace(".", "").isdecimal() or ":" in address:
        return address
    found = await in_a_thread(socket.getaddrinfo, address, None)
    return str(found[0][4][0])
