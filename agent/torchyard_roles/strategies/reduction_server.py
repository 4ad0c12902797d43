"""Synchronous training whose gradients are summed by reducers, or by reducers and workers (`strategy.kind:
reduction_server`); the optimizer stays on the workers.

DDP does all but the exchange itself, which a communication hook does: gradient buckets of `bucket_mb`, in the order
in which they become ready, overlapped with the backward pass. Where the arithmetic says that the ring is as fast
(always with two workers), it is DDP's own ring.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost
from torchyard_roles.exchange.reduce_client import ReduceClient, fitting_chunk
from torchyard_roles.exchange.reducer import Reducer
from torchyard_roles.exchange.wire import Peer, listen_at
from torchyard_roles.strategies import reduction_plan
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.exposed import Exposed
from torchyard_roles.strategies.host_exchange import HostExchange, LocalGroups

FINISH_S = 10.0
"""How long a worker that sums for others waits at its end for those that still want its sums."""


class ReductionServer(AllReduce):
    """The trainers as one torch world, beside which gradients go through reducers."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._environment = environment
        self._reducer: Reducer | None = None
        self._client: ReduceClient | None = None
        self._exchange: HostExchange | None = None
        self._step = -1
        self._device = torch.device("cpu")

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        trainers = self._environment.peers.trainers
        plan = reduction_plan.choose(len(trainers) or self._world_size, len(self._environment.peers.reducer))
        if self._environment.rank == 0:
            print(f"torchyard: {plan.sentence}", flush=True)
        if plan.kind == "ring":
            return super().distribute(model, optimizer, device)
        groups = LocalGroups([trainer.ranks for trainer in trainers], self._rank)
        if groups.first == self._rank:
            self._meet(plan)
        self._device = device
        self._exchange = HostExchange(self._client, groups, device)
        # Gradients that are views of the buckets are not copied to and from them, nor is there memory for both.
        shared = self._shared(
            model, device, bucket_cap_mb=self._environment.options.bucket_mb, gradient_as_bucket_view=True
        )
        # A lambda, since DDP takes annotations of hooks only as classes, which here are strings.
        shared.register_comm_hook(None, lambda _, bucket: self._average(bucket))
        optimizer.register_step_pre_hook(self._before_step)
        self._watch(model, optimizer)
        self._exposed = Exposed(shared, device, meets=False)
        return shared, optimizer

    def statistics(self) -> dict[str, float]:
        """Reducers say how long the last rank was waited for; what of that was seen is at most what the exchange has
        added to the step."""
        found = super().statistics()
        if self._client is not None and self._exposed is not None:
            exposed_s, _ = self._exposed.times()
            wait_s = min(exposed_s, self._client.times().wait_s)
            found.update(exchange_s=exposed_s - wait_s, wait_s=wait_s)
        return found

    def abandon(self) -> None:
        if self._client is not None:
            self._client.close(goodbye=False)  # first, so that who waits for a sum in the exchange's threads wakes up
        if self._exchange is not None:
            self._exchange.close()
        if self._reducer is not None:
            self._reducer.close()

    def leave(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        if self._client is not None:
            self._client.close()
        if self._reducer is not None:
            self._reducer.finish(FINISH_S)
        super().leave()

    def _meet(self, plan: reduction_plan.ReductionPlan) -> None:
        """Connect to all that sum, being one of them where the plan is mixed. For a host's first rank."""
        environment = self._environment
        if not environment.key:
            raise EnvironmentProblem(
                "There are reducers, but no key for the exchange with them (TORCHYARD_KEY).",
                "Start the run with torchyard, which gives every process the run's key.",
            )
        trainers = environment.peers.trainers
        mine = next(number for number, each in enumerate(trainers) if each.name == environment.replica)
        reducers = environment.peers.reducer
        peers = [*reducers, *(Peer(each.name, each.address, each.port) for each in trainers)]
        local: dict[int, Reducer] = {}
        if plan.kind == "mixed":
            own = peers[len(reducers) + mine]
            self._reducer = Reducer(listen_at(own), environment.key, own.name).start()
            local[len(reducers) + mine] = self._reducer
        self._client = ReduceClient(
            peers,
            plan.weights,
            environment.key,
            mine,
            len(trainers),
            environment.options.reduction_order,
            name=environment.name,
            generation=environment.generation,
            divisor=self._world_size,
            local=local,
        )

    def _average(self, bucket: dist.GradBucket) -> Any:
        """DDP's communication hook. Buckets come in order, and are not divided by the world's size."""
        assert self._exchange is not None
        if bucket.index() == 0:
            self._step += 1
        return self._exchange.average(bucket.buffer(), self._step, bucket.index())

    def _before_step(self, *_: Any) -> None:
        """The gradients are not averages where the exchange has failed: say so before they are used."""
        if self._exchange is not None and self._exchange.failure is not None:
            raise self._exchange.failure
        steps = self._step + 1
        if self._exchange is not None and steps & (steps - 1) == 0:  # after 1, 2, 4, 8 … steps
            self._agree_on_chunks()

    def _agree_on_chunks(self) -> None:
        """Chunks that fit the network, as the first rank has seen it. Often at first, where it is hardly known yet."""
        seen = torch.zeros(1, device=self._device)
        if self._rank == 0 and self._client is not None:
            seen[0] = self._client.bytes_a_second
        try:
            dist.broadcast(seen, 0)
        except RuntimeError as error:  # torch.distributed's word for a lost rank
            raise PeerLost("another rank", "another host", str(error)) from None
        rate = float(seen)
        if self._client is not None and rate:
            self._client.resize(fitting_chunk(rate))
