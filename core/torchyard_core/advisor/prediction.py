"""Prediction of the step time of one topology on given hosts.

Closed forms give a lower bound (`exchange_load`), and a discrete-event simulation of the exchange's buckets gives the
estimate (`simulation`). The time at which the slowest of N trainers is ready to exchange is the expected maximum of
their varying computing times (`order_statistics`). The efficiencies below are derived from `docs/benchmarks.md`: they
relate the measured steps of four workers at 200 Mbit/s to the lower bounds for the bandwidth that a launch measures.
The test in `tests/end_to_end/advisor_proof` runs other cases, for which no parameter was fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, sqrt
from statistics import fmean

from torchyard_core.advisor.corrections import Correction
from torchyard_core.advisor.exchange_load import (
    HostLoad,
    chunks_per_byte,
    mixed_shares,
    push_connections,
    push_loads,
    ring_loads,
    shared_link_utilisation,
    shares_of,
    slowest_s,
)
from torchyard_core.advisor.order_statistics import expected_maximum
from torchyard_core.advisor.simulation import Stage, pieces_of, simulate, simulate_groups
from torchyard_core.advisor.trainer_compute import MIB, RING_BUCKET_BYTES, TrainerCompute
from torchyard_core.advisor.uncertainty import Uncertainty, half_width
from torchyard_core.formatting import counted, seconds
from torchyard_core.topology.model import Strategy, StrategyKind, Wire
from torchyard_core.topology.strategies.reduction_cost import Reduction, fastest_reduction

RING_EFFICIENCY = 0.93
"""Share of a link's bandwidth that gloo's ring all-reduce uses. The rest is lost as ranks wait for each other."""
SERVED_EFFICIENCY = 0.97
"""Share of a link's bandwidth that pipelined exchanges with servers, reducers and other groups use."""
HOP_S = 0.0003
"""Latency of a message between two hosts, in seconds."""
STEP_S = 0.003
"""Time in seconds per step for the small messages by which synchronous trainers coordinate."""
LOCAL_BYTES_S = 1.2e9
"""Rate of an exchange between trainers on one host without GPUs, in bytes per second."""
LOCAL_GPU_BYTES_S = 12e9
SUM_PASSES = 4
"""Number of times that a server moves a received byte in memory: from the socket, to the sum, to the next socket."""
TRAINER_PASSES = 2
"""Number of times that a trainer moves a byte of gradients in memory: into a bucket and back."""
CODEC_S_PER_BYTE = {Wire.FLOAT32: 0.0, Wire.BFLOAT16: 0.6e-9, Wire.INT8: 1.5e-9, Wire.INT4: 1.8e-9}
"""Seconds per byte of float32 to encode and decode parameters on a CPU, by wire format."""
WIRE_SHARE = {Wire.FLOAT32: 1.0, Wire.BFLOAT16: 0.5, Wire.INT8: 0.254, Wire.INT4: 0.129}
"""q: bytes on the wire per byte of float32, by wire format."""
COMPUTE_ERROR, EXCHANGE_ERROR = 0.02, 0.045
"""Standard deviations of the relative errors of predicted computing and exchange times, for a prediction's interval
(`uncertainty`).

If the correction factors of past runs in the prediction's scope have a larger standard deviation, that one is used.
"""
SEGMENT_CPU_S = 30e-6
"""CPU time for sending or receiving one TCP segment, in seconds, including a replica's own work on the segment.

Derived from the CPU time of trainers and servers in exchanges of six kinds at 200 and 400 Mbit/s (13 to 49 µs), none of
which is a case of `advisor_proof`. During these measurements, other processes used the same cores, which increases CPU
time by up to a third.
"""
CHUNKED_SEGMENT_CPU_S, CHUNKED_PASSES = 8e-6, 16
"""Further CPU time of an exchange in chunks, besides the measured time of each chunk: the time for each TCP segment
that is sent or received, and the number of moves of each byte in memory.

Fitted by least squares to the durations of ten cases of reduction_server on two cores, which are no cases of
`advisor_proof`.
"""
TRAINER_SHARE = 0.64
"""The trainer's share of the CPU time of a chunk. The reducer needs the rest (`benchmarks/training/roles_cost.py`)."""
REFINEMENTS = 4
LEAST_SEGMENT, LARGEST_SEGMENT = 2 * 1448, 64 * 1024
SEGMENTS_PER_S = 1024
"""Number of segments per second that determines the size of a segment: Linux puts the bytes that a connection sends in
1/1024 s into one segment (tcp_tso_autosize), at least `LEAST_SEGMENT` and at most `LARGEST_SEGMENT` bytes. Slow
connections therefore need more CPU time per byte.
"""
ASYNCHRONOUS_PIECES = 8
MESSAGES = "small messages between replicas"
"""Name of the resource that stands for network latency and the coordination of trainers."""
CORES = "CPU cores of "
"""Prefix of the resource name for all cores of a computer, which exchanges use for sending and receiving."""
EXCHANGE_RESOURCES = ("link of ", "CPU of ", CORES, MESSAGES)
"""Prefixes of the names of resources that an exchange uses."""
WAITING = "waiting for "
"""Prefix of the names of resources that stand for waiting for other trainers."""


@dataclass(frozen=True)
class AdvisedHost:
    """The properties of a host that predictions use."""

    name: str
    compute: TrainerCompute | None
    """None for a host without a profile, on which only servers may be placed."""
    link_bytes_s: float
    memory_bytes: float | None = None
    gpu_bytes: float | None = None
    """Memory of one GPU, in bytes."""
    cores: float | None = None
    """Number of CPU cores. If None (unknown), the cores are assumed not to limit exchanges."""
    computer: str = ""
    """The same name for all hosts, such as containers, that share the cores of one computer; empty for other hosts."""


@dataclass(frozen=True)
class Layout:
    """The hosts of a topology's replicas, as indices into a list of hosts."""

    strategy: Strategy
    groups: tuple[tuple[int, ...], ...]
    """The hosts of the trainers, by worker group."""
    servers: tuple[int, ...] = ()
    ranks: int = 1
    """Number of ranks of each trainer."""

    @cached_property
    def trainers(self) -> tuple[int, ...]:
        return tuple(host for group in self.groups for host in group)


@dataclass(frozen=True)
class Prediction:
    """The predicted speed of a topology. Times are in seconds per step."""

    step_s: float
    samples_s: float
    low: float
    """Lower end of the interval of samples/s that contains the measured mean with a probability of 80%."""
    high: float
    bound_s: float
    """The closed-form lower bound of the step time."""
    compute_s: float
    exchange_s: float
    """The time by which the exchange extends the step."""
    wait_s: float
    """The mean wait for the slowest trainer."""
    bytes_by_host: Mapping[str, tuple[float, float]]
    """Bytes (sent, received) per step over each host's link."""
    trainer_bytes: float
    """Peak memory of a trainer."""
    server_bytes: float
    """Peak memory of a server, excluding the Python interpreter."""
    bottleneck: str
    """A description of the resource that limits the speed."""
    notes: tuple[str, ...] = ()
    shortage: str = ""
    """A message about insufficient memory; empty if the memory suffices."""
    utilisation: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """DiLoCo: share of the step time that is spent computing, by wire format and number of inner steps."""

    @property
    def is_feasible(self) -> bool:
        return not self.shortage


@dataclass
class _Parts:
    """The parts of a step, and how long each resource is busy."""

    step_s: float
    compute_s: float
    exchange_s: float
    wait_s: float
    bound_s: float
    samples_s: float
    noise_s: float = 0.0
    """Standard deviation of the duration of one step. Divided by √n, it is that of the mean over n steps."""
    busy: dict[str, float] = field(default_factory=dict)
    is_serial: bool = False
    """Whether the exchange begins only after computing, in which case the step time is the sum of its parts."""
    loads: dict[int, HostLoad] = field(default_factory=dict)
    """Load of each host's link per step, as a multiple of M, the gradient bytes exchanged per step."""
    notes: tuple[str, ...] = ()


def predict(
    layout: Layout, hosts: Sequence[AdvisedHost], correction: Correction | None = None, steps: int | None = None
) -> Prediction:
    """Returns the predicted speed of a layout. Raises ValueError unless every trainer is on a host with a profile.

    Args:
        correction: Factors of the parts of a step; by default, all factors are 1.
        steps: Number of steps whose mean speed the 80% interval describes. By default, the interval does not include
            the noise of single steps.
    """
    return _Predictor(layout, hosts, correction or Correction(), steps).prediction()


class _Predictor:
    def __init__(self, layout: Layout, hosts: Sequence[AdvisedHost], correction: Correction, steps: int | None):
        self.layout = layout
        self.steps = steps
        self.hosts = hosts
        self.correction = correction
        self.rates = {host: hosts[host].link_bytes_s for host in {*layout.trainers, *layout.servers}}
        self.first = self._compute(layout.trainers[0])
        self.size = float(self.first.model_bytes)
        self.computers = {host: hosts[host].computer or hosts[host].name for host in self.rates}
        self.cores = {name: -1 - number for number, name in enumerate(dict.fromkeys(self.computers.values()))}
        """The resource number of each computer's cores. It is negative; links and CPUs have numbers from 0."""

    def _compute(self, host: int) -> TrainerCompute:
        found = self.hosts[host].compute
        if found is None:
            raise ValueError(f"{self.hosts[host].name} has no profile")
        return found

    def prediction(self) -> Prediction:
        kind = self.layout.strategy.kind
        if len(self.layout.trainers) * self.layout.ranks == 1 and not self.layout.servers:
            parts = self._group(self.layout.trainers)
        elif kind is StrategyKind.DOWNPOUR and len(self.layout.groups) > 1:
            parts = self._downpour()
        elif kind in (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR):
            parts = self._synchronous(self._served_stages(shares_of(self.layout.servers), steps=True), overlaps=False)
        elif kind is StrategyKind.REDUCTION_SERVER:
            parts = self._reduction()
        elif kind is StrategyKind.HOGWILD and len(self.layout.groups) > 1:
            parts = self._hogwild()
        elif kind is StrategyKind.DILOCO:
            parts = self._diloco()
        else:
            parts = self._group(self.layout.trainers)
        return self._finished(self._corrected(parts))

    # Synchronous strategies

    def _ranks(self, trainers: Iterable[int]) -> list[int]:
        return [host for host in trainers for _ in range(self.layout.ranks)]

    def _gradient_s(self, host: int) -> tuple[float, float]:
        """Returns the mean and standard deviation of the time from a step's beginning to its last gradient."""
        compute = self._compute(host)
        return compute.gradient_s, compute.spread_s

    def _group(self, trainers: Sequence[int]) -> _Parts:
        """Returns the parts of a step in which the trainers average their gradients by a ring all-reduce."""
        loads = ring_loads(self._ranks(trainers))
        count = len(trainers) * self.layout.ranks
        local = LOCAL_GPU_BYTES_S if self.first.uses_gpu else LOCAL_BYTES_S
        stage = self._stage(
            {
                host: (
                    load.sent / (self.rates[host] * RING_EFFICIENCY),
                    load.received / (self.rates[host] * RING_EFFICIENCY),
                    load.local / local + self._passes(TRAINER_PASSES if load.sent else 0),
                )
                for host, load in loads.items()
            },
            2 * (count - 1) * HOP_S,
        )
        return self._exchanged(trainers, [stage] if loads else [], loads, dict.fromkeys(loads, 1), RING_BUCKET_BYTES)

    def _reduction(self) -> _Parts:
        trainers, reducers = self.layout.trainers, self.layout.servers
        best = fastest_reduction(len(trainers), len(reducers)).best
        if best is Reduction.RING:
            parts = self._group(trainers)
            if reducers and len(trainers) > 1:
                parts.notes = ("A ring is faster here, so that the reducers would be idle.",)
            return parts
        shares = shares_of(reducers) if best is Reduction.REDUCERS else mixed_shares(trainers, reducers)
        stages = self._served_stages(shares, steps=False)
        chunks = self._chunk_cpu_s_per_byte(shares, mixed=best is Reduction.MIXED)
        parts = self._synchronous(stages, overlaps=True, shares=shares, chunks=chunks)
        if best is Reduction.MIXED:
            parts.notes = ("Reducers and trainers both sum, since the reducers alone would be slower.",)
        return parts

    def _chunk_cpu_s_per_byte(self, shares: Mapping[int, float], *, mixed: bool) -> dict[str, float] | None:
        """Returns the time for which chunks occupy all cores of each computer, in seconds per byte of gradients.

        Chunks are smaller in slower exchanges, and smaller chunks need more time. The result is therefore refined.
        Returns None if the profile does not contain the time of a chunk, which older profiles lack.
        """
        chunk_cpu_s = self.first.chunk_cpu_s
        if chunk_cpu_s is None:
            return None
        trainers, reducers = self.layout.trainers, self.layout.servers
        pushes = push_loads(trainers, shares)
        exchange_s = slowest_s(pushes, self.rates, 1.0) / SERVED_EFFICIENCY
        found: dict[str, float] = {}
        for _ in range(REFINEMENTS):
            slowest = max(exchange_s, *found.values()) if found else exchange_s
            counts = chunks_per_byte(trainers, reducers, mixed=mixed, s_per_byte=slowest)
            found = {}
            for host in pushes:
                cores = self.hosts[host].cores
                if cores:
                    work = counts.asked.get(host, 0.0) * TRAINER_SHARE
                    work += counts.summed.get(host, 0.0) * (1 - TRAINER_SHARE)
                    name = self.computers[host]
                    found[name] = found.get(name, 0.0) + work * chunk_cpu_s / cores
        return found

    def _synchronous(
        self,
        stages: list[Stage],
        *,
        overlaps: bool,
        shares: Mapping[int, float] | None = None,
        chunks: Mapping[str, float] | None = None,
    ) -> _Parts:
        trainers = self._senders()
        shares = shares if shares is not None else shares_of(self.layout.servers)
        pushes = push_loads(trainers, shares)
        both = {
            host: HostLoad(load.sent + load.received, load.sent + load.received, 2 * load.local)
            for host, load in pushes.items()
        }
        bucket = self.layout.strategy.bucket_mb * MIB
        connections = push_connections(trainers, shares)
        return self._exchanged(
            self.layout.trainers, stages, both, connections, bucket if overlaps else 0, steps=overlaps, chunks=chunks
        )

    def _senders(self) -> list[int]:
        """Returns the hosts of the processes that exchange with servers.

        Reducers serve the first rank of each trainer, and parameter servers serve every rank.
        """
        if self.layout.strategy.kind is StrategyKind.REDUCTION_SERVER:
            return list(self.layout.trainers)
        return self._ranks(self.layout.trainers)

    def _served_stages(self, shares: Mapping[int, float], *, steps: bool) -> list[Stage]:
        """Returns the stages of an exchange with the processes that sum the gradients.

        Args:
            shares: The fraction of the gradients that is summed on each host.
            steps: Whether the summing processes also step the optimizer.
        """
        senders = self._senders()
        loads = push_loads(senders, shares)
        rate = {host: self.rates[host] * SERVED_EFFICIENCY for host in loads}
        push = {host: (load.sent / rate[host], load.received / rate[host], 0.0) for host, load in loads.items()}
        pull = {host: (load.received / rate[host], load.sent / rate[host], 0.0) for host, load in loads.items()}
        optimizer = self._server_step() if steps else 0.0
        sums = {
            host: (0.0, 0.0, share * (len(senders) * self._passes(SUM_PASSES) + optimizer))
            for host, share in shares.items()
        }
        stages = [self._stage(push, HOP_S), self._stage(sums, 0.0), self._stage(pull, HOP_S)]
        copies = self.first.copy_s_per_byte
        if self.layout.ranks > 1 and self.layout.strategy.kind is StrategyKind.REDUCTION_SERVER:
            copies += 2 * (self.layout.ranks - 1) / self.layout.ranks / LOCAL_GPU_BYTES_S
        if copies:
            copy = self._stage(dict.fromkeys(senders, (0.0, 0.0, copies)), 0.0)
            stages = [copy, *stages, copy]
        return stages

    def _server_step(self) -> float:
        """Returns the time of a server's optimizer step on a CPU, in seconds per byte of gradients."""
        if not self.first.uses_gpu:
            return self.first.optimizer_s / self.size if self.size else 0.0
        states = self.first.optimizer_bytes / self.size if self.size else 0.0
        return self._passes(3 + 2 * states)

    def _passes(self, count: float) -> float:
        """Returns the time in seconds per byte for moving each byte `count` times in a host's memory."""
        return count / self.first.memory_bytes_s

    def _stage(self, by_host: Mapping[int, tuple[float, float, float]], fixed_s: float) -> Stage:
        """Returns a stage that uses links and CPUs.

        Args:
            by_host: Seconds that sending, receiving and computing take per byte of gradients, on each host.
            fixed_s: Duration in seconds that is independent of the number of bytes.
        """
        return Stage(
            tuple(
                (3 * host + direction, value)
                for host, values in by_host.items()
                for direction, value in enumerate(values)
                if value
            ),
            fixed_s,
        )

    def _exchanged(
        self,
        trainers: Sequence[int],
        stages: list[Stage],
        loads: Mapping[int, HostLoad],
        connections: Mapping[int, int],
        bucket_bytes: int,
        *,
        steps: bool = True,
        chunks: Mapping[str, float] | None = None,
    ) -> _Parts:
        """Returns the parts of a synchronous step.

        Args:
            loads: The load of each host in the whole exchange.
            connections: The number of connections that share each host's link.
            bucket_bytes: The size of the buckets that are sent during the backward pass; 0 if all gradients are sent
                after the backward pass.
            steps: Whether the trainers step the optimizer.
            chunks: The time for which chunks occupy all cores of each computer (`_chunk_cpu_s_per_byte`), if the
                exchange uses chunks and their time is known.
        """
        ranks = self._ranks(trainers)
        times = [self._gradient_s(host) for host in ranks]
        slowest_host = max(trainers, key=lambda host: self._gradient_s(host)[0])
        slowest = self._gradient_s(slowest_host)[0]
        ready, noise = expected_maximum(times)
        optimizer = max(self._compute(host).optimizer_s for host in trainers) if steps else 0.0
        compute = self._compute(slowest_host)
        if bucket_bytes:
            delay = ready - slowest
            buckets = [(delay + at, size) for at, size in compute.buckets(bucket_bytes)]
        else:
            buckets = [(ready, int(self.size))]
        if chunks is None:
            cpus = self._cpu_s_per_byte(loads, connections)
        else:
            moves = self._passes(CHUNKED_PASSES)
            cpus = self._cpu_s_per_byte(loads, connections, CHUNKED_SEGMENT_CPU_S, moves)
            cpus = {name: value + chunks[name] for name, value in cpus.items()}
        # Every piece uses the cores of all computers in its first stage, so only the busiest computer limits the speed.
        busiest = sorted(cpus, key=cpus.__getitem__)[-1:]
        stages = self._with_cores(_without_copies(stages), {name: cpus[name] for name in busiest})
        simulated = simulate(pieces_of(buckets), stages)
        copying = self._passes(TRAINER_PASSES / 2) * self.size if stages else 0.0
        overhead = STEP_S if len(ranks) > 1 or self.layout.servers else 0.0
        step = max(ready, simulated.end_s) + copying + optimizer + overhead
        mean = fmean(value for value, _ in times)
        alone = slowest_s(loads, self.rates, self.size) if loads else 0.0
        bound = optimizer + (max(slowest, compute.before_s + alone) if bucket_bytes else slowest + alone)
        busy = {f"computing on {self.hosts[slowest_host].name}": slowest + optimizer}
        busy |= self._busy(simulated.busy_s)
        if copying:
            cpu = f"CPU of {self.hosts[slowest_host].name}"
            busy[cpu] = busy.get(cpu, 0.0) + copying
        if overhead:
            busy[MESSAGES] = overhead + sum(stage.fixed_s for stage in stages)
        wait = max(0.0, ready - mean)
        if ready - slowest > 0:
            busy[f"waiting for the slowest of {len(ranks)} trainers"] = wait
        samples = sum(self._compute(host).samples for host in ranks)
        return _Parts(
            step, mean + optimizer, max(0.0, step - ready - optimizer), wait, min(bound, step), samples / step,
            noise, busy, bool(stages) and not bucket_bytes, dict(loads),
        )  # fmt: skip

    def _cpu_s_per_byte(
        self,
        loads: Mapping[int, HostLoad],
        connections: Mapping[int, int],
        segment_cpu_s: float = SEGMENT_CPU_S,
        byte_cpu_s: float = 0.0,
    ) -> dict[str, float]:
        """Returns the time for which an exchange occupies all cores of each computer, in seconds per byte of payload.

        The payload is what one rank exchanges: its gradients, or under DiLoCo its encoded pseudo-gradients.

        Args:
            loads: The loads of the whole exchange, by host.
            connections: The number of connections that share each host's link in the exchange.
            segment_cpu_s: CPU time for sending or receiving one TCP segment.
            byte_cpu_s: Further CPU time for each byte that is sent or received.
        """
        found: dict[str, float] = {}
        for host, load in loads.items():
            cores = self.hosts[host].cores
            if cores:
                rate = self.rates[host] / max(1, connections.get(host, 1))
                segment = min(LARGEST_SEGMENT, max(LEAST_SEGMENT, rate / SEGMENTS_PER_S))
                work = (load.sent + load.received) * (segment_cpu_s / segment + byte_cpu_s)
                found[self.computers[host]] = found.get(self.computers[host], 0.0) + work / cores
        return found

    def _cores_busy(self, loads: Mapping[int, HostLoad], connections: Mapping[int, int]) -> dict[str, float]:
        """Returns how long the cores of each computer are busy in a step, by resource name.

        `loads` contains the loads of one step, by host.
        """
        found = self._cpu_s_per_byte(loads, connections)
        return {f"{CORES}{computer}": value * self.size for computer, value in found.items()}

    def _with_cores(self, stages: Sequence[Stage], cpu_s_per_byte: Mapping[str, float]) -> list[Stage]:
        """Returns the stages with the cores of the computers as additional resources of the first stage.

        The first stage includes the cores' work for all stages. If later stages used the cores too, their pieces would
        queue behind all pieces of the first stage, since these arrive earlier.
        """
        uses = tuple((self.cores[computer], value) for computer, value in cpu_s_per_byte.items())
        return [
            replace(stage, seconds_per_byte=(*stage.seconds_per_byte, *uses)) if number == 0 else stage
            for number, stage in enumerate(stages)
        ]

    def _busy(self, busy_s: Mapping[int, float]) -> dict[str, float]:
        """Returns how long each resource is busy, by resource name. `busy_s` contains the times by resource number."""
        found = {f"{CORES}{name}": busy_s[number] for name, number in self.cores.items() if number in busy_s}
        for resource, time in busy_s.items():
            if resource >= 0:
                host, direction = divmod(resource, 3)
                name = f"{'link' if direction < 2 else 'CPU'} of {self.hosts[host].name}"
                found[name] = max(found.get(name, 0.0), time)
        return found

    # Asynchronous strategies

    def _downpour(self) -> _Parts:
        strategy, groups = self.layout.strategy, self.layout.groups
        shares = shares_of(self.layout.servers)
        push_every, pull_every = strategy.push_every, strategy.pull_every
        optimizer = self._server_step()
        computing = [expected_maximum([self._gradient_s(host) for host in self._ranks(group)])[0] for group in groups]
        # The groups share the servers' links, so the rate of a connection depends on all groups.
        connections = push_connections(self.layout.trainers, shares)
        stages = []
        for group in groups:
            ranks = self._ranks(group)
            push, sums, pull = self._async_stages(ranks, shares, connections, optimizer)
            stages.append([_scaled(push, 1 / push_every), _scaled(sums, 1 / push_every), _scaled(pull, 1 / pull_every)])
        pieces = ASYNCHRONOUS_PIECES if len(groups) <= 16 else ASYNCHRONOUS_PIECES // 2
        install = (self._passes(TRAINER_PASSES) + self.first.copy_s_per_byte) * self.size / pull_every
        steps = simulate_groups([each + install for each in computing], stages, self.size, pieces)
        loads = {
            host: HostLoad(
                load.sent / push_every + load.received / pull_every,
                load.received / push_every + load.sent / pull_every,
            )
            for host, load in push_loads(self._ranks(self.layout.trainers), shares).items()
        }
        alone = slowest_s(loads, self.rates, self.size)
        parts = self._independent(steps, computing, loads)
        # If links limit the speed, trainers wait for exchanges. Variations of the computing time then have less effect.
        parts.noise_s = max(0.0, parts.noise_s - parts.exchange_s / sqrt(len(groups)))
        ranks = self._ranks(self.layout.trainers)
        summing = (len(ranks) * self._passes(SUM_PASSES) + len(groups) * optimizer) * self.size / push_every
        shared = shared_link_utilisation(len(groups))
        for host, share in shares.items():
            parts.busy[f"CPU of {self.hosts[host].name}"] = share * summing
            parts.busy[f"link of {self.hosts[host].name}"] /= shared
        parts.busy |= self._cores_busy(loads, connections)
        # `loads` contains the exchanges of all groups during a mean step. A mean step therefore takes at least as long
        # as the transfers over the busiest link.
        parts.bound_s = min(parts.step_s, max(min(computing), alone))
        return parts

    def _async_stages(
        self, ranks: Sequence[int], shares: Mapping[int, float], connections: Mapping[int, int], optimizer: float
    ) -> tuple[Stage, Stage, Stage]:
        """Returns the push, sum and pull stages of one group's exchange.

        Only the slowest of the servers' hosts is included, since it determines the duration.
        """
        counts = Counter(ranks)
        push: dict[int, list[float]] = {}
        pull: dict[int, list[float]] = {}
        shared = shared_link_utilisation(len(self.layout.groups))
        for host, load in push_loads(ranks, shares).items():
            rate = self.rates[host] * SERVED_EFFICIENCY * (shared if host in shares else 1.0)
            push[host] = [load.sent / rate, load.received / rate, 0.0]
            pull[host] = [load.received / rate, load.sent / rate, 0.0]
        by_time = sorted(shares, key=lambda host: shares[host] / self.rates[host], reverse=True)
        kept = {*counts, *by_time[:1]}
        own = {
            host: HostLoad(load.sent + load.received, load.sent + load.received)
            for host, load in push_loads(ranks, shares).items()
        }
        cpus = self._cpu_s_per_byte(own, connections)
        sums = {
            host: (0.0, 0.0, shares[host] * (len(ranks) * self._passes(SUM_PASSES) + optimizer)) for host in by_time[:1]
        }
        pushed = self._stage({host: (each[0], each[1], 0.0) for host, each in push.items() if host in kept}, HOP_S)
        pulled = self._stage({host: (each[0], each[1], 0.0) for host, each in pull.items() if host in kept}, HOP_S)
        computers = {self.computers[host] for host in kept}
        (pushed,) = self._with_cores([pushed], {name: value for name, value in cpus.items() if name in computers})
        return pushed, self._stage(sums, 0.0), pulled

    def _independent(self, steps: Sequence[float], computing: Sequence[float], loads: Mapping[int, HostLoad]) -> _Parts:
        """Returns the parts of a step of groups that run independently. `step_s` is the mean over the groups' steps."""
        sizes = [sum(self._compute(host).samples for host in self._ranks(group)) for group in self.layout.groups]
        samples = sum(size / step for size, step in zip(sizes, steps, strict=True))
        step = sum(sizes) / samples
        compute = sum(size / own * (each / own) for size, own, each in zip(sizes, steps, computing, strict=True)) / sum(
            size / own / own for size, own in zip(sizes, steps, strict=True)
        )
        slowest = max(range(len(steps)), key=lambda number: computing[number])
        busy = {f"computing on {self.hosts[self.layout.groups[slowest][0]].name}": computing[slowest]}
        for host, load in loads.items():
            name = f"link of {self.hosts[host].name}"
            rate = self.rates[host] * SERVED_EFFICIENCY
            busy[name] = self.size * max(load.sent, load.received) / rate
        spread = sqrt(fmean(self._gradient_s(host)[1] ** 2 for host in self._ranks(self.layout.trainers)) / len(steps))
        return _Parts(step, compute, max(0.0, step - compute), 0.0, step, samples, spread, busy, loads=dict(loads))

    @cached_property
    def _inner_steps(self) -> list[_Parts]:
        """The parts of each group's steps without the exchange between groups. Identical groups are predicted once."""
        known: dict[tuple[tuple[int, int, float], ...], tuple[list[int], _Parts]] = {}
        found = []
        for group in self.layout.groups:
            hosts = list(dict.fromkeys(group))
            key = tuple((hosts.index(host), id(self.hosts[host].compute), self.rates[host]) for host in group)
            if key not in known:
                known[key] = hosts, self._group(group)
            like, parts = known[key]
            here = dict(zip(like, hosts, strict=True))
            found.append(replace(parts, loads={here[host]: load for host, load in parts.loads.items()}))
        return found

    def _hogwild(self) -> _Parts:
        groups, every = self.layout.groups, self.layout.strategy.sync_every
        inner = self._inner_steps
        firsts = [group[0] for group in groups]
        masters, ring = Counter(firsts), ring_loads(firsts)
        local = LOCAL_GPU_BYTES_S if self.first.uses_gpu else LOCAL_BYTES_S
        loads: dict[int, HostLoad] = {}
        steps, intervals = [], []
        copies: dict[str, float] = {}
        for group, parts in zip(groups, inner, strict=True):
            host, load = group[0], ring[group[0]]
            exchange = max(load.sent, load.received) * self.size / (self.rates[host] * SERVED_EFFICIENCY)
            exchange = (exchange + load.local * self.size / local) / masters[host]
            interval = max(every, exchange / parts.step_s)  # A long exchange delays the next exchange, not the steps.
            copying = self._passes(2 * TRAINER_PASSES) * self.size / interval
            copies[f"CPU of {self.hosts[host].name}"] = copying
            steps.append(parts.step_s + copying)
            intervals.append(interval)
            times = masters[host] * interval
            _add(loads, {host: HostLoad(load.sent / times, load.received / times, load.local / times)})
            _add(loads, parts.loads)
        found = self._independent(steps, [parts.compute_s for parts in inner], loads)
        found.busy |= copies
        found.wait_s = fmean(parts.wait_s for parts in inner)
        found.exchange_s = max(0.0, found.exchange_s - found.wait_s)
        found.bound_s = min(found.step_s, min(max(parts.bound_s, 0.0) for parts in inner))
        if max(intervals) > every:
            planned = "after each" if every == 1 else f"every {every}"
            found.notes = (
                f"The links are so slow that groups exchange every {counted(ceil(max(intervals)), 'update')} and not "
                f"{planned}.",
            )
        return found

    def _diloco(self) -> _Parts:
        inner = self._inner_steps
        strategy = self.layout.strategy
        parts, loads = self._outer(inner, strategy)
        for each in inner:
            _add(loads, each.loads)
        parts.loads = loads
        return parts

    def _outer(self, inner: Sequence[_Parts], strategy: Strategy) -> tuple[_Parts, dict[int, HostLoad]]:
        """Returns the parts of a mean inner step, including its share of the exchange between groups.

        Also returns the loads of this share, by host, as multiples of M, the gradient bytes exchanged per step.
        """
        groups = self.layout.groups
        every, fragments, overlap = strategy.inner_steps, strategy.fragments, strategy.overlap_steps
        size = self.first.float32_bytes * WIRE_SHARE[strategy.wire]
        firsts = [group[0] for group in groups]
        if self.layout.servers:
            shares = shares_of(self.layout.servers)
        else:
            shares = {host: count / len(firsts) for host, count in Counter(firsts).items()}
        pushes = push_loads(firsts, shares)
        both = {host: HostLoad(load.sent + load.received, load.sent + load.received) for host, load in pushes.items()}
        # Servers answer once a round is closed, so pushes and pulls do not overlap.
        exchange = 2 * slowest_s(pushes, self.rates, size) if self.layout.servers else slowest_s(both, self.rates, size)
        exchange /= SERVED_EFFICIENCY
        cores = self._cpu_s_per_byte(both, push_connections(firsts, shares))
        exchange = max(exchange, *(size * value for value in cores.values())) if cores else exchange
        codec = (CODEC_S_PER_BYTE[strategy.wire] + self._passes(6)) * self.first.float32_bytes
        codec += 2 * self.first.copy_s_per_byte * self.first.float32_bytes
        round_, round_noise = expected_maximum(
            [
                (every * each.step_s, sqrt(every) * self._gradient_s(group[0])[1])
                for each, group in zip(inner, groups, strict=True)
            ]
        )
        step = round_ / every
        if len(groups) < 2:
            exchange = 0.0
        if overlap:
            exposed = fragments * max(0.0, exchange / fragments - overlap * step) + codec
            step = max(step + exposed / every, (exchange + codec) / every)
        else:
            step += (exchange + codec + HOP_S * 4 * fragments) / every
        mean = fmean(each.step_s for each in inner)
        compute = fmean(each.compute_s for each in inner)
        wait = max(0.0, round_ / every - mean) + fmean(each.wait_s for each in inner)
        samples = sum(self._compute(host).samples for host in self._ranks(self.layout.trainers))
        slowest = max(range(len(groups)), key=lambda number: inner[number].step_s)
        busy = {f"computing on {self.hosts[groups[slowest][0]].name}": inner[slowest].step_s}
        for host, load in both.items():
            time = size * max(load.sent, load.received) / self.rates[host] / SERVED_EFFICIENCY / every
            busy[f"link of {self.hosts[host].name}"] = time
        if len(groups) > 1:
            busy |= {f"CPU of {self.hosts[host].name}": codec / every for host in firsts}
            busy |= {f"{CORES}{computer}": value * size / every for computer, value in cores.items()}
        bound = max(each.bound_s for each in inner)
        if not overlap and len(groups) > 1:
            bound += slowest_s(both, self.rates, size) / every
        share = size / self.size / every if self.size else 0.0
        loads = {host: HostLoad(load.sent * share, load.received * share) for host, load in both.items()}
        exchange_s = max(0.0, step - compute - wait)
        noise = round_noise / sqrt(every)
        return _Parts(step, compute, exchange_s, wait, min(bound, step), samples / step, noise, busy), loads

    def _utilisation(self) -> dict[str, dict[int, float]]:
        """Returns the share of a DiLoCo step that is spent computing, by wire format and number of inner steps."""
        inner = self._inner_steps
        mean = fmean(each.step_s for each in inner)
        found: dict[str, dict[int, float]] = {}
        for wire in Wire:
            found[wire.value] = {}
            for every in (10, 25, 50, 100, 250, 500):
                changes = {"wire": wire, "inner_steps": every, "fragments": 1, "overlap_steps": 0}
                parts, _ = self._outer(inner, self.layout.strategy.model_copy(update=changes))
                found[wire.value][every] = min(1.0, mean / parts.step_s)
        return found

    # Correction by past runs, and the resulting prediction

    def _corrected(self, parts: _Parts) -> _Parts:
        compute, exchange = self.correction.compute, self.correction.exchange
        step = self.correction.step_s(parts.step_s - parts.exchange_s, parts.exchange_s)
        return replace(
            parts,
            step_s=step,
            compute_s=compute * parts.compute_s,
            exchange_s=exchange * parts.exchange_s,
            wait_s=compute * parts.wait_s,
            bound_s=min(parts.bound_s, step),
            samples_s=parts.samples_s * parts.step_s / step,
            busy={
                name: time * (exchange if name.startswith(EXCHANGE_RESOURCES) else compute)
                for name, time in parts.busy.items()
            },
        )

    def _finished(self, parts: _Parts) -> Prediction:
        half = half_width(self._uncertainties(parts)) / parts.step_s
        name, time = _bottleneck(parts)
        trainer, server, shortage = self._memory()
        is_diloco = self.layout.strategy.kind is StrategyKind.DILOCO and len(self.layout.groups) > 1
        return Prediction(
            step_s=parts.step_s,
            samples_s=parts.samples_s,
            low=parts.samples_s / (1 + half),
            high=parts.samples_s / max(0.05, 1 - half),
            bound_s=parts.bound_s,
            compute_s=parts.compute_s,
            exchange_s=parts.exchange_s,
            wait_s=parts.wait_s,
            bytes_by_host={
                self.hosts[host].name: (load.sent * self.size, load.received * self.size)
                for host, load in sorted(parts.loads.items())
                if load.sent or load.received
            },
            trainer_bytes=trainer,
            server_bytes=server,
            bottleneck=f"{name}, {seconds(min(time, parts.step_s))} of {seconds(parts.step_s)}",
            notes=(*parts.notes, *self._crowded()),
            shortage=shortage,
            utilisation=self._utilisation() if is_diloco else {},
        )

    def _uncertainties(self, parts: _Parts) -> list[Uncertainty]:
        """Returns the uncertainties of the step time from the model, the profile, and the number of averaged steps."""
        exchanged = parts.exchange_s
        limit, busy_s = _bottleneck(parts)
        if limit.startswith(EXCHANGE_RESOURCES):
            # The exchange determines the step's duration, even if it overlaps with computing: all of it is uncertain.
            exchanged = max(exchanged, min(busy_s, parts.step_s))
        computed = parts.step_s - exchanged
        found = [
            Uncertainty(max(COMPUTE_ERROR, self.correction.compute_spread) * computed),
            Uncertainty(max(EXCHANGE_ERROR, self.correction.exchange_spread) * exchanged),
        ]
        profiled = [self._compute(host) for host in {*self.layout.trainers}]
        least = max(profiled, key=lambda each: each.spread_s / sqrt(each.measured_steps) / max(each.gradient_s, 1e-12))
        freedom = max(1, least.measured_steps - 1)
        share = least.spread_s / sqrt(least.measured_steps) / least.gradient_s if least.gradient_s > 0 else 0.0
        # A correction by past runs already accounts for the error of the profile.
        profile = share * max(0.0, computed - parts.wait_s) if not self.correction.runs else 0.0
        run = self.correction.compute * parts.noise_s / sqrt(self.steps) if self.steps is not None else 0.0
        # `profile` and `run` are multiples of the profile's standard deviation, so they are combined into one part with
        # the degrees of freedom of that standard deviation.
        found.append(Uncertainty(sqrt(profile**2 + run**2), freedom))
        found.append(Uncertainty(parts.wait_s / sqrt(2 * freedom), freedom))
        return found

    def _crowded(self) -> list[str]:
        """Returns a sentence for each host without GPUs that several trainers share."""
        return [
            f"{count} trainers share the CPUs of {self.hosts[host].name}; the prediction assumes that they do not slow "
            "each other down."
            for host, count in Counter(self._ranks(self.layout.trainers)).items()
            if count > 1 and not self._compute(host).uses_gpu
        ]

    def _memory(self) -> tuple[float, float, str]:
        """Returns the memory in bytes that a trainer and a server need, and a message if a host has too little."""
        kind = self.layout.strategy.kind
        several = len(self.layout.trainers) * self.layout.ranks > 1 or self.layout.servers
        trainer = float(self.first.peak_bytes + (self.size if several else 0))
        states = self.first.optimizer_bytes
        if kind in (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR):
            whole = self.first.parameter_bytes + 2 * self.size + states
        elif kind is StrategyKind.DILOCO:
            whole = 4.0 * self.first.float32_bytes
        else:
            whole = 2 * self.size
        server = whole / len(self.layout.servers) if self.layout.servers else 0.0
        shortage = ""
        on_trainer_host = Counter(self._ranks(self.layout.trainers))
        on_server_host = Counter(self.layout.servers)
        for host in sorted(self.rates):
            facts = self.hosts[host]
            needed = on_server_host[host] * server
            if self.first.uses_gpu:
                if on_trainer_host[host] and facts.gpu_bytes is not None and trainer > facts.gpu_bytes:
                    shortage = shortage or f"a trainer needs more memory than a GPU of {facts.name} has"
            else:
                needed += on_trainer_host[host] * trainer
            if facts.memory_bytes is not None and needed > facts.memory_bytes:
                shortage = shortage or f"the replicas on {facts.name} need more memory than it has"
        return trainer, server, shortage


def _bottleneck(parts: _Parts) -> tuple[str, float]:
    """Returns the resource that is busy longest, and for how long.

    If the exchange begins after computing, only the resources of the longest part are considered: computing, exchange
    or waiting.
    """
    busy = parts.busy
    if parts.is_serial:
        longest = max(parts.compute_s, parts.exchange_s, parts.wait_s)
        if longest == parts.exchange_s:
            busy = {name: time for name, time in busy.items() if name.startswith(EXCHANGE_RESOURCES)}
        elif longest == parts.wait_s:
            busy = {name: time for name, time in busy.items() if name.startswith(WAITING)}
        else:
            busy = {name: time for name, time in busy.items() if not name.startswith((*EXCHANGE_RESOURCES, WAITING))}
    return max((busy or parts.busy).items(), key=lambda item: item[1])


def _without_copies(stages: Sequence[Stage]) -> list[Stage]:
    """Returns the stages with only one host of each group of identically loaded hosts.

    Identically loaded hosts finish at the same time, so one of them represents the others.
    """
    by_host: dict[int, dict[tuple[int, int], float]] = {}
    for number, stage in enumerate(stages):
        for resource, value in stage.seconds_per_byte:
            by_host.setdefault(resource // 3, {})[(number, resource % 3)] = value
    kept: dict[tuple[tuple[tuple[int, int], float], ...], int] = {}
    for host, uses in by_host.items():
        kept.setdefault(tuple(sorted(uses.items())), host)
    hosts = set(kept.values())
    return [
        Stage(tuple(use for use in stage.seconds_per_byte if use[0] // 3 in hosts), stage.fixed_s) for stage in stages
    ]


def _scaled(stage: Stage, factor: float) -> Stage:
    return Stage(tuple((resource, value * factor) for resource, value in stage.seconds_per_byte), stage.fixed_s)


def _add(loads: dict[int, HostLoad], more: Mapping[int, HostLoad]) -> None:
    """Adds `more` to `loads` in place."""
    for host, load in more.items():
        before = loads.get(host, HostLoad())
        loads[host] = HostLoad(before.sent + load.sent, before.received + load.received, before.local + load.local)
