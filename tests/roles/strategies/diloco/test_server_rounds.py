"""Tests of when DiLoCo's servers end a round, and of which differences they average."""

from __future__ import annotations

import random

import pytest

from torchyard_roles.strategies.diloco.server_rounds import FragmentRounds, Push, Rounds


def begun(groups: int, quorum: int = 0, grace_s: float = 0.0) -> Rounds:
    rounds = Rounds(groups, quorum, grace_s)
    for group in range(groups):
        rounds.join(group)
    return rounds


def divided(fragments: int, groups: int, quorum: int = 0, grace_s: float = 0.0) -> FragmentRounds:
    is_fragment = fragments > 1
    rounds = FragmentRounds([Rounds(groups, quorum, grace_s, is_fragment=is_fragment) for _ in range(fragments)])
    for group in range(groups):
        rounds.join(group)
    return rounds


def push(rounds: Rounds, group: int, base: int, *, has_finished: bool = False) -> None:
    rounds.push(Push(group, base, 1.0), has_finished=has_finished)


def push_fragment(rounds: FragmentRounds, group: int, fragment: int, base: int) -> bool:
    return rounds.push({fragment: Push(group, base, 1.0)}, has_finished=False)


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
    rounds = divided(2, 3)
    push_fragment(rounds, 0, 0, 0)
    rounds.stop(2)
    assert rounds.fragments[0].pending == []
    assert not push_fragment(rounds, 1, 0, 0)
    assert push_fragment(rounds, 1, 0, 0)
    assert push_fragment(rounds, 0, 0, 0)
    assert rounds.due(0.0) == [0]
    rounds.close(0)
    assert push_fragment(rounds, 0, 1, 0)
    assert push_fragment(rounds, 1, 1, 0), "no group is postponed once more for another fragment"


def test_a_late_difference_counts_in_the_next_round_of_its_fragment() -> None:
    rounds = divided(2, 3, quorum=2)
    for fragment in (0, 1):
        for group in (0, 1):
            push_fragment(rounds, group, fragment, 0)
        assert rounds.due(0.0) == [fragment]
        rounds.close(fragment)
    push_fragment(rounds, 2, 0, 0)
    assert not rounds.must_wait(2, {0: 0})
    assert rounds.due(0.0) == []
    for group in (0, 1):
        push_fragment(rounds, group, 0, 1)
    assert rounds.due(0.0) == [0]
    assert [each.key for each in rounds.close(0)] == [(0, 1), (1, 1), (2, 0)]
    assert rounds.rounds == [2, 1]


def test_groups_that_wait_for_different_fragments_and_so_for_each_other_continue() -> None:
    rounds = divided(2, 3)
    rounds.fragments[
        1
    ].round = 1  # The third group was late: it is at the second fragment, and the others at the first.
    push_fragment(rounds, 2, 1, 1)
    assert rounds.due(0.0) == []
    push_fragment(rounds, 0, 0, 0)
    assert rounds.due(0.0) == []
    push_fragment(rounds, 1, 0, 0)
    assert rounds.due(0.0) == [0], "the third group pushes nothing before a round is closed"
    rounds.close(0)
    assert rounds.due(0.0) == [], "the others may push the second fragment"
    push_fragment(rounds, 0, 1, 1)
    push_fragment(rounds, 1, 1, 1)
    assert rounds.due(0.0) == [1]
    assert [each.group for each in rounds.close(1)] == [0, 1, 2]


def test_a_group_that_returns_waits_for_the_end_of_the_next_round_of_any_fragment() -> None:
    rounds = divided(2, 2)
    rounds.lose(1)
    rounds.join(1)
    assert rounds.must_wait(1, {})
    push_fragment(rounds, 0, 0, 0)
    assert rounds.due(0.0) == [0]
    rounds.close(0)
    assert not rounds.must_wait(1, {})
    push_fragment(rounds, 0, 1, 0)
    assert rounds.due(0.0) == [], "it takes part in the round of the other fragment"


def test_training_ends_when_all_fragments_of_all_groups_are_averaged() -> None:
    rounds = divided(2, 2)
    rounds.push({0: Push(1, 0, 1.0), 1: Push(1, 0, 1.0)}, has_finished=True)
    assert rounds.due(0.0) == []
    assert rounds.must_wait(1, {0: 0, 1: 0})
    push_fragment(rounds, 0, 0, 0)
    assert rounds.due(0.0) == [0]
    rounds.close(0)
    assert rounds.must_wait(1, {0: 0, 1: 0}), "it has finished, but the chief's group trains"
    rounds.push({0: Push(0, 1, 1.0), 1: Push(0, 0, 1.0)}, has_finished=True)
    assert rounds.due(0.0) == [0, 1]
    for fragment in (0, 1):
        assert not rounds.has_ended
        rounds.close(fragment)
    assert rounds.has_ended
    assert not rounds.must_wait(1, {0: 0, 1: 0})


@pytest.mark.parametrize("fragments", [1, 3])
def test_in_random_sequences_every_difference_counts_exactly_once_and_no_group_waits_for_ever(fragments: int) -> None:
    for seed in range(200):
        roll = random.Random(seed)
        count = roll.randint(1, 5)
        rounds = divided(fragments, count, quorum=roll.randint(0, count))
        bases: list[list[int] | None] = [[0] * fragments for _ in range(count)]  # None means that the group is lost.
        due = [0] * count
        blocked: dict[int, dict[int, int]] = {}
        pushed: list[tuple[int, int, int]] = []
        used: list[tuple[int, int, int]] = []
        for _ in range(150):
            group = roll.randrange(count)
            own, fragment = bases[group], due[group]
            if own is None:
                rounds.join(group)
                bases[group], blocked[group] = list(rounds.rounds), {}
            elif group not in blocked and roll.random() < 0.1:
                rounds.lose(group)
                bases[group] = None
            elif group not in blocked:
                assert push_fragment(rounds, group, fragment, own[fragment])
                pushed.append((fragment, group, own[fragment]))
                blocked[group] = {fragment: own[fragment]}
            while found := rounds.due(0.0):
                for each in found:
                    used += [(each, *push.key) for push in rounds.close(each)]
            for each, waits_with in list(blocked.items()):
                if not rounds.must_wait(each, waits_with):
                    del blocked[each]
                    own = bases[each]
                    assert own is not None
                    if waits_with:
                        own[due[each]] = rounds.rounds[due[each]]
                        due[each] = (due[each] + 1) % fragments
                    else:
                        bases[each] = list(rounds.rounds)
                        due[each] = sum(rounds.rounds) % fragments
            assert any(each not in blocked for each in range(count)), (seed, rounds.__dict__)
        left = [(at, *push.key) for at, each in enumerate(rounds.fragments) for push in each.pending]
        assert sorted([*used, *left]) == sorted(pushed)
        assert len(set(pushed)) == len(pushed)
