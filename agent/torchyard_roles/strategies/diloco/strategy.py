"""DiLoCo: worker groups train independently, and every `inner_steps` steps an outer optimizer combines their changes.

In a group of several workers, gradients are averaged in each step, and the first rank exchanges the group's
pseudo-gradients with the other groups.

After Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models (2023).
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.coordination.gloo_shutdown import wait_for_all_ranks
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.data_loader import DataShare
from torchyard_roles.environment import Environment
from torchyard_roles.errors import UsageProblem
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.strategies.all_reduce import AllReduce
from torchyard_roles.strategies.diloco import fragments
from torchyard_roles.strategies.diloco.background_average import BackgroundAverage
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.group_average import GroupAverage, Outcome
from torchyard_roles.strategies.diloco.outer_step import NOT_BEGUN, OuterParameters, flats_of
from torchyard_roles.strategies.diloco.server_average import ServerAverage
from torchyard_roles.strategies.diloco.sharded_flat import sharded_flats
from torchyard_roles.strategies.finite_gradients import FiniteGradients
from torchyard_roles.strategies.first_ranks import call_with_beats, first_ranks
from torchyard_roles.strategies.sharded.sharded_model import check_all_trained, reshard
from torchyard_roles.strategies.sharded.strategy import ShardedAllReduce
from torchyard_roles.strategies.single_process import SingleProcess
from torchyard_roles.strategies.strategy import GroupedStrategy

BACKGROUND_ENDS_S = 3.0
"""Longest time in seconds to wait until an abandoned exchange has ended."""


@dataclass
class Sent:
    """A fragment, or the whole model, whose average was requested and has not yet been merged."""

    fragment: int | None
    steps_before: int
    """The number of steps from sending the previous fragment to sending this fragment."""
    exchange: Callable[[], Outcome]
    """Averages the fragment with the other groups, and returns the outcome. Called on the first rank only."""
    background: BackgroundAverage | None = None
    """The thread that performs the exchange, if any."""
    overlaps: bool = False
    """Whether training continues during the exchange."""
    is_postponed: bool = False
    """Whether the exchange must be attempted again at the next boundary."""
    mixing: float = 0.0
    """The weight of the group's own parameters when the outer parameters are merged into them, from 0 to 1."""
    weights: Sequence[float] = ()
    differences: Sequence[torch.Tensor] = ()
    """The group's pseudo-gradients, on the first rank only. `weights` contains the group's weight for each fragment."""

    def average(self) -> Outcome:
        """Performs the exchange or waits for its thread, and returns the outcome. Called on the first rank only."""
        return self.exchange() if self.background is None else self.background.wait()


class Diloco(GroupedStrategy):
    """The strategy DiLoCo on one rank of a worker group. A single group takes the outer optimizer's steps itself."""

    def __init__(self, environment: Environment) -> None:
        if environment.rank is None:
            raise ValueError("only trainers take part in diloco")
        self._environment = environment
        self._options = environment.options
        self._servers = [tensor_connection.Peer(*each) for each in environment.peers.ps]
        """The parameter servers, which average the groups if there are any."""
        self._peers = first_ranks(environment) if environment.groups > 1 and not self._servers else []
        self._inside = _inside_of(environment)
        self._is_sharded = isinstance(self._inside, ShardedAllReduce)
        self.needs_optimizer = self._inside.needs_optimizer
        self._is_first = environment.group_rank == 0
        self._is_alone = environment.group_size == 1
        self._average: GroupAverage | ServerAverage | None = None
        self._store: JoinStore | None = None
        self._models: list[torch.nn.Module] = []
        self._trained: dict[int, torch.nn.Parameter] = {}
        self._outer = OuterParameters(())
        self._wire = ErrorFeedbackCodec(WireCodec(self._options.wire), (), has_feedback=False)
        self._rest = PackedTensors(())
        """Frozen parameters, and buffers that cannot be averaged. All groups start with the chief's values."""
        self._device = torch.device("cpu")
        self._restored: dict[str, Any] | None = None
        """The part of the checkpoint from which the run resumes."""
        self._restored_step = 0
        self._restored_ranks = 1
        """The number of ranks that this group had when it saved `_restored`."""
        self._restored_counts: dict[int, int] = {}
        """Maps each number n of steps to the number of samples in this rank's last n steps before the checkpoint."""
        self._saved_at = -1
        self._step: int | None = None
        """The step of the last boundary, or None before the first."""
        self._inner_steps = 0
        """Number of steps since the last fragment was sent."""
        self._steps = 0
        """Number of steps that this process has taken."""
        self._fragments = 1
        self._sent_at: list[tuple[int, int]] = []
        """For each fragment, the counts of samples and steps when its last merged pseudo-gradients were sent.

        The numbers are negative for times before the start of this process.
        """
        self._last_sent_at = (0, 0)
        """The counts of samples and steps when the latest fragment was sent."""
        self._sent: Sent | None = None
        """The fragment that has been sent but not yet merged, if any."""
        self._finite: list[FiniteGradients] = []
        self._finished = False
        self._has_ended = False
        """Whether training has ended for all groups, possibly while this group was lost."""
        self._exchange_s = 0.0
        self._expects_stop = False

    def start(self, device: torch.device) -> None:
        self._device = device
        atexit.register(self._abandon)
        self._inside.start(device)
        self.sharded_saving = self._inside.sharded_saving

    def share(self) -> DataShare:
        return DataShare(self._environment.rank or 0, self._environment.world_size)

    def prepare(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
    ) -> None:
        if self._is_sharded:
            check_all_trained(models, optimizers, "diloco")
        self._inside.prepare(models, optimizers, device)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if not parameters:
            raise UsageProblem("There is nothing to average: the optimizer trains none of the model's parameters.")
        # The model's order of parameters is equal in all groups. The order in an optimizer's parameter groups may
        # differ.
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
            self._restored = checkpoint_files.read_part(Path(self._environment.checkpoints), self._part, step)
            self._restored_step = step
        else:
            self._restored_counts = self._read_counts(self._environment.group_rank, step)

    def at_boundary(self, step: int) -> None:
        """Merges the fragment that was sent, if its merge is due, and sends the next fragment, if it is due.

        Raises:
            SystemExit: The other groups finished training while this group was lost.
        """
        began = time.monotonic()
        if self._step is None:
            self._begin()
        else:
            self._inner_steps += step - self._step
            self._steps += step - self._step
        self._step = step
        outcome = Outcome.KEPT
        if self._sent is not None and self._inner_steps >= self._options.overlap_steps:
            outcome = self._merge()
        if not (self._has_ended or self._sent) and self._inner_steps >= self._due_after:
            overlaps = self._options.overlap_steps > 0 and not self._is_warming_up
            self._send(overlaps=overlaps)
            if not overlaps:
                outcome = self._merge()
        self._expects_stop = outcome is Outcome.POSTPONED
        self._exchange_s = time.monotonic() - began
        if self._has_ended:
            print("torchyard: the other worker groups have finished training, so this one ends too.", flush=True)
            self._finished = True
            raise SystemExit(0)

    @property
    def expects_stop(self) -> bool:
        return self._expects_stop

    def flush(self, step: int) -> None:
        """Saves the group's part of the checkpoint on its first rank, and the number of samples on each other rank."""
        self._check()
        if self._step is not None and self._environment.checkpoints and step != self._saved_at:
            self._saved_at = step
            self._collect()
            if self._is_first:
                self._save_part(step)
            elif step == self._step:  # A rank that receives the announcement of a save too late has other counts.
                self._write_part(self._counts_of(self._environment.group_rank), step, {"since_sent": self._counts()})
            for flat in self._outer.flats:
                flat.release()

    def save(self, folder: Path, step: int) -> None:
        """Makes the servers save their parts of the checkpoint."""
        self._check()
        if isinstance(self._average, ServerAverage) and not self._has_ended:
            self._average.save(step)

    def statistics(self) -> dict[str, float]:
        found = self._inside.statistics()
        found["exchange_s"] = found.get("exchange_s", 0.0) + self._exchange_s
        skipped = sum(each.skipped for each in self._finite)
        if skipped:
            found["skipped"] = float(skipped)
        if self._outer.round > 0:
            found["round"] = float(self._outer.round)
        average = self._average
        if average is not None:
            sent, received = average.traffic()
            found["wire_mb"] = (sent + received) / 1e6
        if isinstance(average, GroupAverage):
            found |= {"groups": float(average.members), "divergence": average.divergence}
        return found

    @property
    def ends_last(self) -> bool:
        if self._is_sharded:  # All ranks of the group save together, but only the first rank has `_average`.
            has_others = self._environment.groups > 1 or bool(self._servers)
            return has_others and self._step is not None and not self._finished
        return self._average is not None and not self._finished

    def finish(self) -> bool:
        """Averages the changes of the last steps, and takes part in rounds until all groups have finished training."""
        if self._finished or not self._models:
            return False
        self._check()
        if self._step is None:
            self._begin()
        while self._sent is not None:
            self._merge()
        self._finished = True
        if self._environment.groups == 1 and not self._servers:
            for _ in range(self._fragments):
                if self._steps > self._sent_at[self._fragment or 0][1]:
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
        """Closes all connections and ends all threads before the interpreter shuts down."""
        if self._average is not None:
            self._average.close(has_stopped=has_stopped)
            self._average = None
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._sent is not None and self._sent.background is not None:
            self._sent.background.abandon(BACKGROUND_ENDS_S)
            self._sent = None

    def _check(self) -> None:
        """Raises NotFinite if the last step's gradients were not finite. Waits for a check that runs on the GPU."""
        for each in self._finite:
            each.check()

    @property
    def _part(self) -> str:
        """The name under which this group saves its part of checkpoints."""
        return f"diloco-{self._environment.group}"

    def _counts_of(self, group_rank: int) -> str:
        """Returns the name under which a rank other than the first saves its number of samples."""
        return f"{self._part}.{group_rank}"

    @property
    def _is_warming_up(self) -> bool:
        return self._outer.round < self._options.warmup_steps

    @property
    def _fragment(self) -> int | None:
        """The fragment to send next, or None if the whole model is sent."""
        if self._fragments == 1 or self._is_warming_up or (self._finished and self._servers):
            return None
        return (self._outer.round - self._options.warmup_steps) % self._fragments

    @property
    def _due_after(self) -> int:
        if self._is_warming_up:
            return 1
        return fragments.steps_before(self._fragment or 0, self._fragments, self._options.inner_steps)

    def _begin(self) -> None:
        """Prepares averaging at the first step boundary, after distribute() and the loading of a checkpoint."""
        models = torch.nn.ModuleList(self._models)  # ModuleList.parameters() yields each shared tensor only once.
        averaged = [each for each in models.buffers() if each.is_floating_point() or each.is_complex()]
        parts = fragments.divide(self._models, self._trained.values(), self._options.fragments)
        self._fragments = len(parts)
        if self._fragments < self._options.fragments and self._environment.rank == 0:
            print(
                f"torchyard: the model has {self._fragments} modules to average, so there are {self._fragments} "
                f"fragments and not {self._options.fragments}.",
                flush=True,
            )
        flats = [flats_of(part, (), number) for number, part in enumerate(parts)]
        of_parameters = sharded_flats(list(chain(*flats)), self._device, is_first=self._is_first)
        self._outer = OuterParameters([*of_parameters, *flats_of((), averaged, self._fragments - 1)])
        self._wire = ErrorFeedbackCodec(self._wire.codec, self._outer.flats, has_feedback=self._options.error_feedback)
        frozen = [each for each in models.parameters() if id(each) not in self._trained]
        counters = [each for each in models.buffers() if not (each.is_floating_point() or each.is_complex())]
        self._rest = PackedTensors([*frozen, *counters])
        self._set_counts([(0, 0)] * (self._fragments + 1))
        self._collect()
        outcome = self._with_beats(self._start_first) if self._is_first else self._await_beats()
        self._adopt(outcome)
        if not self._is_alone:
            sent = -1 if self._sent is None else 1 + (-1 if self._sent.fragment is None else self._sent.fragment)
            (sent,) = self._broadcast([sent])
            self._spread_counts()
            if sent >= 0 and self._sent is None:
                fragment = sent - 1 if sent else None
                self._sent = self._resent(fragment)
        if not self._is_alone and self._rest.bytes:
            row = self._rest.packed().to(self._device)
            dist.broadcast(row, src=0)
            self._rest.unpack(row.cpu())

    def _collect(self, fragment: int | None = None) -> None:
        """Gathers the parameters of a sharded group on the first rank. All ranks of the group must call this method."""
        if self._is_sharded:
            reshard(self._models)
            for number in self._outer.numbers(fragment):
                self._outer.flats[number].collect()

    def _start_first(self) -> Outcome:
        """Joins the other groups and determines the initial outer parameters. Called on the first rank only."""
        part, environment = self._restored, self._environment
        if part is not None and [each.numel() for each in part["theta"]] != [
            flat.elements for flat in self._outer.flats
        ]:
            part = None  # The model has changed since this checkpoint, so the outer parameters cannot be restored.
        outcome = Outcome.KEPT
        restored = (int(part["round"]), str(part["lineage"])) if part is not None else (NOT_BEGUN, "")
        if self._servers:
            self._store = JoinStore.of(environment)
            self._average = ServerAverage(
                environment.group,
                environment.name,
                self._servers,
                environment.key,
                self._store,
                self._outer,
                self._rest,
                self._wire,
                fragments=self._fragments,
                warmup_steps=self._options.warmup_steps,
                restored=part,
                restored_step=self._restored_step,
            )
            outcome = self._average.start(*restored)
        elif environment.groups > 1:
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
                self._wire,
                fragments=self._fragments,
                reducers=len(environment.peers.reducer),
                start_wait_s=self._options.start_wait_s,
            )
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
        self._restored_ranks = int(part["ranks"])
        self._set_counts(self._with_lost_ranks(part["since_sent"]))
        self._wire.load(part)
        momentum = part["momentum"]
        if not self._servers and not momentum:
            print("torchyard: m begins with 0, since the checkpoint's m is in the parts of its servers.", flush=True)
            momentum = self._outer.empty()
        self._outer.load(part["theta"], momentum, int(part["round"]))
        if part["merging"] is not None:
            fragment = int(part["merging"])
            self._sent = self._resent(fragment if fragment >= 0 else None)
        if part["postponed"] is not None:
            fragment, weights, differences = part["postponed"]
            self._sent = self._resent(fragment)
            self._offer(self._sent, lambda: differences, weights)

    def _resent(self, fragment: int | None) -> Sent:
        """Returns a fragment that was sent before the checkpoint, and whose average is already complete."""
        return Sent(fragment, 0, lambda: Outcome.AVERAGED, overlaps=True, mixing=self._options.mixing)

    def _counts(self) -> list[tuple[int, int]]:
        """Returns this rank's samples and steps since the last sending of each fragment, and of any fragment."""
        marks = [*self._sent_at, self._last_sent_at]
        return [(self.samples - samples, self._steps - steps) for samples, steps in marks]

    def _set_counts(self, counts: Sequence[tuple[int, int]]) -> None:
        """Sets this rank's samples and steps since the last sending of each fragment, and of any fragment."""
        *self._sent_at, self._last_sent_at = [
            (self.samples - samples, self._steps - steps) for samples, steps in counts
        ]

    def _spread_counts(self) -> None:
        """Sets the counts of all ranks of a group: the first rank's counts of steps, and each rank's own samples.

        A rank without a restored part is assumed to have had as many samples as the first rank, and a new rank none.
        """
        numbers = [number for count in self._counts() for number in count]
        *numbers, ranks = self._broadcast([*numbers, self._restored_ranks])
        if not self._is_first:
            is_new = self._environment.group_rank >= ranks
            own, pairs = self._restored_counts, zip(numbers[::2], numbers[1::2])
            self._set_counts([(0, 0) if is_new else (own.get(steps, samples), steps) for samples, steps in pairs])

    def _read_counts(self, group_rank: int, step: int) -> dict[int, int]:
        part = checkpoint_files.read_part(Path(self._environment.checkpoints), self._counts_of(group_rank), step)
        return {0: 0} | {int(steps): int(samples) for samples, steps in (part or {"since_sent": ()})["since_sent"]}

    def _with_lost_ranks(self, counts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the first rank's counts plus the samples of the ranks that the group no longer has."""
        ranks = range(self._environment.group_size, self._restored_ranks)
        lost = [self._read_counts(rank, self._restored_step) for rank in ranks]
        return [(samples + sum(each.get(steps, samples) for each in lost), steps) for samples, steps in counts]

    def _save_part(self, step: int) -> None:
        *since, since_last = self._counts()
        average = self._average
        inner_steps, merging, postponed = self._inner_steps, None, None
        own = [flat.gather() for flat in self._outer.flats]
        if self._sent is not None:  # The average is saved in the checkpoint, and merged after a restart.
            sent = self._sent
            outcome = Outcome.POSTPONED if sent.is_postponed else sent.average()
            if outcome is Outcome.AVERAGED:
                merging = -1 if sent.fragment is None else sent.fragment
                self._mark(since, sent.fragment, since_last)
            elif outcome is Outcome.REPLACED:
                own, inner_steps = [each.clone() for each in self._outer.theta], 0
                since, since_last = [(0, 0)] * len(since), (0, 0)
            elif outcome is Outcome.POSTPONED:
                # The other groups have stopped at an earlier step, so the exchange is repeated after the restart.
                postponed = (sent.fragment, list(sent.weights), list(sent.differences))
        state = {
            **self._outer.state(),
            **self._wire.state(),
            **({"average_errors": average.average_errors()} if isinstance(average, GroupAverage) else {}),
            "lineage": average.lineage if average is not None else "alone",
            "own": own,
            "rest": self._rest.packed() if self._rest.bytes else None,
            "inner_steps": inner_steps,
            "since_sent": [*since, since_last],
            "ranks": self._environment.group_size,
            "bases": average.bases if isinstance(average, ServerAverage) else None,
            "merging": merging,
            "postponed": postponed,
        }
        self._write_part(self._part, step, state)

    def _write_part(self, name: str, step: int, state: dict[str, Any]) -> None:
        folder = Path(self._environment.checkpoints)
        try:
            checkpoint_files.write_part(folder, name, step, state)
            checkpoint_files.prune_parts(
                folder, name, checkpoint_files.part_steps(folder, name)[: checkpoint_files.KEPT + 1]
            )
        except (OSError, RuntimeError) as error:
            print(f"torchyard: the part {name} of step {step} could not be saved in {folder}: {error}.", flush=True)

    def _synchronize(self) -> None:
        """Averages with the other groups, takes the outer step, and loads the resulting outer parameters."""
        self._send(overlaps=False)
        self._merge()

    def _send(self, *, overlaps: bool) -> None:
        """Starts averaging the next fragment, in a background thread if training continues during the exchange."""
        self._check()
        fragment = self._fragment
        at = (self.samples, self._steps)
        counts = [
            [at[0] - samples, at[1] - steps]
            for samples, steps in (self._sent_at if fragment is None else [self._sent_at[fragment]])
        ]
        if not self._is_alone:
            sums = torch.tensor(counts, dtype=torch.int64, device=self._device)
            dist.all_reduce(sums)
            counts = sums.tolist()
        self._collect(fragment)
        mixing = 0.0 if self._is_warming_up or self._finished else self._options.mixing
        self._sent = Sent(fragment, self._inner_steps, lambda: Outcome.KEPT, overlaps=overlaps, mixing=mixing)
        self._inner_steps, self._last_sent_at = 0, at
        if self._is_first:
            if overlaps:
                differences = self._outer.snapshot(fragment)
            else:
                present = self._outer.differences(fragment)
                differences = lambda: present  # noqa: E731  # The lambda has the same type as a snapshot.
            for number in self._outer.numbers(fragment):
                self._outer.flats[number].release()
            # The weight is the number of samples or, if the script does not use Cluster's data loader, of steps.
            self._offer(self._sent, differences, [float(samples or steps) for samples, steps in counts])

    def _offer(self, sent: Sent, differences: Callable[[], list[torch.Tensor]], weights: list[float]) -> None:
        """Sets the data that a fragment sends, on the first rank. Starts the exchange if it overlaps with training.

        Args:
            differences: Returns the pseudo-gradients to send. Called once, on any thread.
        """
        sent.weights = weights
        if sent.overlaps:
            sent.background = BackgroundAverage(partial(self._average_sent, sent, differences))
            differences = lambda: list(sent.differences)  # noqa: E731  # For another attempt of the exchange.
        sent.exchange = partial(self._average_sent, sent, differences)

    def _average_first(self, differences: list[torch.Tensor], weights: list[float], fragment: int | None) -> Outcome:
        """Averages the pseudo-gradients of all groups and takes the outer step, without changing the model."""
        outer, options, average = self._outer, self._options, self._average
        if isinstance(average, ServerAverage):  # The servers take the outer step.
            return average.average(differences, weights, has_finished=self._finished, fragment=fragment)
        outcome = Outcome.AVERAGED
        if average is not None:
            outcome = average.average(differences, weights[0], has_finished=self._finished, fragment=fragment)
            if not average.weight:
                differences = []  # No group has trained since the last average, so the outer parameters do not change.
        if outcome is Outcome.AVERAGED:
            is_plain = self._is_warming_up
            lr, momentum = (1.0, 0.0) if is_plain else (options.outer_lr, options.outer_momentum)
            outer.step(differences, lr, momentum, fragment)
            outer.recycle(differences, fragment)
        return outcome

    def _average_sent(self, sent: Sent, differences: Callable[[], list[torch.Tensor]]) -> Outcome:
        """Averages a fragment that was sent, and takes the outer step. Called on the first rank only.

        If training continues during the exchange, this method also copies θ to the GPU, where _merge() uses it.
        """
        sent.differences = found = differences()
        outcome = self._average_first(found, list(sent.weights), sent.fragment)
        if outcome is Outcome.AVERAGED and sent.overlaps:
            self._outer.stage(sent.fragment)
        return outcome

    def _merge(self) -> Outcome:
        """Waits for the requested average, and merges the outer parameters into the model on all ranks of the group.

        A postponed exchange that overlaps is attempted again at the next boundary, with the same pseudo-gradients.
        """
        sent = self._sent
        assert sent is not None
        outcome = self._with_beats(sent.average) if self._is_first else self._await_beats()
        if outcome is Outcome.POSTPONED and sent.overlaps:
            sent.background, sent.is_postponed = None, True
            return outcome
        self._sent = None
        if outcome not in (Outcome.AVERAGED, Outcome.REPLACED) or sent.mixing:
            self._collect(sent.fragment)
        if outcome is Outcome.AVERAGED:
            self._mark(self._sent_at, sent.fragment, self._last_sent_at)
        elif outcome is not Outcome.REPLACED:
            self._inner_steps += sent.steps_before
        self._adopt(outcome, sent.fragment, sent.mixing)
        return outcome

    @staticmethod
    def _mark(marks: list[tuple[int, int]], fragment: int | None, at: tuple[int, int]) -> None:
        for number in range(len(marks)) if fragment is None else (fragment,):
            marks[number] = at

    def _adopt(self, outcome: Outcome, fragment: int | None = None, mixing: float = 0.0) -> None:
        """Applies the outcome of the first rank's exchange on all ranks of the group."""
        if outcome is Outcome.REPLACED:
            if self._average is not None:
                self._wire.forget()
                self._average.unpack_rest()
            if self._is_first:
                self._outer.install()
            self._inner_steps = 0
            self._set_counts([(0, 0)] * (self._fragments + 1))
            fragment = None
        elif outcome is Outcome.AVERAGED and self._is_first:
            self._outer.install(fragment, mixing)
        if not self._is_alone:
            self._broadcast_parameters(fragment)
        if outcome is Outcome.ENDED or (self._average is not None and self._average.has_ended):
            self._has_ended = True
        if not self._is_alone:
            self._has_ended = bool(self._broadcast([int(self._has_ended)])[0])

    def _broadcast_parameters(self, fragment: int | None) -> None:
        """Broadcasts the first rank's parameters of one or all fragments, and its counts of rounds and inner steps."""
        if self.sharded_saving is not None:
            self.sharded_saving.settle()
        self._outer.round, self._inner_steps = self._broadcast([self._outer.round, self._inner_steps])
        for number in self._outer.numbers(fragment):
            self._outer.flats[number].spread(self._device, is_first=self._is_first)

    def _broadcast(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.broadcast(tensor, src=0)
        return [int(number) for number in tensor.tolist()]

    def _with_beats(self, call: Callable[[], Outcome]) -> Outcome:
        """Runs `call` on the first rank. Periodic broadcasts prevent a timeout of collective calls on other ranks."""
        if self._is_alone:
            return call()
        outcome = call_with_beats(call, lambda: self._broadcast([-1]))
        self._broadcast([outcome])
        return outcome

    def _await_beats(self) -> Outcome:
        while (outcome := self._broadcast([0])[0]) < 0:
            pass
        return Outcome(outcome)


def _inside_of(environment: Environment) -> AllReduce | SingleProcess:
    """Returns the strategy by which the workers of this rank's group train together."""
    if environment.group_size == 1:
        return SingleProcess()
    inside = replace(environment, rank=environment.group_rank, world_size=environment.group_size)
    return ShardedAllReduce(inside) if environment.options.shard != "none" else AllReduce(inside)
