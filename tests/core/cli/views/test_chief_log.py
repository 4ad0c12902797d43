"""Tests that the chief's log is no longer printed once the command has stopped following the run."""

from __future__ import annotations

import base64
import threading
from typing import Any, cast

from torchyard_core.cli.views.replica_logs import ChiefLog
from torchyard_core.launch.agent_interface import AgentLink

PATIENCE_S = 10.0


class Talks:
    """An agent that returns one new line of a replica's log for each request."""

    host = "gpu-a"
    is_open = True

    def __init__(self) -> None:
        self.asked = 0

    def call(self, method: str, params: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.asked += 1
        line = f"line {self.asked}\n".encode()
        next = int(params["offset"]) + len(line)
        return {"data": base64.b64encode(line).decode(), "next": next, "size": next, "ended": False, "times": []}


def test_nothing_is_shown_after_leaving_be_a_line_on_its_way_just_then() -> None:
    shown: list[str] = []
    on_its_way, go_on = threading.Event(), threading.Event()

    def show(line: str) -> None:
        on_its_way.set()
        go_on.wait(PATIENCE_S)
        shown.append(line)

    link = cast("AgentLink", Talks())
    with ChiefLog("run-1", "worker-0", link, lambda host: link, show) as log:
        assert on_its_way.wait(PATIENCE_S)
        leaving = threading.Thread(target=lambda: (log.leave(), shown.append("The run goes on.")))
        leaving.start()
        leaving.join(0.05)
        go_on.set()
        leaving.join(PATIENCE_S)
    assert shown == ["line 1", "The run goes on."]
