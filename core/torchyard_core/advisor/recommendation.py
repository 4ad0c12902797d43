"""Recommendations: the fastest topology, a nearly as fast one with the fewest GPUs, and the best on available GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchyard_core.advisor.candidates import (
    OTHER_RESULT,
    SAME_RESULT,
    Counts,
    Scan,
    counts_of,
    layout_of,
    room_on,
    topology_for,
    trainer_pool,
)
from torchyard_core.advisor.fleet_hosts import AdvisedFleet
from torchyard_core.advisor.prediction import Prediction, predict
from torchyard_core.errors import RunFailed, UsageError
from torchyard_core.formatting import counted
from torchyard_core.problems import has_errors
from torchyard_core.topology.file import check_topology
from torchyard_core.topology.model import Launcher, Role, Shard, StrategyKind, Topology
from torchyard_core.topology.placement.planner import place
from torchyard_core.topology.strategies.reduction_cost import reducers_for_bandwidth
from torchyard_core.topology.strategies.registry import spec_of

NEARLY = 0.9
"""Minimum fraction of the fastest topology's samples/s that the topology with the fewest GPUs must reach."""
SIMULATED = 3
"""Number of candidates per strategy that are placed and simulated."""
CURVE_POINTS = 16


@dataclass(frozen=True)
class Alternative:
    """A topology that the fleet can run, with its predicted speed."""

    counts: Counts
    topology: Topology
    prediction: Prediction
    hosts: tuple[str, ...]
    """The hosts of the topology's trainers."""
    gpus: int
    """Number of GPUs used."""

    @property
    def size(self) -> int:
        """The number of GPUs used, or of hosts with trainers if no GPUs are used."""
        return self.gpus or len(self.hosts)

    @property
    def shares_cpus(self) -> bool:
        """Whether several trainers share the CPUs of a host without GPUs."""
        return not self.gpus and self.counts.trainers > len(self.hosts)

    @property
    def changes_result(self) -> bool:
        """Whether the strategy changes the result of training."""
        return self.counts.kind in OTHER_RESULT

    @property
    def title(self) -> str:
        """A description such as `All-reduce, 4 workers` or `Downpour, 4 workers in 2 groups, 2 parameter servers`."""
        counts = self.counts
        parts = [spec_of(counts.kind).title, counted(counts.trainers, "worker")]
        if self.changes_result and counts.groups > 1:
            parts[-1] += f" in {counts.groups} groups"
        if counts.servers:
            noun = "reducer" if spec_of(counts.kind).server_role is Role.REDUCER else "parameter server"
            parts.append(counted(counts.servers, noun))
        return ", ".join(parts)


@dataclass(frozen=True)
class CurvePoint:
    """The predicted speed of the recommended strategy with a given number of trainers."""

    trainers: int
    hosts: int
    samples_s: float
    low: float
    high: float


@dataclass(frozen=True)
class Advice:
    """The topologies that are recommended for a script on a fleet, with their predicted speeds."""

    current: Alternative | None
    """The unchanged topology, or None if the fleet cannot run it."""
    fastest: Alternative
    """The fastest topology that does not change the result of training."""
    fewest: Alternative
    """The topology with the fewest GPUs that reaches at least 90% of the samples/s of `fastest`."""
    available: Alternative | None
    """The fastest topology on GPUs that are free or booked by the user; None if no trainer fits on them."""
    alternatives: tuple[Alternative, ...]
    """The best topology of each strategy, fastest first."""
    curve: tuple[CurvePoint, ...]
    """Samples/s by number of trainers, with the strategy of `fastest`."""
    next_host: float | None
    """Samples/s that another host of the fleet would add to `fastest`; None if `fastest` already uses all hosts."""
    candidates: int
    """Number of topologies that were considered."""
    has_gpus: bool
    """Whether the fleet has GPUs. If it has none, alternatives differ in the number of hosts."""
    has_samples: bool
    """Whether batch sizes are known. If they are not, each trainer's step counts as one sample."""
    remarks: tuple[str, ...]

    @property
    def same_result(self) -> tuple[Alternative, ...]:
        return tuple(each for each in self.alternatives if not each.changes_result)

    @property
    def other_result(self) -> tuple[Alternative, ...]:
        return tuple(each for each in self.alternatives if each.changes_result)


def advise(
    topology: Topology,
    fleet: AdvisedFleet,
    available: AdvisedFleet | None = None,
    *,
    is_black_box: bool = False,
    has_samples: bool = True,
) -> Advice:
    """Returns the advice for a topology on a fleet.

    Args:
        fleet: The whole fleet.
        available: The same hosts without the GPUs that other users use or have booked; by default `fleet`.
        is_black_box: Whether the script does not call distribute() and thus averages gradients by itself.

    Raises:
        UsageError: The topology has no trainers, or cannot be predicted.
        RunFailed: No topology is feasible; the message names the constraints.
    """
    _check(topology)
    advisor = _Advisor(topology, fleet, is_black_box=is_black_box)
    found = advisor.simulated()
    same = [each for each in found if not each.changes_result]
    current = advisor.current()
    if current is not None and current.counts.kind in advisor.kinds_of_same_result and not current.shares_cpus:
        same.append(current)
    fastest = max(same, key=lambda each: each.prediction.samples_s)
    curve, on_curve = advisor.curve(fastest)
    same += on_curve
    fastest = max(same, key=lambda each: each.prediction.samples_s)
    enough = [each for each in same if each.prediction.samples_s >= NEARLY * fastest.prediction.samples_s]
    fewest = min(enough, key=lambda each: (each.size, each.counts.servers, -each.prediction.samples_s))
    remarks = [*fleet.remarks, *_sizing_remarks(fleet, fastest)]
    if is_black_box:
        remarks.append("Only all-reduce is considered: other strategies need a script that calls distribute().")
    if current is not None:
        if current.shares_cpus and current.prediction.samples_s > fastest.prediction.samples_s:
            remarks.append(
                "The recommended topologies have at most one trainer on each host without GPUs. The topology as it is "
                "has several there, which compete for its cores, so its higher predicted speed is uncertain."
            )
        remarks += [f"The topology as it is: {note}" for note in current.prediction.notes]
    return Advice(
        current=current,
        fastest=fastest,
        fewest=fewest,
        available=_available(topology, available, fleet, advisor, fastest),
        alternatives=_best_of_each([*same, *found]),
        curve=curve,
        next_host=advisor.next_host(fastest),
        candidates=advisor.considered,
        has_gpus=any(host.gpus for host in fleet.facts),
        has_samples=has_samples,
        remarks=tuple(remarks),
    )


def _check(topology: Topology) -> None:
    trainer_pool(topology)
    if topology.program.launcher is Launcher.COMMAND:
        raise UsageError(
            "a program with launcher command is not predicted, since its framework determines the exchange.",
            code="not_predicted",
            hint="Set program.launcher to torch.",
        )
    if topology.strategy.shard is not Shard.NONE:
        raise UsageError(
            "sharded models are not predicted.", code="not_predicted", hint="Set strategy.shard to none for advice."
        )


def _available(
    topology: Topology, available: AdvisedFleet | None, fleet: AdvisedFleet, advisor: _Advisor, fastest: Alternative
) -> Alternative | None:
    if available is None or available.facts == fleet.facts:
        return fastest
    try:
        now = _Advisor(topology, available, is_black_box=advisor.is_black_box)
        same = [each for each in now.simulated() if not each.changes_result]
    except RunFailed:
        return None
    return max(same, key=lambda each: each.prediction.samples_s)


def _best_of_each(found: Iterable[Alternative]) -> tuple[Alternative, ...]:
    best: dict[StrategyKind, Alternative] = {}
    for each in sorted(found, key=lambda each: -each.prediction.samples_s):
        best.setdefault(each.counts.kind, each)
    return tuple(best.values())


def _sizing_remarks(fleet: AdvisedFleet, fastest: Alternative) -> list[str]:
    """Returns a remark with Vertex AI's sizing rule if reducers on hosts without trainers are recommended."""
    if fastest.counts.kind is not StrategyKind.REDUCTION_SERVER or not fastest.counts.servers:
        return []
    names = {*fastest.prediction.bytes_by_host} - {*fastest.hosts}
    of = {host.name: host.link_bytes_s for host in fleet.hosts}
    if not names:
        return []
    count = reducers_for_bandwidth(
        fastest.counts.trainers, min(of[name] for name in fastest.hosts), min(of[name] for name in names)
    )
    return [f"As many reducers as match the trainers' bandwidth (Vertex AI's sizing rule) would be {count}."]


class _Advisor:
    def __init__(self, topology: Topology, fleet: AdvisedFleet, *, is_black_box: bool):
        self._topology = topology
        self._fleet = fleet
        self.is_black_box = is_black_box
        self._reasons: dict[str, None] = {}
        self._made: dict[tuple[Counts, tuple[str, ...]], Alternative | None] = {}
        self._room = room_on(topology, fleet)
        if not self._room.trainers:
            raise RunFailed(f"no topology is feasible: {self._why_no_trainer()}", code="not_feasible")
        self.kinds_of_same_result = (StrategyKind.ALL_REDUCE,) if is_black_box else SAME_RESULT
        """The strategies that are considered and do not change the result of training."""
        kinds = self.kinds_of_same_result if is_black_box else (*SAME_RESULT, *OTHER_RESULT)
        self._scanned = Scan(topology, fleet, self._room).candidates(kinds)
        self.considered = len(self._scanned)

    def simulated(self) -> list[Alternative]:
        """Returns the best candidates of each strategy, placed and predicted.

        Raises RunFailed if all feasible candidates change the result of training.
        """
        found: list[Alternative] = []
        for kind in (*SAME_RESULT, *OTHER_RESULT):
            kept = 0
            for tries, (_, counts) in enumerate(each for each in self._scanned if each[1].kind is kind):
                if kept == SIMULATED or tries >= 4 * SIMULATED:
                    break
                made = self._alternative(counts)
                if made is not None:
                    kept += 1
                    found.append(made)
        if all(each.changes_result for each in found):
            reasons = "; ".join(self._reasons) or "no number of trainers fits"
            raise RunFailed(f"no topology is feasible: {reasons}.", code="not_feasible")
        return found

    def current(self) -> Alternative | None:
        """Returns the unchanged topology with its prediction; None if the fleet cannot run it."""
        return self._placed(counts_of(self._topology), self._topology)

    def curve(self, fastest: Alternative) -> tuple[tuple[CurvePoint, ...], list[Alternative]]:
        """Returns the predicted samples/s for different numbers of trainers, and the topologies of these predictions.

        The topologies use the strategy of `fastest`, each with the best number of servers for its number of trainers.
        """
        best: dict[int, Counts] = {}
        for _, counts in self._scanned:
            if counts.kind is fastest.counts.kind:
                best.setdefault(counts.trainers, counts)
        numbers = sorted(best)
        chosen = sorted({*_thinned(numbers), fastest.counts.trainers} & {*best})
        best[fastest.counts.trainers] = fastest.counts
        found = [made for number in chosen if (made := self._alternative(best[number])) is not None]
        points = tuple(
            CurvePoint(
                each.counts.trainers,
                len(each.hosts),
                each.prediction.samples_s,
                each.prediction.low,
                each.prediction.high,
            )
            for each in found
        )
        return points, found

    def next_host(self, fastest: Alternative) -> float | None:
        """Returns the samples/s that trainers on one more host would add.

        Returns None if all hosts have trainers, or if the larger topology is infeasible.
        """
        hosts = list(dict.fromkeys(self._room.trainers))
        if len(fastest.hosts) >= len(hosts):
            return None
        wider = {*hosts[: len(fastest.hosts) + 1]}
        trainers = sum(host in wider for host in self._room.trainers)
        made = self._alternative(replace(fastest.counts, trainers=trainers))
        return None if made is None else made.prediction.samples_s - fastest.prediction.samples_s

    def _alternative(self, counts: Counts) -> Alternative | None:
        """Returns a candidate with its prediction, placed by the planner or on the fastest hosts, whichever is faster.

        Returns None if neither placement is feasible.
        """
        best = self._on(counts, ())
        wanted = tuple(dict.fromkeys(self._fleet.hosts[host].name for host in self._room.trainers[: counts.trainers]))
        if best is not None and {*best.hosts} == {*wanted}:
            return best
        other = self._on(counts, wanted)
        made = [each for each in (best, other) if each is not None]
        return max(made, key=lambda each: each.prediction.samples_s, default=None)

    def _on(self, counts: Counts, hosts: tuple[str, ...]) -> Alternative | None:
        key = (counts, hosts)
        if key not in self._made:
            try:
                after = topology_for(self._topology, counts, hosts)
            except UsageError as error:
                self._reasons.setdefault(error.message.rstrip("."))
                self._made[key] = None
            else:
                self._made[key] = self._placed(counts, after)
        return self._made[key]

    def _placed(self, counts: Counts, after: Topology) -> Alternative | None:
        problems = check_topology(after, hosts=self._fleet.facts)
        if has_errors(problems):
            self._reasons.setdefault(next(each.message for each in problems if each.severity == "error"))
            return None
        placement = place(after, self._fleet.facts)
        layout = layout_of(after, dict(placement.slots), self._fleet)
        if layout is None:
            for problem in placement.problems[:1]:
                self._reasons.setdefault(problem.message)
            return None
        correction = self._fleet.correction(layout.strategy.kind, layout.trainers)
        prediction = predict(layout, self._fleet.hosts, correction)
        if not prediction.is_feasible:
            self._reasons.setdefault(prediction.shortage)
            return None
        names = tuple(dict.fromkeys(self._fleet.hosts[host].name for host in layout.trainers))
        gpus = sum(len(slot.gpus) for slot in placement.slots.values())
        return Alternative(counts, after, prediction, names, gpus)

    def _why_no_trainer(self) -> str:
        """Returns the reasons why no trainer can be placed on any host, for the error message."""
        trains = [host for host, advised in zip(self._fleet.facts, self._fleet.hosts, strict=True) if advised.compute]
        if not self._fleet.facts:
            return "the fleet has no hosts."
        if not trains:
            return "no host of the fleet is of a kind that was profiled."
        placement = place(self._topology, trains)
        reasons = list(dict.fromkeys(problem.message for problem in placement.problems if problem.severity == "error"))
        unprofiled = len(self._fleet.facts) - len(trains)
        more = f"; {counted(unprofiled, 'host')} of other kinds were not profiled" if unprofiled else ""
        return ("; ".join(reasons) or "no host has room for a trainer") + f"{more}."


def _thinned(numbers: Sequence[int]) -> list[int]:
    if len(numbers) <= CURVE_POINTS:
        return list(numbers)
    last = len(numbers) - 1
    return [numbers[round(at * last / (CURVE_POINTS - 1))] for at in range(CURVE_POINTS)]
