"""DiLoCo: worker groups train independently, and every `inner_steps` steps an outer optimizer takes a step for all.

A group of several workers averages its gradients in each step, and its first rank takes part in the exchanges for the
whole group.

After Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models (2023).
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchyard_roles.checkpoints import files
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import UsageProblem
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.base import Strategy
from torchyard_roles.strategies.diloco.group_average import GroupAverage, Outcome
from torchyard_roles.strategies.diloco.outer_step import NOT_BEGUN, OuterParameters, flats_of
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.single_process import SingleProcess
from torchyard_roles.strategies.worker_group_ranks import first_ranks, wait_for_all_ranks

BEAT_S = 5.0
"""Interval of the first rank's messages to its group while it waits for other groups."""


class Diloco(Strategy):
    """A rank of a worker group. A single group takes the steps of the outer optimizer too."""

    def __init__(self, environment: Environment) -> None:
        if environment.rank is None:
            raise ValueError("only trainers take part in diloco")
        self._environment = environment
        self._options = environment.options
        self._peers = first_ranks(environment) if environment.groups > 1 else []
        inside = replace(environment, rank=environment.group_rank, world_size=environment.group_size)
        self._inside: AllReduce | SingleProcess = AllReduce(inside) if environment.group_size > 1 else SingleProcess()
        self._is_first = environment.group_rank == 0
        self._is_alone = environment.group_size == 1
        self._average: GroupAverage | None = None
        self._store: JoinStore | None = None
        self._models: list[torch.nn.Module] = []
        self._trained: dict[int, torch.nn.Parameter] = {}
        self._outer = OuterParameters(())
        self._rest = PackedTensors(())
        """Frozen parameters and buffers that cannot be averaged, which start with the chief's values."""
        self._device = torch.device("cpu")
        self._restored: dict[str, Any] | None = None
        """The part of the checkpoint that the run resumes from."""
        self._saved_at = -1
        self._step: int | None = None
        """The step of the last boundary; None before the first."""
        self._inner_steps = 0
        """Steps since the last outer step."""
        self._samples_before = 0
        """The number of samples at the last outer step. It is negative if a checkpoint contains some of the round."""
        self._finite: list[FiniteGradients] = []
        self._finished = False
        self._has_ended = False
        """Whether training ended without this group, after it was lost."""
        self._exchange_s = 0.0

    def start(self, device: torch.device) -> None:
        self._device = device
        atexit.register(self._abandon)
        self._inside.start(device)

    def share(self) -> DataShare:
        return DataShare(self._environment.rank or 0, self._environment.world_size)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if not parameters:
            raise UsageProblem("There is nothing to average: the optimizer trains none of the model's parameters.")
        # The model's order of parameters is the same in all groups, unlike the order within an optimizer's groups.
        chosen = {id(each) for each in parameters}
        self._trained |= {id(each): each for each in [*model.parameters(), *parameters] if id(each) in chosen}
        self._models.append(model)
        inside = self._inside
        distributed = inside.distribute(model, optimizer, device)
        on_nan = self._options.on_nan
        watching = inside.finite[-1] if isinstance(inside, AllReduce) else FiniteGradients(model, optimizer, on_nan)
        self._finite.append(watching)
        return distributed

    def restore(self, folder: Path, step: int) -> None:
        for each in self._finite:
            each.step = step
        if self._is_first:
            self._restored = files.read_part(folder, self._part, step)

    def before_forward(self) -> None:
        self._inside.before_forward()

    def accumulating(self) -> AbstractContextManager[None]:
        return self._inside.accumulating()

    def clip_gradients(self, parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
        return self._inside.clip_gradients(parameters, max_norm)

    def clip_values(self, parameters: Sequence[torch.Tensor], value: float) -> None:
        self._inside.clip_values(parameters, value)

    def at_boundary(self, step: int) -> None:
        """Take the outer step if the round is complete.

        Raises:
            SystemExit: The other groups have finished training while this one was away.
        """
        began = time.monotonic()
        if self._step is None:
            self._begin()
        else:
            self._inner_steps += step - self._step
        self._step = step
        if not self._has_ended and self._inner_steps >= self._due_after:
            self._synchronize()
        self._exchange_s = time.monotonic() - began
        if self._has_ended:
            print("torchyard: the other worker groups have finished training, so this one ends too.", flush=True)
            self._finished = True
            raise SystemExit(0)

    def flush(self, step: int) -> None:
        """Save this group's part of the checkpoint."""
        self._check()
        if self._is_first and self._step is not None and self._environment.checkpoints and step != self._saved_at:
            self._saved_at = step
            self._save_part(Path(self._environment.checkpoints), step)

    def save(self, folder: Path, step: int) -> None:
        self._check()

    def statistics(self) -> dict[str, float]:
        found = self._inside.statistics()
        found["exchange_s"] = found.get("exchange_s", 0.0) + self._exchange_s
        skipped = sum(each.skipped for each in self._finite)
        if skipped:
            found["skipped"] = float(skipped)
        return found

    @property
    def ends_last(self) -> bool:
        return self._average is not None and not self._finished

    def finish(self) -> bool:
        """Average the steps since the last outer step, until all groups have finished."""
        if self._finished or not self._models:
            return False
        self._check()
        if self._step is None:
            self._begin()
        self._finished = True
        if self._environment.groups == 1:
            if self._inner_steps:
                self._synchronize()
        else:
            while not self._has_ended:
                self._synchronize()
        if not self._is_alone:
            wait_for_all_ranks()
        return True

    def leave(self) -> None:
        self._abandon(has_stopped=not self._finished)
        self._inside.leave()

    def abandon(self) -> None:
        self._abandon()
        self._inside.abandon()

    def _abandon(self, *, has_stopped: bool = False) -> None:
        """End all threads and connections before the interpreter's shutdown."""
        if self._average is not None:
            self._average.close(has_stopped=has_stopped)
            self._average = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _check(self) -> None:
        """Check the last step, whose flag may still be on the GPU. Raises NotFinite."""
        for each in self._finite:
            each.check()

    @property
    def _part(self) -> str:
        """The name of this group's part of checkpoints."""
        return f"diloco-{self._environment.group}"

    @property
    def _is_warming_up(self) -> bool:
        return self._outer.round < self._options.warmup_steps

    @property
    def _due_after(self) -> int:
        return 1 if self._is_warming_up else self._options.inner_steps

    def _begin(self) -> None:
        """Begin at the first boundary, when all models are known and a checkpoint has been loaded."""
        models = torch.nn.ModuleList(self._models)  # ModuleList.parameters() yields each shared tensor only once.
        averaged = [each for each in models.buffers() if each.is_floating_point() or each.is_complex()]
        self._outer = OuterParameters(flats_of(self._trained.values(), averaged))
        frozen = [each for each in models.parameters() if id(each) not in self._trained]
        counters = [each for each in models.buffers() if not (each.is_floating_point() or each.is_complex())]
        self._rest = PackedTensors([*frozen, *counters])
        self._samples_before = self.samples
        outcome = self._with_beats(self._start_first) if self._is_first else self._await_beats()
        self._after(outcome)
        if not self._is_alone and self._rest.bytes:
            row = self._rest.packed().to(self._device)
            dist.broadcast(row, src=0)
            self._rest.unpack(row.cpu())

    def _start_first(self) -> Outcome:
        """Choose the initial parameters, on the first rank."""
        part, environment = self._restored, self._environment
        if part is not None and [each.numel() for each in part["theta"]] != [
            flat.elements for flat in self._outer.flats
        ]:
            part = None  # The model has changed, so only its parameters can be resumed.
        outcome = Outcome.KEPT
        if environment.groups > 1:
            self._store = JoinStore.of(environment)
            (own,) = (peer for group, peer in self._peers if group == environment.group)
            self._average = GroupAverage(
                environment.group,
                environment.groups,
                own,
                tensor_connection.listen_at(own),
                environment.key,
                self._store,
                self._outer,
                self._rest,
            )
            restored = (int(part["round"]), str(part["lineage"])) if part is not None else (NOT_BEGUN, "")
            outcome = self._average.start(*restored)
        if outcome is Outcome.KEPT:
            if part is None:
                self._outer.begin()
            else:
                self._load_part(part)
        self._restored = None
        return outcome

    def _load_part(self, part: dict[str, Any]) -> None:
        for flat, values in zip(self._outer.flats, part["own"]):
            flat.scatter(values)
        if self._rest.bytes:
            self._rest.unpack(part["rest"])
        self._inner_steps = int(part["inner_steps"])
        self._samples_before = self.samples - int(part["samples"])
        self._outer.load(part["theta"], part["momentum"], int(part["round"]))

    def _save_part(self, folder: Path, step: int) -> None:
        state = {
            **self._outer.state(),
            "lineage": self._average.lineage if self._average is not None else "alone",
            "own": [flat.gather() for flat in self._outer.flats],
            "rest": self._rest.packed() if self._rest.bytes else None,
            "inner_steps": self._inner_steps,
            "samples": self.samples - self._samples_before,
        }
        try:
            files.write_part(folder, self._part, step, state)
            files.prune_parts(folder, self._part, files.part_steps(folder, self._part)[: files.KEPT + 1])
        except (OSError, RuntimeError) as error:
            print(f"torchyard: θ and m of step {step} could not be saved in {folder}: {error}.", flush=True)

    def _synchronize(self) -> None:
        """Average with the other groups, and take the outer step."""
        self._check()
        seen = [self.samples - self._samples_before, self._inner_steps]
        weight = torch.tensor(seen, dtype=torch.float64, device="cpu")
        if not self._is_alone:
            weight = weight.to(self._device)
            dist.all_reduce(weight)
        samples, steps = weight.tolist()
        # Without a loader of the cluster, samples are not counted.
        self._after(
            self._with_beats(lambda: self._average_first(samples or steps)) if self._is_first else self._await_beats()
        )

    def _average_first(self, weight: float) -> Outcome:
        """Average and step on the first rank."""
        outer, options = self._outer, self._options
        differences = outer.differences()
        outcome = Outcome.AVERAGED
        if self._average is not None:
            outcome = self._average.average(differences, weight, has_finished=self._finished)
        if outcome is Outcome.AVERAGED:
            is_plain = self._is_warming_up
            outer.step(differences, 1.0 if is_plain else options.outer_lr, 0.0 if is_plain else options.outer_momentum)
        return outcome

    def _after(self, outcome: Outcome) -> None:
        """Adopt the result of the first rank, on all ranks of the group."""
        if outcome in (Outcome.AVERAGED, Outcome.REPLACED):
            if self._is_first:
                self._outer.install()
            self._inner_steps = 0
            self._samples_before = self.samples
        if not self._is_alone:
            self._broadcast_parameters()
        if outcome is Outcome.ENDED or (self._average is not None and self._average.has_ended):
            self._has_ended = True
        if not self._is_alone:
            self._has_ended = bool(self._broadcast([int(self._has_ended)])[0])

    def _broadcast_parameters(self) -> None:
        """Broadcast the first rank's parameters, its round and the number of its inner steps."""
        self._outer.round, self._inner_steps = self._broadcast([self._outer.round, self._inner_steps])
        for flat in self._outer.flats:
            values = flat.gather().to(self._device)
            dist.broadcast(values, src=0)
            if not self._is_first:
                flat.scatter(values)

    def _broadcast(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.broadcast(tensor, src=0)
        return [int(number) for number in tensor.tolist()]

    def _with_beats(self, call: Callable[[], Outcome]) -> Outcome:
        """Run `call` on the first rank, with periodic broadcasts so that no collective on other ranks times out."""
        if self._is_alone:
            return call()
        results: list[Outcome] = []
        problems: list[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:  # The waiting thread raises this error again.
                problems.append(error)

        thread = threading.Thread(target=run, name="diloco-round", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(BEAT_S)
            if problems:
                raise problems[0]
            if thread.is_alive():
                self._broadcast([-1])
        if problems:
            raise problems[0]
        self._broadcast([results[0]])
        return results[0]

    def _await_beats(self) -> Outcome:
        while (outcome := self._broadcast([0])[0]) < 0:
            pass
        return Outcome(outcome)
