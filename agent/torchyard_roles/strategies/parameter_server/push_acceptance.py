"""The rounds of a server: which pushes belong to one round, which of them are used, and which are late.

A *round* is one push of every member of a worker group, that is, one step of the group on one server. A server closes a
round when enough members have sent their first chunk. The required number is the number of members minus the number of
backup workers, or the number of members that have not left if this is smaller. A later push counts as late: the server
drops its gradients and answers with the newest parameters. This module does not handle tensors.

    version      of a server: the number of accepted rounds of all groups
    base         the version from which the gradients of a push were computed
    staleness    version − base when the first chunk is complete; if it exceeds the limit, the round is dropped
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

ACCEPTED = "accepted"
STALE = "stale"
"""The outcome of a round that was dropped because its staleness exceeded the limit."""
LATE = "late"
"""The outcome of a push that was dropped because its round was closed."""
VOID = "void"
"""The outcome of a round that was skipped because no member had finite gradients."""
NEWEST = "newest"
"""The outcome of a pull, which returns the newest parameters."""


class Rules(NamedTuple):
    """The settings of the strategy that determine which pushes a server accepts."""

    groups: int = 1
    max_staleness: int = 16
    """Maximum staleness, in versions, of a round that is accepted."""
    backup_workers: int = 0
    warm_start_steps: int = 0
    in_rank_order: bool = True


class Push(NamedTuple):
    """The header of a push of one chunk by one member."""

    group: int
    rank: int
    """The rank of the member within its group."""
    generation: int
    round: int
    chunk: int
    base: int
    void: bool = False
    """Whether the member sends no gradient, because it was not finite or because a GradScaler skips the step."""
    absent: frozenset[int] = frozenset()
    """The pieces of the chunk that have no gradient on this member."""
    wants: bool = True
    """Whether the member requests the new parameters."""
    bare: bool = False
    """Whether no piece has a gradient. The message then consists of the header only."""
    hold: bool = False
    """Whether the server holds the sum until it receives a factor to multiply it by, for clipping by norm."""
    clip: float | None = None
    """The limit for elements of the mean gradient, or None if there is none."""
    changed: int | None = None
    """The checksum of the member's chunk, if the script has changed the chunk since the last step."""


@dataclass
class Round:
    """The state of one round on one server."""

    number: int
    members: set[int] = field(default_factory=set)
    """The ranks whose gradients are used in this round."""
    base: int = 0
    """The oldest version from which a member has computed its gradients."""
    voids: int = 0
    closed: bool = False
    """Whether the round is closed, so that pushes of other members are late."""
    chunks_left: int = 0
    outcome: str = ""
    """The outcome of the round, or "" until a chunk is complete."""
    version: int = 0
    """The version of the parameters that the members receive, which is the base of their next push."""
    staleness: int = 0


@dataclass
class Group:
    """The state of one worker group on one server, in the group's current generation."""

    size: int
    generation: int = 0
    rounds: dict[int, Round] = field(default_factory=dict)
    """The rounds that have incomplete chunks, by number."""
    closed: int = 0
    """The number of the last closed round."""
    late: dict[int, int] = field(default_factory=dict)
    """The last round for which each rank was late, by rank."""
    left: set[int] = field(default_factory=set)
    """The ranks that have left."""
    added: set[int] = field(default_factory=set)
    """The chunks of parameters that were added after distribute()."""


@dataclass
class Outcomes:
    """Numbers of a worker's pushes, or of a server's rounds, by outcome."""

    accepted: int = 0
    stale: int = 0
    late: int = 0
    void: int = 0

    def count(self, outcome: str) -> None:
        """Counts one outcome. NEWEST, the outcome of a pull, is not counted."""
        self.accepted += outcome == ACCEPTED
        self.stale += outcome == STALE
        self.late += outcome == LATE
        self.void += outcome == VOID

    @property
    def dropped(self) -> int:
        return self.stale + self.late


@dataclass
class Counts(Outcomes):
    """A server's counts since it started or was restored.

    Late pushes are counted one by one, and all other pushes by round.
    """

    by_group: dict[int, int] = field(default_factory=dict)
    """The number of accepted rounds of each group."""


class Ledger:
    """The rounds of all groups on one server."""

    def __init__(self, rules: Rules, chunks: int) -> None:
        self.rules = rules
        self.version = 0
        self.counts = Counts()
        self.staleness = 0
        """The staleness of the newest round."""
        self.is_over = False
        """Whether the chief has finished its steps and is waiting for the other groups."""
        self._chunks = chunks
        self._groups: dict[int, Group] = {}

    def enter(self, group: int, size: int, generation: int) -> bool:
        """Adds a member, and returns whether it is the first of a new generation of its group.

        A new generation discards the rounds of the previous one.
        """
        if self.group(group).generation >= generation:
            return False
        self._groups[group] = Group(size, generation)
        return True

    def group(self, number: int) -> Group:
        """Returns the state of a group, or an empty state with generation -1 if no member has entered."""
        return self._groups.get(number) or Group(size=1, generation=-1)

    def begin(self, push: Push) -> Round | None:
        """Returns the round to which a pushed chunk is added, or None if the push is late or of another generation."""
        group = self.group(push.group)
        if group.generation != push.generation:
            return None
        number = self.round_for(push)
        if number is None:
            if group.late.get(push.rank, 0) < push.round:
                group.late[push.rank] = push.round
                self.counts.count(LATE)
            return None
        one = group.rounds.get(number)
        if one is None:
            chunks = self._chunks + len(group.added)
            one = group.rounds[number] = Round(number, base=push.base, chunks_left=chunks)
        if push.rank not in one.members:
            one.members.add(push.rank)
            one.base = min(one.base, push.base)
            one.voids += push.void
            self._close_if_full(group, one)
        return one

    def add(self, group: int, chunks: Iterable[int]) -> None:
        """Adds chunks of new parameters, which all members of the group also push from their next round on."""
        self._groups[group].added.update(chunks)

    def pushing(self, group: int) -> set[int]:
        """Returns the members of those rounds of a group that have incomplete chunks."""
        return {rank for one in list(self.group(group).rounds.values()) for rank in one.members}

    def added(self, group: int) -> set[int]:
        """Returns the chunks of parameters that a group added after distribute()."""
        return self.group(group).added

    def _close_if_full(self, group: Group, one: Round) -> None:
        if len(one.members) >= self.needed(group):
            one.closed = True
            group.closed = max(group.closed, one.number)

    def is_complete(self, one: Round, contributions: int) -> bool:
        """Returns whether a chunk of a round is complete with the given number of contributions."""
        return one.closed and contributions >= len(one.members)

    def round_for(self, push: Push) -> int | None:
        """Returns the round to which a push would be added now, or None if it would be dropped. Has no side effects."""
        group = self.group(push.group)
        if group.generation != push.generation:
            return None
        one = group.rounds.get(push.round)
        if one is None:
            return push.round if push.round > group.closed else None
        return push.round if push.rank in one.members or not one.closed else None

    def needed(self, group: Group) -> int:
        """Returns the number of members whose pushes close a round.

        It is the number of members minus the backup workers or, if smaller, the number of members that have not left.
        """
        return max(1, min(group.size - self.rules.backup_workers, group.size - len(group.left)))

    def decide(self, group: int, one: Round) -> str:
        """Returns the outcome of a round, which is decided when the first chunk is complete."""
        if not one.outcome:
            self.staleness = one.staleness = max(0, self.version - one.base)
            if one.voids == len(one.members):
                one.outcome = VOID
            elif one.staleness > self.rules.max_staleness:
                one.outcome = STALE
            else:
                one.outcome = ACCEPTED
                self.version += 1
                self.counts.by_group[group] = self.counts.by_group.get(group, 0) + 1
            self.counts.count(one.outcome)
            one.version = self.version
        return one.outcome

    def chunk_done(self, group: int, one: Round) -> None:
        """Records that one more chunk of a round is complete, and forgets the round after its last chunk."""
        one.chunks_left -= 1
        if not one.chunks_left:
            self._groups[group].rounds.pop(one.number, None)

    def leave(self, group: int, rank: int, generation: int) -> None:
        """Records that a member has left, and closes the rounds that were waiting only for that member."""
        state = self.group(group)
        if state.generation == generation:
            state.left.add(rank)
            for one in state.rounds.values():
                self._close_if_full(state, one)

    def goodbyes(self) -> dict[int, tuple[int, int, list[int]]]:
        """Returns (size, generation, ranks that have left) of each group, which a restarted server restores."""
        return {number: (one.size, one.generation, sorted(one.left)) for number, one in self._groups.items()}

    def set_goodbyes(self, goodbyes: dict[int, tuple[int, int, list[int]]]) -> None:
        for number, (size, generation, left) in goodbyes.items():
            self._groups[number] = Group(size, generation, left=set(left))

    @property
    def all_left(self) -> bool:
        """Whether all members of all groups have left."""
        return all(self.has_left(number) for number in range(self.rules.groups))

    def has_left(self, group: int) -> bool:
        state = self.group(group)
        return len(state.left) >= state.size

    @property
    def is_warm(self) -> bool:
        """Whether other groups may begin, because group 0 has completed its warm start or its training."""
        return self.counts.by_group.get(0, 0) >= self.rules.warm_start_steps or self.is_over or self.has_left(0)

    def closed_round(self, group: int) -> int:
        """Returns the number of a group's last closed round."""
        return self.group(group).closed
