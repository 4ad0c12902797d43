"""Distributed Hogwild: worker groups train independently and exchange their updates asynchronously.

Each group steps its own parameters with the script's optimizer. After every `sync_every` updates it sends the change of
each shard to the group that hosts the shard's master, and receives the master's value while training continues. In a
group of several workers, gradients are averaged in each step, and the first rank performs the exchanges.

After Recht et al., Hogwild! (NIPS 2011), distributed as in Apache SINGA, except that no delta is lost (`shard_copy`) or
applied twice (`delta_server`).
"""

from __future__ import annotations

import atexit
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from torchyard_roles.coordination.gloo_shutdown import wait_for_all_ranks
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import UsageProblem
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.parameter_layout import LARGEST_CHUNK, Chunk, Entry, Layout
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.first_ranks import first_ranks
from torchyard_roles.strategies.hogwild.shard_copy import gather, scatter
from torchyard_roles.strategies.hogwild.shard_exchange import CHIEF
from torchyard_roles.strategies.hogwild.worker_group import WorkerGroup
from torchyard_roles.strategies.single_process import SingleProcess
from torchyard_roles.strategies.strategy import GroupedStrategy

ENDED = "hogwild/ended"
"""Prefix of the join store keys that mark groups as ended."""
SAVE_WAIT_S = 2.0
BEAT_S = 5.0
"""Interval in seconds of the messages that the first rank sends to its group during the last exchanges."""


class Hogwild(GroupedStrategy):
    """The strategy Hogwild on one rank of a worker group. There must be at least two groups."""

    def __init__(self, environment: Environment) -> None:
        if environment.rank is None or environment.groups < 2:
            raise ValueError("Hogwild needs trainers in at least two worker groups")
        self._environment = environment
        self._peers = first_ranks(environment)
        self._number = [group for group, _ in self._peers].index(environment.group)
        inside = replace(environment, rank=environment.group_rank, world_size=environment.group_size)
        self._inside: AllReduce | SingleProcess = AllReduce(inside) if environment.group_size > 1 else SingleProcess()
        self._is_first = environment.group_rank == 0
        self._is_alone = environment.group_size == 1
        self._group: WorkerGroup | None = None
        self._store: JoinStore | None = None
        self._models: list[torch.nn.Module] = []
        self._entries: list[Entry] = []
        """The parameters of all optimizers, in the order of distribute()."""
        self._parameters: list[torch.nn.Parameter] = []
        self._shards: list[list[Chunk]] = []
        self._rest = PackedTensors(())
        """Frozen parameters and buffers, which start with the chief's values and are not exchanged later."""
        self._device = torch.device("cpu")
        self._step: int | None = None
        """The step of the last boundary, or None before the first."""
        self._due = 0
        self._finite: list[FiniteGradients] = []
        """The checks of the optimizers' gradients, in the order of the optimizers."""
        self._finished = False
        self._exchange_s = self._wait_s = 0.0

    def start(self, device: torch.device) -> None:
        self._device = device
        atexit.register(self._abandon)
        self._inside.start(device)

    def share(self) -> DataShare:
        return DataShare(self._environment.rank or 0, self._environment.world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        layout, parameters = Layout.of(model, optimizer)
        if not parameters:
            raise UsageProblem("There is nothing to exchange: the optimizer trains none of the model's parameters.")
        trained = {id(parameter) for parameter in self._parameters}
        groups = 1 + max((entry.group for entry in self._entries), default=-1)
        number = len(self._models)
        for entry, parameter in zip(layout.entries, parameters):
            if id(parameter) not in trained:
                name = f"{number}.{entry.name}" if number else entry.name
                self._entries.append(entry._replace(name=name, group=groups + entry.group))
                self._parameters.append(parameter)
        self._models.append(model)
        inside = self._inside
        distributed = inside.distribute(model, optimizer, device)
        # In a group of several ranks, the averaged gradients are checked. These are equal on all ranks.
        on_nan = self._environment.options.on_nan
        watching = inside.finite[-1] if isinstance(inside, AllReduce) else FiniteGradients(model, optimizer, on_nan)
        self._finite.append(watching)
        return distributed

    def _meet(self) -> None:
        """Creates the common layout of all models and, on the first rank, the WorkerGroup."""
        environment = self._environment
        layout = Layout(tuple(self._entries))
        self._shards = layout.by_shard(len(self._peers), LARGEST_CHUNK)
        trained = {id(parameter) for parameter in self._parameters}
        models = torch.nn.ModuleList(self._models)  # ModuleList.parameters() yields each shared tensor only once.
        frozen = [parameter for parameter in models.parameters() if id(parameter) not in trained]
        self._rest = PackedTensors([*frozen, *models.buffers()])
        if self._is_first:
            if environment.store:
                self._store = JoinStore.of(environment)
            peers = [peer for _, peer in self._peers]
            self._group = WorkerGroup(
                self._number,
                peers,
                tensor_connection.listen_at(peers[self._number]),
                environment.key,
                layout.fingerprint(),
                self._shards,
                self._parameters,
                rest=self._rest,
                sync_every=environment.options.sync_every,
                generation=environment.generation,
                ended=self._ended_before(),
            )

    def at_boundary(self, step: int) -> None:
        began = time.monotonic()
        self._wait_s = 0.0
        if self._step is None:
            self._begin()
        elif self._is_alone and self._group is not None:
            self._group.boundary(step - self._step)
        else:
            # All ranks of the group apply received values at the same step, so they remain bitwise equal.
            self._due += step - self._step
            if self._due >= self._environment.options.sync_every:
                self._due = 0
                arrived = self._group.boundary(self._environment.options.sync_every) if self._group else []
                self._broadcast_shards(arrived)
        self._step = step
        self._exchange_s = time.monotonic() - began - self._wait_s

    def flush(self, step: int) -> None:
        """Checks the gradients of the last step, because no rank may save parameters that are not finite."""
        self._check()

    def save(self, folder: Path, step: int) -> None:
        """Exchanges all shards once more. The checkpoint then contains recent updates of the other groups.

        A group of several ranks saves the values of its last exchange instead, because all its ranks have these values.
        """
        self._check()
        if self._is_alone and self._group is not None and not self._finished and self._step is not None:
            self._group.exchange_within(SAVE_WAIT_S)

    def restore(self, folder: Path, step: int) -> None:
        for each in self._finite:
            each.step = step

    def _check(self) -> None:
        """Raises NotFinite if the gradients of the last step were not finite, or the error of a failed exchange."""
        for each in self._finite:
            each.check()
        if self._group is not None:
            self._group.check()

    def statistics(self) -> dict[str, float]:
        found = self._inside.statistics()  # The group's inner strategy measures the averaging of gradients.
        found["exchange_s"] = found.get("exchange_s", 0.0) + self._exchange_s
        found["wait_s"] = found.get("wait_s", 0.0) + self._wait_s
        skipped = sum(each.skipped for each in self._finite)
        if skipped:
            found["skipped"] = float(skipped)
        if self._group is not None:
            found["staleness"] = float(self._group.staleness)
        return found

    @property
    def ends_last(self) -> bool:
        return self._number == CHIEF and not self._finished

    def finish(self) -> bool:
        """Performs the last exchanges.

        The chief also waits for all other groups, and then has the sum of all deltas.
        """
        if self._finished or not self._models:
            return False
        self._finished = True
        self._check()
        if self._step is None:
            self._begin()
        if self._is_alone and self._group is not None:
            self._group.drain()
        else:
            self._drain_inside()
        if self._group is not None and self._number != CHIEF and self._store is not None:
            self._store.set(f"{ENDED}/{self._number}", str(self._environment.generation).encode())
        return True

    def leave(self) -> None:
        if self._group is not None and self._step is not None and not self._finished:
            # When the run is stopped, pending updates are exchanged within a time limit, and without collective calls
            # in the group.
            self._group.stop(self._environment.stop_grace_s / 3)
        self._abandon()
        self._inside.leave()

    def abandon(self) -> None:
        self._abandon()
        self._inside.abandon()

    def _abandon(self) -> None:
        """Closes all connections and ends all threads before the interpreter shuts down."""
        self._finished = True
        if self._group is not None:
            self._group.close()
            self._group = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _begin(self) -> None:
        """Starts the exchanges at the first boundary, when all models are known and any checkpoint has been loaded."""
        self._meet()
        if self._group is not None:
            self._group.start()
        if not self._is_alone:
            self._broadcast_shards(list(range(len(self._shards))))
            self._broadcast_rest()

    def _ended_before(self) -> dict[int, int]:
        """Returns the groups that ended before this group was restarted, with their generations."""
        if self._store is None or not self._environment.generation:
            return {}
        groups = set(range(len(self._peers))) - {self._number}
        ended = {group: self._store.try_get(f"{ENDED}/{group}") for group in groups}
        return {group: int(generation) for group, generation in ended.items() if generation is not None}

    def _broadcast_shards(self, shards: list[int]) -> None:
        """Broadcasts the values of the shards in the first rank's list. Other ranks may pass any list."""
        began = time.monotonic()
        chosen = self._broadcast_flags([shard in shards for shard in range(len(self._shards))])
        self._wait_s += time.monotonic() - began
        for shard, is_chosen in enumerate(chosen):
            for chunk in self._shards[shard] if is_chosen else ():
                dtype = self._parameters[chunk.pieces[0].parameter].dtype
                tensor = torch.empty(chunk.elements, dtype=dtype, device=self._device)
                if self._is_first:
                    gather([chunk], self._parameters, [tensor])
                dist.broadcast(tensor, src=0)
                if not self._is_first:
                    scatter([chunk], self._parameters, [tensor])

    def _broadcast_rest(self) -> None:
        if self._rest.bytes:
            row = self._rest.packed().to(self._device)
            dist.broadcast(row, src=0)
            if not self._is_first:
                self._rest.unpack(row.cpu())

    def _broadcast_flags(self, flags: list[bool]) -> list[bool]:
        tensor = torch.tensor(flags, dtype=torch.uint8, device=self._device)
        dist.broadcast(tensor, src=0)
        return [bool(flag) for flag in tensor.tolist()]

    def _drain_inside(self) -> None:
        """Runs drain() on the first rank. Periodic broadcasts prevent a timeout of collective calls on other ranks."""
        if self._group is None:
            while not self._broadcast_flags([False])[0]:
                pass
        else:
            problems: list[BaseException] = []
            thread = threading.Thread(target=_drain, args=(self._group, problems), name="hogwild-drain", daemon=True)
            thread.start()
            is_drained = False
            while not is_drained:
                thread.join(BEAT_S)
                is_drained = not thread.is_alive()
                self._broadcast_flags([is_drained])  # The other ranks wait until this flag is True.
            if problems:
                raise problems[0]
        self._broadcast_shards(list(range(len(self._shards))))
        wait_for_all_ranks()


def _drain(group: WorkerGroup, problems: list[BaseException]) -> None:
    try:
        group.drain()
    except BaseException as error:  # The calling thread re-raises this exception.
        problems.append(error)
