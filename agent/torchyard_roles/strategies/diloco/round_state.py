"""The state of the rounds that all worker groups share: one value in the join store.

Each change replaces the value only if it is still the value from which the change was computed. So there is one
sequence of states for all groups, and each state has a number, its *epoch*. A round is attempted by its members; it is
*committed* when each of them has received the whole average, or *abandoned* when a member is lost, and attempted again
without it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.diloco.slice_exchange import Owner

KEY = "diloco/state"
HERE = "diloco/here"
"""Prefix of the keys by which groups announce themselves."""
REDUCER = "diloco/reducer"
"""Prefix of the keys by which reducers announce themselves."""
STOPPED = "diloco/stopped"
"""Prefix of the keys of groups that have stopped gracefully. The value is the ID of the process."""
DONE = "diloco/done"
"""Prefix of the counters of members that have received the average of an epoch."""


class Announcement(NamedTuple):
    """The process of a group's first rank, and the checkpoint that it has restored; or the process of a reducer."""

    process: str
    """A random ID of the process, which differs after a restart."""
    name: str
    address: str
    port: int
    round: int = -1
    """The number of rounds in the checkpoint, or -1 without a checkpoint."""
    lineage: str = ""
    """The ID of the training that the checkpoint belongs to."""

    @property
    def peer(self) -> Peer:
        return Peer(self.name, self.address, self.port)

    @property
    def owner(self) -> Owner:
        return Owner(self.peer, self.process)

    def encoded(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decoded(cls, text: bytes) -> Announcement:
        return cls(*json.loads(text))


@dataclass(frozen=True)
class RoundState:
    """The members of the current round, and the outcome of the last attempt."""

    epoch: int
    round: int
    """The number of committed rounds."""
    lineage: str
    members: dict[int, Announcement]
    source: int
    """The group from which the first members take θ and m, unless they are in `keep`."""
    keep: tuple[int, ...] = ()
    """Groups that keep their own θ and m, which are those of the current round."""
    committed: int = 0
    """The epoch whose attempt was committed last."""
    postponed: int = 0
    """An epoch that was abandoned because a member has stopped; its members take a step before the next attempt."""
    is_idle: bool = False
    """Whether all members have finished and wait for the chief's group."""
    has_ended: bool = False
    finished: int = 0
    """The number of consecutive rounds, up to the last one, in which all members had finished. At the end there is one
    for each fragment."""
    dropped: tuple[str, ...] = ()
    """The IDs of processes that were lost."""
    reducers: dict[int, Announcement] = field(default_factory=dict)
    """The reducers that average the members' differences. Without any, the members do so themselves."""

    @property
    def owners(self) -> dict[int, Announcement]:
        """The processes that average a slice each, by the number of the reducer or group."""
        return self.reducers or self.members

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, text: bytes) -> RoundState:
        fields = json.loads(text)
        for key in ("members", "reducers"):
            fields[key] = {int(number): Announcement(*each) for number, each in fields[key].items()}
        fields["keep"], fields["dropped"] = tuple(fields["keep"]), tuple(fields["dropped"])
        return cls(**fields)

    def without(self, processes: Collection[str], *, is_postponed: bool) -> RoundState:
        """Returns the state after an attempt in which members or reducers were lost."""
        return replace(
            self,
            epoch=self.epoch + 1,
            members={group: each for group, each in self.members.items() if each.process not in processes},
            reducers={number: each for number, each in self.reducers.items() if each.process not in processes},
            dropped=(*self.dropped, *processes),
            postponed=self.epoch if is_postponed else self.postponed,
        )

    def after_round(
        self,
        joining: dict[int, Announcement],
        *,
        has_finished: bool,
        fragments: int = 1,
        reducers: Mapping[int, Announcement] | None = None,
    ) -> RoundState:
        """Returns the state after a committed attempt. Joining groups and reducers take part in the next round.

        Training ends when all members have finished and each fragment has been averaged since, but not without the
        chief's group, which saves the result.
        """
        finished = self.finished + 1 if has_finished and not joining else 0
        is_last = finished >= fragments
        return replace(
            self,
            epoch=self.epoch + 1,
            round=self.round + 1,
            members=self.members | joining,
            reducers={**self.reducers, **(reducers or {})},
            keep=(),
            committed=self.epoch,
            finished=finished,
            has_ended=is_last and 0 in self.members,
            is_idle=is_last and 0 not in self.members,
        )
