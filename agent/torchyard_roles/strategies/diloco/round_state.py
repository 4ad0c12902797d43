"""The state of the rounds, which all worker groups share as one value in the join store.

Each change is a compare-and-set, which fails if another group has changed the value in the meantime. Therefore all
groups see the same sequence of states, and each state has a number, its *epoch*. A round is attempted by its members.
A round is *committed* when each member has received the whole average. If a member is lost before that, the attempt is
*abandoned*, and the round is attempted again without that member.
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
"""Prefix of the join store keys by which groups announce themselves."""
REDUCER = "diloco/reducer"
"""Prefix of the join store keys by which reducers announce themselves."""
STOPPED = "diloco/stopped"
"""Prefix of the join store keys of groups that have stopped gracefully. The value is the ID of the group's process."""
DONE = "diloco/done"
"""Prefix of the join store keys that count, for each epoch, the members that have received the average."""


class Announcement(NamedTuple):
    """A group's announcement of its first rank's process, and of the checkpoint from which the group resumes.

    A reducer announces its process only.
    """

    process: str
    """A random ID of the process, which differs after a restart."""
    name: str
    address: str
    port: int
    round: int = -1
    """The number of rounds in the restored checkpoint, or -1 if there is none."""
    lineage: str = ""
    """The ID of the training to which the restored checkpoint belongs."""

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
    """The group that members ask first for outer parameters and momentum. Groups in `keep` keep their own."""
    keep: tuple[int, ...] = ()
    """The groups that already have the current round's outer parameters and momentum, and keep them."""
    committed: int = 0
    """The last epoch whose attempt was committed."""
    postponed: int = 0
    """The last epoch that was abandoned because a member stopped. Other members step before the next attempt."""
    is_idle: bool = False
    """Whether all members have finished training and are waiting for the chief's group."""
    has_ended: bool = False
    finished: int = 0
    """The number of consecutive rounds, up to the latest, in which all members had finished training.
    Training ends after one such round for each fragment."""
    dropped: tuple[str, ...] = ()
    """The IDs of processes that were lost."""
    reducers: dict[int, Announcement] = field(default_factory=dict)
    """The reducers that average the members' pseudo-gradients. If there are none, each member averages a slice."""

    @property
    def owners(self) -> dict[int, Announcement]:
        """The processes that each average one slice, by the number of the reducer or group."""
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
        """Returns the state that follows an attempt in which members or reducers were lost."""
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
        """Returns the state that follows a committed attempt.

        Groups in `joining` and new `reducers` take part in the next round.

        Training ends when all members have finished, each fragment has been averaged afterwards, and the chief's group,
        which saves the result, is a member.
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
