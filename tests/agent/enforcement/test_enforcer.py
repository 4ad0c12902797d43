"""Tests of enforcement on samples in which the driver still lists a process that has exited."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from tests.agent.enforcement.calendars import HOUR, T0, A, booking, login, snapshot
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.enforcement.enforcer import Enforcer
from torchyard_agent.protocol.calendar import Enforcement, parse

OBSERVE = Enforcement("observe", 60.0, dry_run=False)
USER = pwd.getpwuid(os.getuid()).pw_name
KNOWN = parse(snapshot(booking("lee", T0, T0 + HOUR), logins=[login(USER, "kim")]))
NO_PROCESS = 2**22 + 1
"""No process has this PID, because it is above the kernel's limit."""


def _sample(*pids: int) -> dict[str, Any]:
    described = {"user": USER, "program": "sleep", "draws_screen": False, "replica": None}
    return {"gpus": [{"uuid": A, "processes": [{"pid": pid, **described} for pid in pids]}]}


def _acts(enforcer: Enforcer) -> list[tuple[int, str]]:
    return [(act["pid"], act["act"]) for act in enforcer.summary()["acts"]]


def test_a_process_that_has_exited_is_not_reported_as_hidden(tmp_path: Path) -> None:
    enforcer = Enforcer(str(tmp_path), "node", Runs(str(tmp_path), "node"))

    def enforce(after_s: float, *pids: int) -> None:
        asyncio.run(enforcer.enforce(KNOWN, OBSERVE, "gpu-a", _sample(*pids), T0 + after_s))

    with subprocess.Popen(["sleep", "60"]) as process:
        enforce(0, process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        enforce(1, process.pid)
    enforce(2, process.pid)
    enforce(3, process.pid, NO_PROCESS)
    assert [one["pid"] for one in enforcer.summary()["findings"]] == [NO_PROCESS]
    assert _acts(enforcer) == [(process.pid, "observed"), (NO_PROCESS, "reported")]
