"""Tests of renewing a launch's lease: all hosts are sent renewals concurrently, and a failure does not affect the
launch.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from tests.waiting import wait_until
from torchyard_core.errors import Unreachable
from torchyard_core.launch import lease_renewal
from torchyard_core.launch.lease_renewal import LeaseRenewal


class Link:
    """A link to a host that records requests. A sender is blocked while `block` is set."""

    def __init__(self, host: str, block: threading.Event | None = None):
        self.host = host
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._block = block

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        self.asked.append((method, params))
        if self._block is not None:
            self._block.wait(60)
        answer: Future[Any] = Future()
        answer.set_exception(Unreachable(self.host, f"the connection to {self.host} was lost."))
        return answer


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_EVERY_S", 0.02)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "background-_renew"]


def test_a_host_that_fails_or_takes_no_more_bytes_delays_no_renewal() -> None:
    stuck = threading.Event()
    links: dict[str, Any] = {"gpu-a": Link("gpu-a"), "gpu-b": Link("gpu-b", stuck), "gpu-c": Link("gpu-c")}
    lease = LeaseRenewal("run-1")
    lease.begin(["gpu-a", "gpu-b", "gpu-c"], links)
    try:
        wait_until(lambda: len(links["gpu-a"].asked) > 4 and len(links["gpu-c"].asked) > 4)
        assert len(links["gpu-b"].asked) == 1
        assert links["gpu-a"].asked[0] == ("run.renew", {"run_id": "run-1"})
    finally:
        lease.end()
        stuck.set()
    wait_until(lambda: not threads())
    counted = len(links["gpu-a"].asked)
    time.sleep(0.1)
    assert len(links["gpu-a"].asked) == counted


def test_a_connection_that_was_made_anew_is_used_and_a_second_beginning_changes_nothing() -> None:
    first, second = Link("gpu-a"), Link("gpu-a")
    links: dict[str, Any] = {"gpu-a": first}
    lease = LeaseRenewal("run-1")
    lease.begin(["gpu-a"], links)
    lease.begin(["gpu-a"], links)
    try:
        wait_until(lambda: bool(first.asked))
        assert len(threads()) == 1
        links["gpu-a"] = second
        wait_until(lambda: bool(second.asked))
    finally:
        lease.end()
    wait_until(lambda: not threads())


def test_a_launch_that_is_over_at_once_is_not_renewed() -> None:
    links: dict[str, Any] = {"gpu-a": Link("gpu-a")}
    lease = LeaseRenewal("run-1")
    lease.end()
    lease.begin(["gpu-a"], links)
    wait_until(lambda: not threads())
    assert links["gpu-a"].asked == []
