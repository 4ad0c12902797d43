"""Starts trainers that share this machine's first GPU, each on a simulated host.

NCCL refuses two ranks that use the same GPU on one host. A different NCCL_HOSTID for each rank makes NCCL treat the
ranks as separate hosts and connect them through sockets.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.roles.processes import bare_environment

GPU_MARKS = [
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def gpu_environment() -> dict[str, str]:
    """Returns the environment of one trainer."""
    return {
        "CUDA_VISIBLE_DEVICES": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NCCL_HOSTID": uuid.uuid4().hex,
        "NCCL_SOCKET_IFNAME": "lo",
    }


class Interpreters:
    """Starts scripts in new interpreters. A forked process cannot use the GPU if its parent has already initialized the
    GPU.
    """

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a process whose stdout and stderr are one text stream."""
        given = environment or {}
        gpu = gpu_environment()
        if given.get("TORCHYARD_ROLE") in ("ps", "reducer"):
            gpu["CUDA_VISIBLE_DEVICES"] = ""
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**bare_environment(), **given, **gpu},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def interpreters() -> Iterator[Interpreters]:
    found = Interpreters()
    try:
        yield found
    finally:
        found.close()
