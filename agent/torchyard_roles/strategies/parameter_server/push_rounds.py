"""Which pushes belong together, which count, and which come too late. Pure bookkeeping, without a tensor.

A *round* is one push of every member of a worker group: the group's step, as one server sees it. A server closes a
round's set when as many members as it needs have delivered their first chunk: all of them, or all but the backup
workers, of those that have not said goodbye. Whoever comes later is told the newest parameters and counted; its
gradients count nowhere.

    version      of a server: how many rounds it has accepted, of all groups
    base         the version that a push's gradients were computed from, as the member was told it
    staleness    version − base, when the round is complete; above the bound the round is dropped
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

ACCEPTED = "accepted"
STALE = "stale"
"""Older than the bound: dropped."""
LATE = "late"
"""Not among the first of its round: dropped."""
VOID = "void"
"""None of its round's members had finite gradients: skipped."""
NEWEST = "newest"
"""The answer to a pull, which pushes nothing."""


class Rules(NamedTuple):
    """What the strategy's options say about pushes."""

    groups: int = 1
    max_staleness: int = 16
    """Versions."""
    backup_workers: int = 0
    warm_start_steps: int = 0
    in_rank_order: bool = True


class Push(NamedTuple):
    """One chunk of one member's push, as its header says."""

    group: int
    rank: int
    """Within the group."""
    generation: int
    round: int
    chunk: int
    base: int
    void: bool = False
    """No gradient, on purpose: it was not finite, or AMP's scaler skips the step."""
    absent: frozenset[int] = frozenset()
    """Pieces of the chunk without a gradient on this member."""
    wants: bool = True
    """Whether the new parameters are to be sent back."""
    bare: bool = False
    """All pieces absent: nothing follows the header."""
    hold: bool = False
    """The sum is not stepped with before its factor is known (clipping by the norm of all gradients)."""
    clip: float | None = None
    """The elements of the mean gradient are brought to between -`clip` and `clip`, if it is given."""
    changed: int | None = None
    """The checksum of the chunk on this member, where its script has changed it since the last step."""


@dataclass
class Round:
    """One round on one server."""

    number: int
    members: set[int] = field(default_factory=set)
    """Ranks whose gradients count."""
    base: int = 0
    """The oldest of theirs."""
    voids: int = 0
    closed: bool = False
    """Whether its set is complete: nobody else's gradients will count."""
    chunks_left: int = 0
    outcome: str = ""
    """Empty until the first chunk is complete."""
    version: int = 0
    """What its members are told as their next base."""
    staleness: int = 0


@dataclass
class Group:
    """One worker group on one server, in its present generation."""

    size: int
    generation: int = 0
    rounds: dict[int, Round] = field(default_factory=dict)
    """Those not yet complete in all chunks."""
    closed: int = 0
    """The highest round whose set is closed."""
    late: dict[int, int] = field(default_factory=dict)
    """By rank, the last round that it was too late for."""
    left: set[int] = field(default_factory=set)
    """Ranks that have said goodbye."""
    added: set[int] = field(default_factory=set)
    """Chunks of parameters that its optimizer has been given later."""


@dataclass
class Outcomes:
    """How often each has come: of a worker's pushes, or of a server's rounds."""

    accepted: int = 0
    stale: int = 0
    late: int = 0
    void: int = 0

    def count(self, outcome: str) -> None:
        """One more; what is none of the four (NEWEST) counts as nothing."""
        self.accepted += outcome == ACCEPTED
        self.stale += outcome == STALE
        self.late += outcome == LATE
        self.void += outcome == VOID

    @property
    def dropped(self) -> int:
        return self.stale + self.late


@dataclass
class Counts(Outcomes):
    """What a server has seen since it began or was restored, in rounds (late ones: in pushes)."""

    by_group: dict[int, int] = field(default_factory=dict)
    """Accepted ones."""


class Ledger:
    """All groups of one server."""

    def __init__(self, rules: Rules, chunks: int) -> None:
        self.rules = rules
        self.version = 0
        self.counts = Counts()
        self.staleness = 0
        """Of the newest round."""
        self.is_over = False
        """Whether the chief has done all its steps, and only waits for the other groups."""
        self._chunks = chunks
        self._groups: dict[int, Group] = {}

    def enter(self, group: int, size: int, generation: int) -> bool:
        """A member has come. Whether it is the first of a newer generation, which replaces the older one's rounds."""
        known = self._groups.get(group)
        if known is not None and known.generation >= generation:
            return False
        self._groups[group] = Group(size, generation)
        return True

    def group(self, number: int) -> Group | None:
        return self._groups.get(number)

    def begin(self, push: Push) -> Round | None:
        """The round that this chunk counts in; None where it comes too late, or from another generation."""
        group = self._groups.get(push.group)
        if group is None or group.generation != push.generation:
            return None
        number = self.round_for(push)
        if number is None:
            self._note_late(group, push)
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
        """A member of the group pushes these as well from its next round on, and all others do."""
        self._groups[group].added.update(chunks)

    def pushing(self, group: int) -> set[int]:
        """Members that have begun to push a round which is not complete in all chunks."""
        known = self._groups.get(group)
        rounds = list(known.rounds.values()) if known is not None else []
        return {rank for one in rounds for rank in one.members}

    def added(self, group: int) -> set[int]:
        """What its members push beside the first chunks."""
        known = self._groups.get(group)
        return known.added if known is not None else set()

    def _close_if_full(self, group: Group, one: Round) -> None:
        if len(one.members) >= self.needed(group):
            one.closed = True
            group.closed = max(group.closed, one.number)

    def is_complete(self, one: Round, contributions: int) -> bool:
        """Whether so many contributions to a chunk are all there will be."""
        return one.closed and contributions >= len(one.members)

    def round_for(self, push: Push) -> int | None:
        """The push's round if its gradients would count now, without counting them: else its bytes need not be kept."""
        group = self._groups.get(push.group)
        if group is None or group.generation != push.generation:
            return None
        one = group.rounds.get(push.round)
        if one is None:
            return push.round if push.round > group.closed else None
        return push.round if push.rank in one.members or not one.closed else None

    def needed(self, group: Group) -> int:
        """How many make a round: all but the backup workers, and of those that are still here."""
        return max(1, min(group.size - self.rules.backup_workers, group.size - len(group.left)))

    def decide(self, group: int, one: Round) -> str:
        """What becomes of a round whose first chunk is complete; the same for all its chunks."""
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
        """One of the round's chunks is complete."""
        one.chunks_left -= 1
        if not one.chunks_left:
            self._groups[group].rounds.pop(one.number, None)

    def leave(self, group: int, rank: int, generation: int) -> None:
        """A member says goodbye: rounds that only waited for it are full without it."""
        known = self._groups.get(group)
        if known is not None and known.generation == generation:
            known.left.add(rank)
            for one in known.rounds.values():
                self._close_if_full(known, one)

    def goodbyes(self) -> dict[int, tuple[int, int, list[int]]]:
        """By group: size, generation, and the ranks that have left; for set_goodbyes() after a server's death."""
        return {number: (one.size, one.generation, sorted(one.left)) for number, one in self._groups.items()}

    def set_goodbyes(self, goodbyes: dict[int, tuple[int, int, list[int]]]) -> None:
        for number, (size, generation, left) in goodbyes.items():
            self._groups[number] = Group(size, generation, left=set(left))

    @property
    def all_left(self) -> bool:
        """Whether every member of every group has said goodbye."""
        return all(self.has_left(number) for number in range(self.rules.groups))

    def has_left(self, group: int) -> bool:
        known = self._groups.get(group)
        return known is not None and len(known.left) >= known.size

    @property
    def is_warm(self) -> bool:
        """Whether groups other than 0 may begin: group 0 has done its steps, or is at its end."""
        return self.counts.by_group.get(0, 0) >= self.rules.warm_start_steps or self.is_over or self.has_left(0)

    def closed_round(self, group: int) -> int:
        """After which number the next round of a member is to be counted."""
        known = self._groups.get(group)
        return known.closed if known is not None else 0

    def _note_late(self, group: Group, push: Push) -> None:
        if group.late.get(push.rank, 0) < push.round:
            group.late[push.rank] = push.round
            self.counts.count(LATE)
