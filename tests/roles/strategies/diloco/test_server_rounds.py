"""Tests of when DiLoCo's servers end a round, and of which differences they average."""

from __future__ import annotations

import random

from torchyard_roles.strategies.diloco.server_rounds import Push, Rounds


def begun(groups: int, quorum: int = 0, grace_s: float = 0.0) -> Rounds:
    rounds = Rounds(groups, quorum, grace_s)
    for group in range(groups):
        rounds.join(group)
    return rounds


def push(rounds: Rounds, group: int, base: int, *, has_finished: bool = False) -> bool:
    return rounds.push(Push(group, base, 1.0), has_finished=has_finished)


def test_without_a_quorum_a_round_waits_for_all_groups() -> None:
    rounds = begun(3)
    push(rounds, 0, 0)
    push(rounds, 2, 0)
    assert not rounds.is_due(1000.0)
    push(rounds, 1, 0)
    assert rounds.is_due(1000.0)
    assert [each.group for each in rounds.close()] == [0, 1, 2]
    assert rounds.round == 1


def test_the_grace_period_begins_with_the_quorum() -> None:
    rounds = begun(4, quorum=2, grace_s=5.0)
    push(rounds, 0, 0)
    assert not rounds.is_due(10.0)
    push(rounds, 1, 0)
    assert not rounds.is_due(20.0)
    assert rounds.due_in(22.0) == 3.0
    push(rounds, 2, 0)
    assert not rounds.is_due(24.9)
    assert rounds.is_due(25.0)
    assert len(rounds.close()) == 3
    assert rounds.due_in(25.0) is None


def test_lost_groups_lower_the_quorum_and_their_differences_count() -> None:
    rounds = begun(4, quorum=3)
    push(rounds, 0, 0)
    push(rounds, 1, 0)
    rounds.lose(1)
    assert not rounds.is_due(0.0)
    rounds.lose(2)
    rounds.lose(3)
    assert rounds.is_due(0.0)
    assert [each.group for each in rounds.close()] == [0, 1]


def test_a_late_group_waits_only_if_the_quorum_needs_it() -> None:
    rounds = begun(4, quorum=3)
    for group in range(3):
        push(rounds, group, 0)
    assert rounds.is_due(0.0)
    rounds.close()
    push(rounds, 3, 0)
    assert not rounds.must_wait(3, 0)
    rounds.lose(2)
    push(rounds, 0, 1)
    push(rounds, 1, 1)
    assert not rounds.is_due(0.0), "group 3 may push in time"
    push(rounds, 3, 1)
    assert rounds.is_due(0.0)
    assert [each.key for each in rounds.close()] == [(0, 1), (1, 1), (3, 0), (3, 1)]
    rounds.lose(1)
    push(rounds, 0, 2)
    push(rounds, 3, 1)  # A repeated push changes nothing.
    assert not rounds.is_due(0.0)


def test_a_group_that_returns_waits_for_the_end_of_the_round_unless_no_other_trains() -> None:
    rounds = begun(2)
    rounds.lose(1)
    rounds.join(1)
    assert rounds.must_wait(1, -1)
    assert not rounds.is_due(0.0)
    push(rounds, 0, 0)
    assert rounds.is_due(0.0), "it does not hold up the round"
    rounds.close()
    assert not rounds.must_wait(1, -1)
    rounds.lose(0)
    rounds.lose(1)
    rounds.join(1)
    rounds.is_due(0.0)
    assert not rounds.must_wait(1, -1)


def test_training_waits_for_the_chiefs_group() -> None:
    rounds = begun(2)
    rounds.lose(0)
    push(rounds, 1, 0, has_finished=True)
    assert rounds.is_due(0.0)
    rounds.close()
    assert not rounds.has_ended
    assert rounds.waits_for_chief
    assert rounds.must_wait(1, 0)
    rounds.join(0)
    rounds.is_due(0.0)
    assert not rounds.must_wait(0, -1)
    push(rounds, 0, 1, has_finished=True)
    assert rounds.is_due(0.0)
    rounds.close()
    assert rounds.has_ended
    assert not rounds.must_wait(1, 0)


def test_a_stop_withdraws_the_open_round_and_postpones_each_other_group_once() -> None:
    rounds = begun(3)
    push(rounds, 0, 0)
    rounds.stop(2)
    assert rounds.pending == []
    assert not push(rounds, 1, 0)
    assert push(rounds, 1, 0)
    assert push(rounds, 0, 0)
    assert rounds.is_due(0.0)


def test_in_random_sequences_every_difference_counts_exactly_once_and_no_group_waits_for_ever() -> None:
    for seed in range(200):
        roll = random.Random(seed)
        count = roll.randint(1, 5)
        rounds = begun(count, quorum=roll.randint(0, count))
        bases: dict[int, int | None] = dict.fromkeys(range(count), 0)  # None means that the group is lost.
        blocked: dict[int, int] = {}
        pushed: list[tuple[int, int]] = []
        used: list[tuple[int, int]] = []
        for _ in range(150):
            group = roll.randrange(count)
            base = bases[group]
            if base is None:
                rounds.join(group)
                bases[group], blocked[group] = -1, -1
            elif group not in blocked and roll.random() < 0.1:
                rounds.lose(group)
                bases[group] = None
            elif group not in blocked:
                assert push(rounds, group, base)
                pushed.append((group, base))
                blocked[group] = base
            while rounds.is_due(0.0):
                used += [each.key for each in rounds.close()]
            for each, waits_with in list(blocked.items()):
                if not rounds.must_wait(each, waits_with):
                    del blocked[each]
                    bases[each] = rounds.round
            assert any(each not in blocked for each in range(count)), (seed, rounds.__dict__)
        assert sorted([*used, *(each.key for each in rounds.pending)]) == sorted(pushed)
        assert len(set(pushed)) == len(pushed)
