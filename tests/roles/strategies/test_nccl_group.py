"""Tests of the NCCL communicator that can be aborted, with a substitute for NCCL's process group.

The same code is tested in runs over gloo by `tests/agent/keeper/test_lost_workers.py`, and in runs over NCCL by
`tests/agent/keeper/test_lost_workers_on_gpus.py`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.strategies.nccl_group import SETTINGS, NcclGroup, prepare_nccl

pytestmark = pytest.mark.train


class Kernel:
    """A process group with one operation. As with NCCL, the operation looks complete once it is aborted."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.is_used = False
        self.aborts = 0

    def is_completed(self) -> bool:
        return self.is_done.is_set()

    def wait(self) -> None:
        self.is_used = True

    def abort(self) -> None:
        self.aborts += 1
        self.is_done.set()


def group_of(kernel: Kernel) -> NcclGroup:
    group = object.__new__(NcclGroup)
    group.device, group._lock, group._is_aborted, group._group = torch.device("cpu"), threading.Lock(), False, kernel
    return group


def test_an_operation_that_another_thread_aborts_ends_the_wait_and_is_not_used() -> None:
    kernel = Kernel()
    group = group_of(kernel)
    work = group.start(lambda started: started)
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            threading.Thread(target=group.abort).start()

    with pytest.raises(RuntimeError, match="the group has ended"):
        group.wait(work, check)
    assert not kernel.is_used
    with pytest.raises(RuntimeError, match="the group has ended"):
        group.start(lambda started: started)
    assert group.abort()
    assert kernel.aborts == 1


def test_a_complete_operation_is_used() -> None:
    kernel = Kernel()
    group = group_of(kernel)
    group.wait(group.start(lambda started: started), kernel.is_done.set)
    assert kernel.is_used


@pytest.mark.parametrize(
    ("version", "found"), [(None, "has no NCCL,"), ((2, 21, 5), "has NCCL 2.21.5,"), ((2, 27, 3), "")]
)
def test_nccl_that_cannot_abort_is_refused(monkeypatch: pytest.MonkeyPatch, version: Any, found: str) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: version is not None)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    for name in SETTINGS:
        monkeypatch.setenv(name, "user")
    if found:
        with pytest.raises(EnvironmentProblem, match=found):
            prepare_nccl()
    else:
        prepare_nccl()
        assert {name: os.environ[name] for name in SETTINGS} == SETTINGS
