"""Client of the request `host.preflight`, which a launch sends to all its hosts at the same time."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.clocks import Clock, check_clocks, check_start_clock
from torchyard_core.launch.checks.host_resources import check_conditions
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.topology.model import Launcher

ANSWERS_WITHIN_S = 30.0
"""Timeout in seconds for the answers to `host.preflight`. A GPU driver that hangs can block NVML forever."""


class PreflightClient:
    """Sends `host.preflight` to all hosts on creation, and converts the answers to lines of the checklist."""

    def __init__(self, context: LaunchContext, *, with_gpus: bool = True):
        self._context = context
        self._sent: dict[str, float] = {}
        self._received: dict[str, float] = {}
        self._pending: dict[str, Future[Any]] = {}
        self._deadline = time.monotonic() + ANSWERS_WITHIN_S
        for host in context.plan.hosts:
            gpus = [gpu.uuid for replica in context.plan.on_host(host) for gpu in replica.gpus] if with_gpus else []
            self._sent[host] = time.time()
            answer = self._pending[host] = context.links[host].submit("host.preflight", {"gpus": gpus})
            answer.add_done_callback(partial(self._note_time, host))

    def _note_time(self, host: str, answer: Future[Any]) -> None:
        self._received[host] = time.time()

    def checks(self, launcher: Launcher, progress: LaunchProgress, *, scheduled: bool = False) -> list[Check]:
        """Waits for the answers and returns the lines of the checklist.

        A host that does not answer in time gets a line that prevents the launch. For a `scheduled` run, which starts by
        the primary's clock, this clock is checked, too.

        Raises Cancelled after a cancellation, and HostError or AgentRefused if a host is unavailable or refuses the
        request.
        """
        ranks = sum(replica.ranks for replica in self._context.plan.replicas)
        clocks: dict[str, Clock] = {}
        lines: list[Check] = []
        for host, answer in self._pending.items():
            while not answer.done() and time.monotonic() < self._deadline:
                progress.stop_if_cancelled()
                with suppress(TimeoutError):
                    answer.exception(0.1)
            if not answer.done():
                message = f"{host} did not answer the preflight check within {ANSWERS_WITHIN_S:.0f} s."
                hint = f"A GPU driver there may hang: try `nvidia-smi` on {host}, or choose another host."
                lines.append(Check("host", host, False, message, hint))
                continue
            measured = answer.result()
            clocks[host] = Clock.read(self._sent[host], measured, self._received.get(host, time.time()))
            lines += check_conditions(host, measured, launcher, ranks)
        primary = self._context.primary
        if scheduled and primary in clocks:
            lines.append(check_start_clock(primary, clocks[primary]))
        return [*check_clocks(clocks), *lines]
