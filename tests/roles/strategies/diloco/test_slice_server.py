"""Tests of serving one slice: the average of the contributions is sent message by message, also over a second
connection.
"""

from __future__ import annotations

from typing import Any

import torch

from torchyard_roles.strategies.diloco.slice_server import Contribution, Mailbox

EPOCH = 1


class SentMessages:
    """Records messages in place of a connection."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def post(self, header: dict[str, Any], payload: torch.Tensor) -> None:
        self.sent.append(payload)


def contribution(weight: float, *messages: torch.Tensor) -> Contribution:
    return Contribution(weight, has_finished=False, messages=list(messages))


def test_an_average_is_sent_while_differences_still_arrive() -> None:
    mailbox, connection = Mailbox(), SentMessages()
    first, second, average = torch.tensor([1]), torch.tensor([2]), torch.tensor([3])
    mailbox.put(EPOCH, 0, contribution(1.0, first, second))
    assert mailbox.due(EPOCH, 2) is None
    other = contribution(3.0)
    mailbox.put(EPOCH, 1, other, connection)  # type: ignore[arg-type]  # The object has the only method that is called.
    assert mailbox.due(EPOCH, 2) is None
    mailbox.deliver(other, second)
    assert mailbox.due(EPOCH, 2) == [(0.25, first), (0.75, second)]
    mailbox.publish(EPOCH, average)
    assert connection.sent == [average]
    assert mailbox.due(EPOCH, 2) is None
    mailbox.deliver(other, first)
    assert mailbox.due(EPOCH, 2) == [(0.25, second), (0.75, first)]


def test_a_second_connection_of_a_group_receives_all_averages() -> None:
    mailbox, broken, connection = Mailbox(), SentMessages(), SentMessages()
    message, average = torch.tensor([1]), torch.tensor([2])
    mailbox.put(EPOCH, 0, contribution(1.0, message, message))
    mailbox.put(EPOCH, 1, contribution(1.0, message), broken)  # type: ignore[arg-type]
    mailbox.publish(EPOCH, average)
    again = contribution(1.0)
    mailbox.put(EPOCH, 1, again, connection)  # type: ignore[arg-type]
    assert connection.sent == [average]
    mailbox.deliver(again, message)
    assert mailbox.due(EPOCH, 2) is None  # The average for this message is complete.
    mailbox.deliver(again, message)
    assert mailbox.due(EPOCH, 2) is not None
    mailbox.publish(EPOCH, average)
    assert connection.sent == [average, average]
    assert broken.sent == [average]


def test_a_thread_that_is_late_finds_whether_its_epoch_was_complete() -> None:
    mailbox, average = Mailbox(), torch.tensor([1])
    mailbox.publish(EPOCH, average)
    mailbox.publish(EPOCH + 1, average)
    mailbox.advance(EPOCH + 2)
    assert mailbox.wait_for_averages(EPOCH, 1)
    assert not mailbox.wait_for_averages(EPOCH + 1, 2)
