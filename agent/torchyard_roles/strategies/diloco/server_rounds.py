"""The rounds of DiLoCo with parameter servers: which groups' differences a round averages, and when it closes.

A group pushes its parameter difference together with its *base*, the round after which it pulled the outer parameters.
A difference is *in time* if no round has closed since the base, and otherwise *late*. The open round averages all
differences that are pushed while it is open, so every difference counts exactly once. The round closes `grace_s` after
`quorum` groups (or all remaining groups, if there are fewer) have pushed in time or have finished training. It closes
earlier if no further group can push.

This module contains only decisions, without threads, sockets or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

CHIEF = 0


class Push(NamedTuple):
    """A group's difference that has been pushed to all servers. A group pushes at most one difference for each base."""

    group: int
    base: int
    weight: float

    @property
    def key(self) -> tuple[int, int]:
        return self.group, self.base


class Rounds:
    """The state of the open round. The caller must hold the server's lock.

    Args:
        quorum: The number of groups that a round waits for, or 0 for all groups.
        round_: The number of closed rounds.
        pushed: The base of the last difference that each group has pushed.
        pending: The differences of the open round.
    """

    def __init__(
        self,
        groups: int,
        quorum: int = 0,
        grace_s: float = 0.0,
        round_: int = 0,
        pushed: Mapping[int, int] | None = None,
        pending: Sequence[Push] = (),
    ) -> None:
        self.round = round_
        self.pushed = dict(pushed or {})
        self.pending = list(pending)
        self.has_ended = False
        """Whether all groups have finished and the last round is closed."""
        self._quorum = quorum or groups
        self._grace_s = grace_s
        self._live = set(range(groups))
        """Groups that take part, including those that have not started yet."""
        self._expected = set(range(groups))
        """Groups that have not started yet."""
        self._waiting: set[int] = set()
        """Groups that wait for the end of the round, and push nothing before."""
        self._finished: set[int] = set()
        self._postponed: set[int] = set()
        """Groups whose next difference in time is refused once, since another group has stopped."""
        self._quorum_at: float | None = None

    @property
    def waits_for_chief(self) -> bool:
        """Whether all groups have finished training except the chief's group, which is lost."""
        is_over = bool(self._live) and self._live <= self._finished
        return is_over and CHIEF not in self._live and not self.has_ended

    @property
    def live(self) -> int:
        """The number of groups that have started and are not lost."""
        return len(self._live - self._expected)

    def join(self, group: int) -> None:
        """Adds a group that has started. A returning group waits until the open round has closed."""
        self._finished.discard(group)
        self._postponed.discard(group)
        self._live.add(group)
        if group in self._expected:
            self._expected.remove(group)
        else:
            self._waiting.add(group)

    def lose(self, group: int) -> None:
        """Removes a lost group. A difference that it has pushed in the open round still counts."""
        for each in (self._live, self._expected, self._waiting, self._finished, self._postponed):
            each.discard(group)

    def give_up_expected(self) -> list[int]:
        """Stops waiting for the groups that have not started, and returns these groups."""
        missing = sorted(self._expected)
        for group in missing:
            self.lose(group)
        return missing

    def stop(self, group: int) -> None:
        """Removes a group that stops gracefully. The other groups take one more step, after which they may stop too.

        The differences that the others have pushed in time are withdrawn. A group that has not pushed yet is refused
        once.
        """
        self.lose(group)
        self._postponed |= self._live - self._finished
        for push in [push for push in self.pending if push.base == self.round]:
            if push.group in self._live:
                self.pending.remove(push)
                self.pushed[push.group] = push.base - 1
                self._finished.discard(push.group)
                self._postponed.discard(push.group)

    def push(self, push: Push, *, has_finished: bool) -> bool:
        """Adds a difference to the open round, and returns whether it was accepted. Repeated calls have no effect.

        A late group continues immediately from the newest outer parameters if the quorum does not need it. Otherwise it
        waits until the round has closed, and then starts the next round together with the others.
        """
        group = push.group
        if push.base <= self.pushed.get(group, -1):
            return True
        is_late = push.base < self.round
        if group in self._postponed and not is_late:
            self._postponed.remove(group)
            return False
        self.pending.append(push)
        self.pushed[group] = push.base
        if has_finished:
            self._finished.add(group)
        elif is_late and len((self._ready() | self._outstanding()) - {group}) < self._quorum:
            self._waiting.add(group)
        return True

    def must_wait(self, group: int, base: int) -> bool:
        """Returns whether a group that has pushed must wait until it may continue."""
        if self.has_ended:
            return False
        return group in self._finished or group in self._waiting or base == self.round

    def is_due(self, now: float) -> bool:
        """Returns whether the open round must be closed now."""
        if self.has_ended:
            return False
        ready, awaited = self._ready(), self._outstanding()
        if not self._in_time():
            if not awaited:
                self._waiting.clear()  # No other group can push in this round, so late groups may continue.
            return bool(self.pending) and self._all_have_finished()
        if len(ready) < min(self._quorum, len(ready | awaited)):
            self._quorum_at = None
            return False
        if self._quorum_at is None:
            self._quorum_at = now
        return not awaited or now >= self._quorum_at + self._grace_s

    def due_in(self, now: float) -> float | None:
        """Returns the remaining grace period in seconds, or None if the quorum has not been reached."""
        return None if self._quorum_at is None else max(0.0, self._quorum_at + self._grace_s - now)

    def close(self) -> list[Push]:
        """Closes the round, and returns the pushed differences in the order in which they are summed."""
        used = sorted(self.pending)
        self.pending = []
        self.round += 1
        self._waiting.clear()
        self._quorum_at = None
        self.end_if_finished()
        return used

    def end_if_finished(self) -> None:
        """Ends training if all groups, including the chief's, have finished and no difference is pending."""
        self.has_ended = self.has_ended or (not self.pending and self._all_have_finished())

    def _all_have_finished(self) -> bool:
        return self._live <= self._finished and CHIEF in self._finished

    def _in_time(self) -> set[int]:
        return {push.group for push in self.pending if push.base == self.round}

    def _ready(self) -> set[int]:
        """Returns the groups that count towards the quorum: they have pushed in time or have finished training."""
        return self._in_time() | self._finished

    def _outstanding(self) -> set[int]:
        """Returns the groups that may still push in the open round."""
        return self._live - self._waiting - self._finished - self._in_time()
