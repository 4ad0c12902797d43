"""Tests of sending reports over a real socket: a report arrives or is dropped, and never affects training."""

from __future__ import annotations

import os
import time

from tests.roles.processes import Keeper
from torchyard_roles.environment import Environment
from torchyard_roles.keeper_reports import Reporter


def reporter_to(address: str) -> Reporter:
    return Reporter(Environment(replica="worker-1", local_rank=2, report_address=address))


def test_a_report_arrives_with_its_replica_and_local_rank(keeper: Keeper) -> None:
    reporter = reporter_to(keeper.address)
    assert reporter.send({"step": 1, "loss": 0.5})
    reporter.close()
    assert keeper.received() == [("worker-1", 2, {"step": 1, "loss": 0.5})]


def test_a_keeper_that_is_gone_is_no_error(keeper: Keeper) -> None:
    reporter = reporter_to(keeper.address)
    keeper.close()
    assert not reporter.send({"step": 1})
    assert not reporter.send({"step": 2}, wait_s=0.2)
    reporter.close()
    assert not reporter.is_open


def test_a_keeper_that_does_not_read_costs_no_time(keeper: Keeper) -> None:
    reporter = reporter_to(keeper.address)
    began = time.monotonic()
    sent = [reporter.send({"step": step}) for step in range(5000)]
    assert time.monotonic() - began < 50  # On average a report takes less than 10 ms.
    assert sent[0]
    assert not sent[-1]
    reporter.close()


def test_a_report_too_long_for_a_datagram_loses_custom_metrics(keeper: Keeper) -> None:
    reporter = reporter_to(keeper.address)
    assert reporter.send({"loss": 0.5, **{f"metric_{number}": 1.0 for number in range(1000)}})
    reporter.close()
    assert keeper.received() == [("worker-1", 2, {"loss": 0.5})]


def test_without_an_address_nothing_is_opened() -> None:
    reporter = reporter_to("")
    assert not reporter.is_open
    assert not reporter.send({"step": 1})


def test_a_forked_child_does_not_speak_for_the_rank(keeper: Keeper) -> None:
    reporter = reporter_to(keeper.address)
    child = os.fork()
    if child == 0:
        os._exit(int(reporter.is_open or reporter.send({"step": 99})))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert reporter.send({"step": 1})
    reporter.close()
    assert keeper.received() == [("worker-1", 2, {"step": 1})]
