"""The rounds of DiLoCo with parameter servers: which pseudo-gradients a round averages, and when the round closes.

A group pushes its pseudo-gradients together with its *base*, the round after which the group pulled the outer
parameters. A push is *in time* if no round has closed since the base, and otherwise *late*. The open round averages the
pseudo-gradients of all pushes that arrive while it is open, so every push counts exactly once. The round closes
`grace_s` after `quorum` groups (or all remaining groups, if there are fewer) have pushed in time or have finished
training. It closes earlier if no other group can push.

Each fragment of a model has rounds of its own. A group pushes its fragments in turn, or several at once.

This module contains only decisions, without threads, sockets or tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

CHIEF = 0


class Push(NamedTuple):
    """A group's pseudo-gradients that have reached all servers. A group pushes at most once for each base."""

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
        pushed: The base of each group's last push.
        pending: The pushes of the open round.
        is_fragment: Whether groups push other fragments too, each with its own rounds.
    """

    def __init__(
        self,
        groups: int,
        quorum: int = 0,
        grace_s: float = 0.0,
        round_: int = 0,
        pushed: Mapping[int, int] | None = None,
        pending: Sequence[Push] = (),
        *,
        is_fragment: bool = False,
    ) -> None:
        self.round = round_
        self.pushed = dict(pushed or {})
        self.pending = list(pending)
        self.has_ended = False
        """Whether all groups have finished and the last round is closed."""
        self._quorum = quorum or groups
        self._grace_s = grace_s
        self._is_fragment = is_fragment
        self._live = set(range(groups))
        """Groups that take part, including those that have not started yet."""
        self._expected = set(range(groups))
        """Groups that have not started yet."""
        self._waiting: set[int] = set()
        """Groups that are waiting for the end of the round, and push nothing until then."""
        self._finished: set[int] = set()
        self._postponed: set[int] = set()
        """Groups whose next push in time is refused once, because another group has stopped."""
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
        """Removes a lost group. Its push in the open round, if any, still counts."""
        for each in (self._live, self._expected, self._waiting, self._finished, self._postponed):
            each.discard(group)

    def give_up_expected(self) -> list[int]:
        """Stops waiting for the groups that have not started, and returns these groups."""
        missing = sorted(self._expected)
        for group in missing:
            self.lose(group)
        return missing

    def stop(self, group: int) -> set[int]:
        """Removes a group that stops gracefully. The other groups take one more step, after which they may stop too.

        The pushes of the other groups that are in time are withdrawn. The next push of a group that has not yet pushed
        in time is refused once.

        Returns:
            The groups whose push is withdrawn.
        """
        self.lose(group)
        self._postponed |= self._live - self._finished
        withdrawn = set()
        for push in [push for push in self.pending if push.base == self.round]:
            if push.group in self._live:
                self.pending.remove(push)
                self.pushed[push.group] = push.base - 1
                withdrawn.add(push.group)
        self.expect_again(withdrawn)
        return withdrawn

    def expect_again(self, groups: Iterable[int]) -> None:
        """Expects another push from groups whose last push was withdrawn or refused."""
        self._finished.difference_update(groups)
        self._postponed.difference_update(groups)

    def refuses(self, push: Push) -> bool:
        """Returns whether a push has to be postponed, because another group has stopped."""
        is_new = push.base > self.pushed.get(push.group, -1)
        return is_new and push.base >= self.round and push.group in self._postponed

    def push(self, push: Push, *, has_finished: bool) -> None:
        """Adds a push to the open round. A repetition of the same push has no effect.

        If the quorum does not need a late group, the group continues immediately from the newest outer parameters.
        Otherwise the group waits until the round has closed, and starts the next round together with the others. With
        several fragments, it waits only if another group is already waiting for the end of this round, because the
        other groups may still be pushing another fragment.
        """
        group = push.group
        if has_finished:
            self._finished.add(group)
        if push.base <= self.pushed.get(group, -1):
            return
        is_late = push.base < self.round
        self.pending.append(push)
        self.pushed[group] = push.base
        if is_late and not has_finished and (self.in_time or not self._is_fragment):
            others = (self._ready() | self._outstanding()) - {group}
            if len(others) < self._quorum:
                self._waiting.add(group)

    def must_wait(self, group: int, base: int) -> bool:
        """Returns whether a group whose last push had this base must wait for the end of the round."""
        if self.has_ended:
            return False
        return group in self._finished or group in self._waiting or base == self.round

    def is_due(self, now: float) -> bool:
        """Returns whether the open round must be closed now."""
        if self.has_ended:
            return False
        ready, awaited = self._ready(), self._outstanding()
        if not self.in_time:
            self._quorum_at = None
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
        """Closes the round, and returns its pushes in the order in which their pseudo-gradients are summed."""
        used = sorted(self.pending)
        self.pending = []
        self.round += 1
        self._waiting.clear()
        self._quorum_at = None
        self.end_if_finished()
        return used

    def end_if_finished(self) -> None:
        """Ends training if all groups, including the chief's, have finished and no push is pending."""
        self.has_ended = self.has_ended or (not self.pending and self._all_have_finished())

    def release_waiting(self, groups: Iterable[int] | None = None) -> None:
        """Lets some or all groups continue before the end of the round."""
        if groups is None:
            self._waiting.clear()
        else:
            self._waiting.difference_update(groups)

    @property
    def blocked(self) -> set[int]:
        """The groups that push nothing before the end of the round."""
        return self._waiting | self._finished | self.in_time

    @property
    def groups(self) -> set[int]:
        """The groups that take part, including those that have not yet started."""
        return self._live

    @property
    def has_quorum(self) -> bool:
        """Whether a grace period has begun."""
        return self._quorum_at is not None

    def _all_have_finished(self) -> bool:
        return self._live <= self._finished and CHIEF in self._finished

    @property
    def in_time(self) -> set[int]:
        """The groups whose push in the open round is in time."""
        return {push.group for push in self.pending if push.base == self.round}

    def _ready(self) -> set[int]:
        """Returns the groups that count towards the quorum: they have pushed in time or have finished training."""
        return self.in_time | self._finished

    def _outstanding(self) -> set[int]:
        """Returns the groups that may still push in the open round."""
        return self._live - self._waiting - self._finished - self.in_time


class FragmentRounds:
    """The rounds of all fragments. A group pushes each fragment separately, but joins, finishes and is lost in all.

    A group that is waiting for the end of a fragment's round pushes no other fragment. Groups that were late may
    therefore wait for different fragments, and thus for each other. In this case, the round with the most pushes in
    time is closed without the others.

    Args:
        fragments: The rounds of each fragment.
    """

    def __init__(self, fragments: Sequence[Rounds]) -> None:
        self.fragments = list(fragments)
        self._returning: set[int] = set()
        """Returning groups, which wait until a round of any fragment closes before they take part."""

    @property
    def rounds(self) -> list[int]:
        """The number of closed rounds of each fragment."""
        return [each.round for each in self.fragments]

    @property
    def live(self) -> int:
        return self.fragments[0].live

    @property
    def has_ended(self) -> bool:
        """Whether all groups have finished and the last rounds are closed."""
        return all(each.has_ended for each in self.fragments)

    @property
    def waits_for_chief(self) -> bool:
        return all(each.waits_for_chief for each in self.fragments)

    def last_pushed(self, group: int) -> list[int]:
        """Returns, for each fragment, the base of a group's last push."""
        return [each.pushed.get(group, -1) for each in self.fragments]

    def join(self, group: int) -> None:
        for each in self.fragments:
            each.join(group)
        if self.must_wait(group, {}):
            self._returning.add(group)

    def lose(self, group: int) -> None:
        self._returning.discard(group)
        for each in self.fragments:
            each.lose(group)

    def give_up_expected(self) -> list[int]:
        missing = self.fragments[0].give_up_expected()
        for each in self.fragments[1:]:
            each.give_up_expected()
        return missing

    def stop(self, group: int) -> None:
        self._returning.discard(group)
        withdrawn = set().union(*(each.stop(group) for each in self.fragments))
        for each in self.fragments:
            each.expect_again(withdrawn)

    def push(self, pushes: Mapping[int, Push], *, has_finished: bool) -> bool:
        """Adds a group's pushes of some fragments. Returns False if these pushes must be postponed."""
        if any(self.fragments[fragment].refuses(push) for fragment, push in pushes.items()):
            groups = {push.group for push in pushes.values()}
            for each in self.fragments:
                each.expect_again(groups)
            return False
        for fragment, push in pushes.items():
            self.fragments[fragment].push(push, has_finished=has_finished)
        return True

    def must_wait(self, group: int, bases: Mapping[int, int]) -> bool:
        """Returns whether a group has to wait before it continues.

        Args:
            bases: The base of each fragment that the group pushed, or {} for a group that joins.
        """
        bases = bases or dict.fromkeys(range(len(self.fragments)), -1)
        return any(self.fragments[fragment].must_wait(group, base) for fragment, base in bases.items())

    def due(self, now: float) -> list[int]:
        """Returns the fragments whose open rounds must be closed now."""
        found = [number for number, each in enumerate(self.fragments) if each.is_due(now)]
        if found or any(each.has_quorum for each in self.fragments):
            return found
        groups = self.fragments[0].groups
        blocked = set().union(*(each.blocked for each in self.fragments))
        if groups <= blocked and not all(each.has_ended for each in self.fragments):
            most = max(self.fragments, key=lambda each: len(each.in_time))
            if most.in_time:
                return [self.fragments.index(most)]
            for each in self.fragments:
                each.release_waiting()
        return []

    def due_in(self, now: float) -> float | None:
        """Returns the shortest remaining grace period in seconds, or None if no grace period has begun."""
        return min((rest for each in self.fragments if (rest := each.due_in(now)) is not None), default=None)

    def close(self, fragment: int) -> list[Push]:
        """Closes the open round of a fragment, and returns its pushes in the order of summation."""
        used = self.fragments[fragment].close()
        for each in self.fragments:
            each.release_waiting(self._returning)
        self._returning.clear()
        return used

    def end_if_finished(self) -> None:
        for each in self.fragments:
            each.end_if_finished()
