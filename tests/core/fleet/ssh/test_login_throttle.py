"""Tests of the limits on concurrent logins, and of the delays between attempts."""

from __future__ import annotations

import threading

import pytest

from torchyard_core.fleet.ssh.login_throttle import AT_ONCE, Backoff, EarlyDrop, LoginGate, LoginThrottle


def test_a_door_lets_so_many_in_and_the_next_when_one_leaves() -> None:
    door = LoginGate()
    inside = threading.Semaphore(0)
    leave = threading.Semaphore(0)

    def pass_through() -> None:
        with door.slot():
            inside.release()
            leave.acquire(timeout=60)

    threads = [threading.Thread(target=pass_through) for _ in range(AT_ONCE + 2)]
    for thread in threads:
        thread.start()
    assert all(inside.acquire(timeout=60) for _ in range(AT_ONCE))
    assert not inside.acquire(timeout=0.1)
    leave.release()
    assert inside.acquire(timeout=60)
    for _ in threads:
        leave.release()
    for thread in threads:
        thread.join(10)


def test_a_drop_narrows_the_door_to_those_who_were_let_in() -> None:
    door = LoginGate()
    with door.slot(), door.slot(), pytest.raises(EarlyDrop), door.slot():
        raise EarlyDrop
    assert door.limit == 2
    for _ in range(3):
        with pytest.raises(EarlyDrop), door.slot():
            raise EarlyDrop
    assert door.limit == 1


def test_each_place_has_its_own_door() -> None:
    doors = LoginThrottle()
    assert doors["one"] is doors["one"]
    assert doors["one"] is not doors["other"]


def test_pauses_grow_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    pauses = Backoff(1.0, 8.0, chance=lambda: 1.0)
    assert [pauses.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    pauses.reset()
    assert pauses.next() == 1
    lucky = Backoff(1.0, 8.0, chance=lambda: 0.0)
    assert [lucky.next() for _ in range(3)] == [0.5, 1, 2]
