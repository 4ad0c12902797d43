"""Tests of determining from a telemetry sample which GPUs of a host are in use, as the planner must know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.examples import host
from torchyard_core.fleet.gpu_occupancy import with_occupancy

HOST = replace(host("a", 3), use_known=False)


def process(user: str | None, **more: Any) -> dict[str, Any]:
    return {"pid": 4711, "user": user, "program": "Xorg", "memory_mb": 900, "replica": None, **more}


def sample(*processes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"gpus": [{"uuid": f"GPU-a-{index}", "processes": there} for index, there in enumerate(processes)]}


def test_a_gpu_with_processes_is_busy_and_its_users_are_named_once() -> None:
    used = with_occupancy(HOST, sample([], [process("kim"), process("kim"), process("lee")], [process("unknown")]))
    assert used.use_known
    assert used.busy_gpus == {"GPU-a-1", "GPU-a-2"}
    assert [used.user_of(gpu) for gpu in used.gpus] == [None, "kim, lee", ""]


def test_without_a_sample_the_use_is_unknown() -> None:
    known = with_occupancy(HOST, sample([process("kim")], [], []))
    unknown = with_occupancy(known, None)
    assert (unknown.use_known, unknown.busy_gpus, dict(unknown.gpu_users)) == (False, frozenset(), {})


def test_what_draws_the_screen_uses_no_gpu() -> None:
    screen = process("root", draws_screen=True)
    drawn = with_occupancy(HOST, sample([screen], [screen, process("kim", draws_screen=False)], [process("lee")]))
    assert [drawn.user_of(gpu) for gpu in drawn.gpus] == [None, "kim", "lee"]
