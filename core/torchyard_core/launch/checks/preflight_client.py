"""Asks every host of a launch at once how it stands (`host.preflight`), and listens while other work goes on."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.preflight_checks import Clock, check_clocks, check_conditions, check_start_clock
from torchyard_core.launch.planning import Ground
from torchyard_core.launch.progress import Telling
from torchyard_core.topology.model import Launcher

ANSWERS_WITHIN_S = 30.0
"""A driver that hangs keeps NVML waiting for ever."""


class PreflightClient:
    """The question, asked when it is made."""

    def __init__(self, context: Ground, *, with_gpus: bool = True):
        self._context = context
        self._sent: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._asked: dict[str, Future[Any]] = {}
        self._deadline = time.monotonic() + ANSWERS_WITHIN_S
        for host in context.plan.hosts:
            gpus = [gpu.uuid for replica in context.plan.on_host(host) for gpu in replica.gpus] if with_gpus else []
            self._sent[host] = time.time()
            asked = self._asked[host] = context.links[host].submit("host.preflight", {"gpus": gpus})
            asked.add_done_callback(partial(self._hear, host))

    def _hear(self, host: str, asked: Future[Any]) -> None:
        self._heard[host] = time.time()

    def lines(self, launcher: Launcher, progress: Telling, *, scheduled: bool = False) -> list[Check]:
        """The checklist's lines, once all have answered. Raises Cancelled, a HostError.

        `scheduled`: the run starts by the primary's clock, so that one must be right.
        """
        ranks = sum(replica.ranks for replica in self._context.plan.replicas)
        clocks: dict[str, Clock] = {}
        lines: list[Check] = []
        for host, asked in self._asked.items():
            while not asked.done() and time.monotonic() < self._deadline:
                progress.stop_if_cancelled()
                _wait(asked)
            if not asked.done():
                message = f"{host} did not say within {ANSWERS_WITHIN_S:.0f} s how it stands."
                hint = f"A GPU's driver there may hang: try `nvidia-smi` on {host}, or choose another host."
                lines.append(Check("host", host, False, message, hint))
                continue
            measured = asked.result()
            clocks[host] = Clock.read(self._sent[host], measured, self._heard.get(host, time.time()))
            lines += check_conditions(host, measured, launcher, ranks)
        primary = self._context.primary
        if scheduled and primary in clocks:
            lines.append(check_start_clock(primary, clocks[primary]))
        return [*check_clocks(clocks), *lines]


def _wait(asked: Future[Any]) -> None:
    with suppress(TimeoutError):
        asked.exception(0.1)
