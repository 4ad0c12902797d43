"""Slices are sent at the same rate: none is far ahead of the others, and a slice that has ended delays no other."""

from __future__ import annotations

import threading

from tests.waiting import wait_until
from torchyard_roles.strategies.diloco.slice_exchange import LEAD, EqualProgress


def sender(progress: EqualProgress, turn: str, messages: int, sent: list[int]) -> threading.Thread:
    def send() -> None:
        for number in range(messages):
            if not progress.wait_for_turn(turn, number):
                return
            sent.append(number)
        progress.end(turn)

    progress.begin(turn)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_fast_slice_waits_for_a_slow_one() -> None:
    progress, sent = EqualProgress(), list[int]()
    progress.begin("slow")
    fast = sender(progress, "fast", 20, sent)
    wait_until(lambda: len(sent) == LEAD + 1)
    assert progress.wait_for_turn("slow", 1)
    wait_until(lambda: len(sent) == LEAD + 2)
    progress.end("slow")
    fast.join(5)
    assert sent == list(range(20))


def test_the_sender_of_a_cancelled_slice_is_woken() -> None:
    progress, sent = EqualProgress(), list[int]()
    progress.begin("slow")
    fast = sender(progress, "fast", 20, sent)
    wait_until(lambda: len(sent) == LEAD + 1)
    progress.end("fast")
    fast.join(5)
    assert not fast.is_alive()
    assert len(sent) == LEAD + 1
    assert progress.wait_for_turn("slow", 10), "a cancelled slice delays others"
