"""The data that an exchange sends and receives on each host, as a multiple of M, the gradient bytes exchanged per step.

The formulas are those in the documentation pages of the strategies. `topology.strategies.reduction_cost` contains the
special case of equal links and one replica per host. In this module, several replicas may share a host, and links may
differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard_core.topology.strategies.reduction_cost import mixed_parts

CHUNK_S = 0.0025
SMALLEST_CHUNK, LARGEST_CHUNK, PAGE = 48 * 1024, 4 * 1024 * 1024, 4096
"""The rule for the size of chunks in reduction_server: the bytes of gradients that are exchanged in CHUNK_S, in whole
pages, within these limits. A test compares it with `torchyard_roles.strategies.reduction_server.reducer_client`.
"""


@dataclass(frozen=True)
class HostLoad:
    """The amounts of data that one exchange transfers over a host's link in each direction, and within the host.

    Amounts are multiples of M, the gradient bytes exchanged per step, or of the size of the encoded pseudo-gradients
    for DiLoCo's exchange between groups.
    """

    sent: float = 0.0
    received: float = 0.0
    local: float = 0.0


@dataclass(frozen=True)
class ChunkCounts:
    """The numbers of chunks that the processes on each host exchange, per byte of one trainer's gradients."""

    asked: Mapping[int, float]
    """Chunks that trainers on the host send, and whose sums they receive."""
    summed: Mapping[int, float]
    """Chunks of other processes that processes on the host receive, sum and return."""


def ring_loads(members: Sequence[int]) -> dict[int, HostLoad]:
    """Returns the loads of a ring all-reduce, by host. `members` contains the host of each rank, in rank order."""
    count = len(members)
    if count < 2:
        return {}
    per_edge = 2 * (count - 1) / count
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    local: Counter[int] = Counter()
    for here, there in zip(members, [*members[1:], members[0]], strict=True):
        if here == there:
            local[here] += 1
        else:
            sent[here] += 1
            received[there] += 1
    return {
        host: HostLoad(sent[host] * per_edge, received[host] * per_edge, local[host] * per_edge)
        for host in dict.fromkeys(members)
    }


def shares_of(servers: Sequence[int]) -> dict[int, float]:
    """Returns the fraction of the gradients that the servers on each host sum."""
    return {host: count / len(servers) for host, count in Counter(servers).items()}


def mixed_shares(trainers: Sequence[int], reducers: Sequence[int]) -> dict[int, float]:
    """Returns the fraction of the gradients that is summed on each host, if both reducers and trainers sum."""
    of_trainer, of_reducer = mixed_parts(len(trainers), len(reducers))
    found: defaultdict[int, float] = defaultdict(float)
    for host in trainers:
        found[host] += of_trainer
    for host in reducers:
        found[host] += of_reducer
    return dict(found)


def push_loads(trainers: Sequence[int], shares: Mapping[int, float]) -> dict[int, HostLoad]:
    """Returns the loads of a push, by host: every rank sends each part of its gradients to the host that sums the part.

    `shares` contains the fraction of the gradients that each host sums. A pull has the same loads in the opposite
    direction.
    """
    counts = Counter(trainers)
    total = len(trainers)
    found = {}
    for host in {*counts, *shares}:
        own, share = counts[host], shares.get(host, 0.0)
        found[host] = HostLoad(own * (1 - share), share * (total - own), own * share)
    return found


def push_connections(trainers: Sequence[int], shares: Mapping[int, float]) -> dict[int, int]:
    """Returns the number of other hosts with which each host exchanges gradients.

    The connections to these other hosts share the host's link.
    """
    senders, summing = {*trainers}, {host for host, share in shares.items() if share > 0}
    return {
        host: len(((summing if host in senders else set()) | (senders if host in summing else set())) - {host})
        for host in senders | summing
    }


def chunks_per_byte(trainers: Sequence[int], reducers: Sequence[int], *, mixed: bool, s_per_byte: float) -> ChunkCounts:
    """Returns the numbers of chunks that processes exchange, per byte of one trainer's gradients.

    In a mixed plan, the trainers' chunks are smaller than those of the reducers, in proportion to the parts that they
    sum. A trainer therefore exchanges the same number of chunks with every process that sums.

    Args:
        trainers, reducers: The hosts of the processes.
        mixed: Whether the trainers also sum.
        s_per_byte: The exchange's duration per byte of one trainer's gradients, which determines the size of chunks.
    """
    of_reducer = mixed_parts(len(trainers), len(reducers))[1] if mixed else 1 / len(reducers)
    fitting = CHUNK_S / s_per_byte if s_per_byte else LARGEST_CHUNK
    per_peer = of_reducer / min(LARGEST_CHUNK, max(SMALLEST_CHUNK, fitting // PAGE * PAGE))
    others = len(trainers) - 1 if mixed else 0
    asked: defaultdict[int, float] = defaultdict(float)
    summed: defaultdict[int, float] = defaultdict(float)
    for host in trainers:
        asked[host] += per_peer * (len(reducers) + others)
        summed[host] += per_peer * others
    for host in reducers:
        summed[host] += per_peer * len(trainers)
    return ChunkCounts(dict(asked), dict(summed))


def shared_link_utilisation(groups: int) -> float:
    """Returns the largest utilisation of a server's link if groups of workers push and pull independently.

    While all groups wait for the last chunks of their pulls, none of them pushes, and the link idles in this direction.
    Method: a closed queueing network of product form (Baskett, Chandy, Muntz and Palacios 1975). K customers circulate
    between two equally loaded stations, which are the directions of the link. Each station is then busy for the share
    K/(K + 1) of the time. Each group counts as two customers, since it pushes some chunks while it pulls others.
    """
    return 2 * groups / (2 * groups + 1)


def slowest_s(loads: Mapping[int, HostLoad], rates: Mapping[int, float], size: float) -> float:
    """Returns the lower bound of an exchange's duration in seconds: the transfer time of the busiest link direction.

    Args:
        loads: The load of each host, as a multiple of `size`.
        rates: The bandwidth of each host's link, in bytes per second.
        size: The size of one rank's gradients or pseudo-gradients, in bytes.
    """
    return max((size * max(load.sent, load.received) / rates[host] for host, load in loads.items()), default=0.0)
