"""The strategy `reduction_server` with `on_worker_loss: continue`: training continues without lost workers.

Memberships, votes and the return of workers work as in all_reduce (`replaceable_group`). Only the sums of the gradients
come from reducers. Each membership has new connections to the reducers. The introduction of each connection contains
the number and the size of the membership. A loss is handled as follows:

1. After a loss the members disconnect from the reducers, and then connect to each other as the new membership. Once
   they are connected, no member sends parts of the earlier membership.
2. Then they connect to the reducers. When the first member of a newer membership connects, a reducer discards all
   incomplete sums, and from then on waits for one part of each new member. It refuses earlier memberships.
3. The members agree on the last operation that all of them have completed, and repeat the interrupted exchange. This is
   possible because sums are used only after a vote that all members have received them. Sums are divided by the number
   of members.

Therefore a reducer needs no messages from the keeper. The loss of a reducer is handled as in reduction_server: the
clients wait for its replacement, and send the unfinished step again. In a mixed plan, a lost worker was also a reducer.
Therefore each membership chooses its plan again, and of the workers only its members sum gradients. The ring is used
only if it is the plan for all workers, because reducers exit at the start if the plan is the ring.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import torch

from torchyard_roles.errors import PeerLost, RolesError, UsageProblem
from torchyard_roles.exchange.tensor_connection import Peer, listen_at
from torchyard_roles.strategies.all_reduce import hardware
from torchyard_roles.strategies.continuing_all_reduce import ContinuingAllReduce
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.gradient_buckets import Average
from torchyard_roles.strategies.nccl_group import LONGEST_PAUSE_S
from torchyard_roles.strategies.reduction_server import reduction_plan
from torchyard_roles.strategies.reduction_server.hierarchical_reduction import HierarchicalReduction, LocalGroups
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import (
    CONNECT_S,
    RECONNECT_S,
    ReduceClient,
    fitting_chunk,
)
from torchyard_roles.strategies.reduction_server.strategy import FINISH_S
from torchyard_roles.strategies.replaceable_group import POLL_S, STEP_S, Interrupted, ReplaceableGroup

if TYPE_CHECKING:
    import socket

    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.coordination.membership import Members
    from torchyard_roles.environment import Environment

NEWS_S = 5.0
"""Longest time in seconds to wait, after an error of a reducer, for a new membership that explains the error."""


class ReducedGroup(ReplaceableGroup):
    """A replaceable group with connections to the reducers. Each worker has one rank."""

    def __init__(self, store: JoinStore, environment: Environment, device: torch.device) -> None:
        self._environment = environment
        peers = environment.peers
        self._trainers = [Peer(each.name, each.address, each.port) for each in peers.trainers]
        self._own = self._trainers[environment.rank or 0]
        self._reducer: Reducer | None = None
        """The reducer in this process, or None before the first mixed plan."""
        self._connecting: Future[ReduceClient] | None = None
        """The future of the client of the current membership."""
        self._rounds = 0
        """The number of rounds in the current membership."""
        self._others = {(each.address, each.port) for each in (*peers.reducer, *self._trainers)}
        self._staged: HierarchicalReduction | None = None
        """Copies buckets between the GPU and the client of the current membership."""
        super().__init__(store, environment, device)

    @property
    def client(self) -> ReduceClient | None:
        """The client of the current membership, or None if it is not yet connected."""
        connecting = self._connecting
        is_connected = connecting is not None and connecting.done() and connecting.exception() is None
        return connecting.result() if is_connected and connecting is not None else None

    def reduce(self, flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
        """Starts replacing a tensor by its mean over all members.

        Returns a function that waits until the mean is complete.

        If the operation is interrupted, the function raises Interrupted, and the tensor must not be used again.
        """
        if len(self.ranks) == 1:
            return lambda: None
        client = self.client
        if client is None:
            return _fail
        if flat.is_cuda:
            staged = self._staged = self._staged or HierarchicalReduction(client, LocalGroups([1], 0), self._device)
            copied = staged.average(flat, round_, bucket)
            return lambda: self._result_on_gpu(staged, copied)
        future = client.reduce(flat, round_, bucket)
        return lambda: self._result(future)

    def after_round(self, _: int) -> None:
        """Adapts the chunk size to the rate that the first member measured, after 1, 2, 4, 8 … rounds."""
        self._rounds += 1
        client = self.client
        if client is None or len(self.ranks) == 1 or self._rounds & (self._rounds - 1):
            return
        seen = torch.tensor([client.bytes_a_second], dtype=torch.float64, device="cpu")
        self.broadcast([seen])
        if rate := float(seen):
            client.resize(fitting_chunk(rate))

    def close(self) -> None:
        connecting, self._connecting = self._connecting, None
        staged, self._staged = self._staged, None
        if connecting is not None:
            _end(connecting, staged, goodbye=True)
        super().close()
        if self._reducer is not None:
            self._reducer.finish(FINISH_S)
            self._reducer = None

    def abandon(self) -> None:
        """Ends all threads after an exception, without waiting for other processes."""
        client = self.client
        if client is not None:
            client.close(goodbye=False)
        if self._reducer is not None:
            self._reducer.close()

    def _open(self, members: Members) -> None:
        environment = self._environment
        reducers = environment.peers.reducer
        plan = reduction_plan.choose(len(members.ranks), len(reducers), ring=False)
        place = members.ranks.index(self._rank)
        local: dict[int, Reducer] = {}
        if plan.kind == "mixed":
            if self._reducer is None:
                self._reducer = Reducer(listen_at(self._own), environment.key, self._own.name).start()
            local[len(reducers) + place] = self._reducer
        super()._open(members)
        self._rounds = 0
        connecting = self._connecting = Future()

        def connect() -> None:
            try:
                client = ReduceClient(
                    [*reducers, *(self._trainers[rank] for rank in members.ranks)],
                    plan.weights,
                    environment.key,
                    place,
                    len(members.ranks),
                    environment.options.reduction_order,
                    name=environment.name,
                    generation=environment.generation,
                    membership=members.number,
                    divisor=len(members.ranks),
                    local=local,
                    # A lost reducer may be restarting at the same time.
                    connect_s=RECONNECT_S if members.number else CONNECT_S,
                )
            except Exception as error:  # The thread that waits for the client raises this error.
                connecting.set_exception(error)
            else:
                connecting.set_result(client)

        # A separate thread calls the constructor, because the call cannot be interrupted.
        threading.Thread(target=connect, name="torchyard-connect-reducers", daemon=True).start()
        self._result(connecting)

    def _shut_down(self) -> None:
        connecting, self._connecting = self._connecting, None
        staged, self._staged = self._staged, None
        if connecting is not None:
            # Disconnecting waits for the connections' threads and for a pending connection, so it runs in a thread.
            disconnect = partial(_end, connecting, staged)
            threading.Thread(target=disconnect, name="torchyard-disconnect", daemon=True).start()
        super()._shut_down()

    def _is_other(self, connection: socket.socket) -> bool:
        own, peer = connection.getsockname()[:2], connection.getpeername()[:2]
        return peer in self._others or (self._reducer is not None and own[1] == self._own.port)

    def _result(self, future: Future[ReduceClient] | Future[torch.Tensor]) -> None:
        """Waits for a future of the current membership. Raises Interrupted, or the error that ended the exchange."""
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                future.result(POLL_S)
            except concurrent.futures.TimeoutError:
                self._check_members()
                if time.monotonic() > deadline:
                    raise Interrupted("not all ranks came in time") from None
            except RolesError as error:
                self._interrupt(error)
            else:
                return

    def _result_on_gpu(self, staged: HierarchicalReduction, copied: Any) -> None:
        """Waits until a bucket's average is on the GPU. Raises Interrupted, or the error that ended the exchange."""
        deadline = time.monotonic() + STEP_S
        while not copied.done():
            self._check_members()
            if time.monotonic() > deadline:
                raise Interrupted("not all ranks came in time")
            time.sleep(LONGEST_PAUSE_S)
        if staged.failure is not None:
            self._interrupt(staged.failure)
        copied.wait()  # The current stream waits for the copy to the GPU.

    def _interrupt(self, error: RolesError) -> NoReturn:
        """Raises Interrupted if a worker was lost or there is a new membership, and otherwise `error`."""
        reducers = [each.name for each in self._environment.peers.reducer]
        is_loss = isinstance(error, PeerLost) and error.name not in reducers
        if is_loss or self.membership.wait_for_change(self._members.number, NEWS_S):
            raise Interrupted(error.message) from None
        raise error


def _end(
    connecting: Future[ReduceClient], staged: HierarchicalReduction | None = None, *, goodbye: bool = False
) -> None:
    try:
        client = connecting.result()
    except Exception:  # The client could not connect, so there is nothing to close.
        return
    client.close(goodbye=goodbye)
    if staged is not None:
        staged.close()


def _fail() -> NoReturn:
    raise Interrupted("the group has ended")


class ContinuingReductionServer(ContinuingAllReduce):
    """The strategy `reduction_server` that replaces its connections after the loss of a worker.

    It does not initialize torch.distributed.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        workers = len(environment.peers.trainers) or environment.world_size
        self._plan = reduction_plan.choose(workers, len(environment.peers.reducer))

    def start(self, device: torch.device) -> None:
        if any(each.ranks > 1 for each in self._environment.peers.trainers):
            raise UsageProblem(
                "strategy.on_worker_loss: continue was chosen, and a worker has several processes; this version of "
                "reduction_server supports it for workers of one process only.",
                "Set strategy.on_worker_loss to restart.",
            )
        super().start(device)

    def _make_group(self, store: JoinStore, device: torch.device) -> ReplaceableGroup:
        if self._plan.kind == "ring":
            return super()._make_group(store, device)
        return ReducedGroup(store, self._environment, device)

    def _make_averager(self, device: torch.device) -> GradientAverager:
        group = self.members
        if self._environment.rank == 0:
            print(f"torchyard: {self._plan.sentence}", flush=True)
        if not isinstance(group, ReducedGroup):
            return super()._make_averager(device)

        def through_reducers() -> Average:
            return group.reduce

        averager = GradientAverager(
            device,
            through_reducers,
            bucket_bytes=self._environment.options.bucket_mb * 1024 * 1024,
            hardware=hardware(device),
            after_round=group.after_round,
            group=group,
        )
        group.on_repeat = averager.withdraw
        return averager

    def statistics(self) -> dict[str, float]:
        """Returns the same metrics as the strategy reduction_server."""
        found = super().statistics()
        client = self.members.client if isinstance(self.members, ReducedGroup) else None
        if client is not None and self._averager is not None:
            exposed_s = sum(self._averager.times())
            wait_s = min(exposed_s, max(found["wait_s"], client.times().wait_s))
            found.update(exchange_s=exposed_s - wait_s, wait_s=wait_s)
        return found

    def abandon(self) -> None:
        if isinstance(self.members, ReducedGroup):
            self.members.abandon()
