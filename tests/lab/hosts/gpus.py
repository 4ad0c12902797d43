"""Simulated GPUs of lab hosts, reported by the fake NVML library."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.lab.hosts.host import LabHost

LIBRARY = "libnvidia-ml.so.1"


def give_gpus(host: LabHost, gpus: Sequence[FakeGpu], **told: Any) -> Path:
    """Makes a fake NVML library report these GPUs in later logins to a host.

    `told` is passed to `write_gpus`. Returns the file from which the library reads the values.
    """
    folder = host.home / "nvml"
    folder.mkdir(exist_ok=True)
    (folder / LIBRARY).write_bytes(_library())
    values = folder / "values.txt"
    write_gpus(values, gpus, **told)
    host.set_ssh_environment({"LD_LIBRARY_PATH": "/root/nvml", "FAKE_NVML_FILE": "/root/nvml/values.txt"})
    return values


@cache
def _library() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return (build_fake_nvml(Path(folder)) / LIBRARY).read_bytes()
