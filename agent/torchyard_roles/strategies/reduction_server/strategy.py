"""The strategy `reduction_server`: synchronous training in which reducers sum the gradients.

In some plans (`reduction_plan`), the workers also sum a part of the gradients. The strategy differs from all_reduce
only in the exchange of buckets, whose size is `bucket_mb`. If no plan with reducers is faster than the ring of workers,
as is always the case with two workers, the strategy uses the ring.
"""

from __future__ import annotations

from typing import Callable

import torch
import torch.distributed as dist

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange.tensor_connection import Peer, listen_at
from torchyard_roles.strategies.all_reduce import AllReduce, hardware
from torchyard_roles.strategies.gloo_group import naming_lost_ranks
from torchyard_roles.strategies.gradient_averaging import GradientAverager
from torchyard_roles.strategies.gradient_buckets import Average
from torchyard_roles.strategies.gradient_noise import GradientNoise
from torchyard_roles.strategies.reduction_server import reduction_plan
from torchyard_roles.strategies.reduction_server.hierarchical_reduction import (
    HierarchicalReduction,
    LocalGroups,
    first_of_host,
)
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient, fitting_chunk

FINISH_S = 10.0
"""Longest time in seconds for which a worker's own reducer serves other ranks after the last step."""


class ReductionServer(AllReduce):
    """The strategy `reduction_server`: one process group of torch.distributed, and gradients summed by reducers."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._environment = environment
        self._reducer: Reducer | None = None
        self._client: ReduceClient | None = None
        self._exchanges: list[HierarchicalReduction] = []
        self._ranks_of_hosts: list[int] = []
        self._device = torch.device("cpu")

    def _make_averager(self, device: torch.device) -> GradientAverager:
        trainers = self._environment.peers.trainers
        plan = reduction_plan.choose(len(trainers) or self._world_size, len(self._environment.peers.reducer))
        if self._environment.rank == 0:
            print(f"torchyard: {plan.sentence}", flush=True)
        if plan.kind == "ring":
            return super()._make_averager(device)
        self._device = device
        self._ranks_of_hosts = [trainer.ranks for trainer in trainers]
        if first_of_host(self._ranks_of_hosts, self._rank) == self._rank:
            self._meet(plan)
        return GradientAverager(
            device,
            self._through_reducers,
            bucket_bytes=self._environment.options.bucket_mb * 1024 * 1024,
            hardware=hardware(device),
            after_round=self._after_round,
            noise=GradientNoise(self._world_size),
        )

    def _through_reducers(self) -> Average:
        """Returns the function that averages the buckets of one section.

        Each section has its own process groups, because all ranks must call a group's collectives in the same order.
        """
        groups = LocalGroups(self._ranks_of_hosts, self._rank)
        exchange = HierarchicalReduction(self._client, groups, self._device)
        self._exchanges.append(exchange)

        def average(flat: torch.Tensor, round_: int, bucket: int) -> Callable[[], object]:
            wait: Callable[[], object] = exchange.average(flat, round_, bucket).wait
            return wait

        return average

    def statistics(self) -> dict[str, float]:
        """Returns the same metrics as all_reduce, but with the waiting time that the reducers measured.

        The waiting time cannot exceed the time by which the exchange extended the step.
        """
        found = super().statistics()
        if self._client is not None and self._averager is not None:
            exposed_s = sum(self._averager.times())
            wait_s = min(exposed_s, max(found["wait_s"], self._client.times().wait_s))
            found.update(exchange_s=exposed_s - wait_s, wait_s=wait_s)
        return found

    def abandon(self) -> None:
        if self._client is not None:
            self._client.close(goodbye=False)  # The client is closed first. This wakes threads that wait for sums.
        for exchange in self._exchanges:
            exchange.close()
        if self._reducer is not None:
            self._reducer.close()

    def leave(self) -> None:
        for exchange in self._exchanges:
            exchange.close()
        if self._client is not None:
            self._client.close()
        if self._reducer is not None:
            self._reducer.finish(FINISH_S)
        super().leave()

    def _meet(self, plan: reduction_plan.ReductionPlan) -> None:
        """Connects to all reducers, including one that is started in this process if the plan is mixed.

        Only the first rank of a host calls this method.
        """
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

    def _after_round(self, round_: int) -> None:
        """Raises the error of a failed exchange before its buckets are used, and otherwise adapts the chunk size."""
        for exchange in self._exchanges:
            if exchange.failure is not None:
                raise exchange.failure
        if (round_ + 1) & round_ == 0:  # The chunk size is adapted after 1, 2, 4, 8 … rounds.
            self._agree_on_chunks()

    def _agree_on_chunks(self) -> None:
        """Sets the chunk size according to the rate that the first rank measured."""
        seen = torch.zeros(1, device=self._device)
        if self._rank == 0 and self._client is not None:
            seen[0] = self._client.bytes_a_second
        with naming_lost_ranks():
            dist.broadcast(seen, 0)
        rate = float(seen)
        if self._client is not None and rate:
            self._client.resize(fitting_chunk(rate))
