"""The facts of a host for `hosts check` and the planner: hardware, driver, Python and disk."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from torchyard_agent.telemetry import cgroup_limits, logind_settings, training_python
from torchyard_agent.telemetry.host_metrics import free_space_gb

LEAST_FREE_GB = 1.0
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0")

Problem = dict[str, str]


def host_facts(python: str | None, agent_dir: str) -> dict[str, Any]:
    """Returns the facts of this host as JSON values.

    The first call may take some seconds and must not block an event loop.

    Args:
        python: The path of the training Python from the fleet file, or None if it is not set.

    Returns:
        `hostname`, `kernel`, `cpus` (that this login may use), `memory_gb` (GiB), `gpus` [{`index`, `uuid`, `name`,
        `memory_mb` (MiB)}], `driver` (NVIDIA's version, or null), `driver_cuda` (the newest CUDA that the driver
        supports, or null), `agent_python` and `python` ({`path`, `version`}, where the version of a training Python
        that does not run is null), `torch`, `torch_cuda` (the CUDA for which torch was built) and `numpy` (versions, or
        null), `packages` (versions), `disk_free_gb`, and `problems` [{`code`, `message`, `hint`}].
    """
    training = training_python.find(python)
    gpus, driver, driver_cuda, problems = _gpus()
    free = free_space_gb(agent_dir)
    if training.problem is not None:
        problems.append(training.problem)
    if free is not None and free[0] < LEAST_FREE_GB:
        problems.append(disk_problem(agent_dir, free[0]))
    if logind_settings.ends_with_login():
        problems.append(SESSIONS_PROBLEM)
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpus": cgroup_limits.cpu_count(),
        "memory_gb": round(cgroup_limits.memory_bytes() / 2**30, 1),
        "gpus": gpus,
        "driver": driver,
        "driver_cuda": driver_cuda,
        "agent_python": {"path": sys.executable, "version": platform.python_version()},
        "python": {"path": training.path, "version": training.version},
        "torch": training.torch,
        "torch_cuda": training.torch_cuda,
        "numpy": training.numpy,
        "packages": dict(training.packages),
        "disk_free_gb": None if free is None else free[0],
        "problems": problems,
    }


SESSIONS_PROBLEM: Problem = {
    "code": "ends_with_login",
    "message": "this host ends all processes of a login at its logout (KillUserProcesses=yes), runs included",
    "hint": "Run `loginctl enable-linger` there once, or ask its administrator to.",
}


def disk_problem(folder: str, free_gb: float) -> Problem:
    """Returns the problem to report if the disk that contains `folder` is nearly full."""
    return {
        "code": "disk_nearly_full",
        "message": f"only {free_gb * 1024:.0f} MiB are free for {folder}",
        "hint": "Delete what is not needed there, such as old runs.",
    }


def nvml_problem(reason: str, device_files: tuple[str, ...] = DEVICE_FILES) -> Problem | None:
    """Returns the problem to report if NVML does not work, or None if the host has no NVIDIA device files.

    A host without these files has no GPUs and therefore needs no NVML.
    """
    if not any(map(os.path.exists, device_files)):
        return None
    return {
        "code": "nvml_missing",
        "message": f"this host seems to have NVIDIA GPUs, but NVML does not work: {reason}",
        "hint": "Run `nvidia-smi` there. Install the driver's libnvidia-ml.so.1, or reboot after a driver update.",
    }


def _gpus() -> tuple[list[dict[str, Any]], str | None, str | None, list[Problem]]:
    """Returns (GPUs, driver version, CUDA version of the driver, problems). Opens its own instance of NVML."""
    # The NVML module imports ctypes, so it is imported only when it is needed.
    from torchyard_agent.telemetry.nvml import Nvml, NvmlUnavailable

    try:
        nvml = Nvml()
    except NvmlUnavailable as error:
        problem = nvml_problem(str(error))
        return [], None, None, [] if problem is None else [problem]
    try:
        gpus = [
            {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mb": gpu.memory_mb}
            for gpu in nvml.gpus
            if gpu.uuid is not None
        ]
        problems = [
            {"code": "gpu_failed", "message": gpu.problem, "hint": "Plan without it until it is back."}
            for gpu in nvml.gpus
            if gpu.problem is not None
        ]
        return gpus, nvml.driver_version(), nvml.cuda_version(), problems
    finally:
        nvml.close()
