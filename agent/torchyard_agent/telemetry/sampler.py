"""Samples of the host, its GPUs and its replicas, as JSON values."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchyard_agent.telemetry.host_metrics import HostMeter
from torchyard_agent.telemetry.process_owners import Owners
from torchyard_agent.telemetry.process_usage import ProcessTrees

if TYPE_CHECKING:
    from torchyard_agent.telemetry.nvml import Nvml

_REOPEN_S = 300.0
"""Minimum time in seconds between two attempts to open NVML.

A later attempt may succeed, because a driver may have been installed or a GPU reset in the meantime.
"""


class Sampler:
    """The sampler of this host. Sampling once per second is cheap. Rates are averages since the last sample."""

    def __init__(self, agent_dir: str):
        self._agent_dir = agent_dir
        self._host = HostMeter(agent_dir, time.monotonic())
        self._trees = ProcessTrees()
        self._owners = Owners()
        self._nvml: Nvml | None = None
        self._opened_at = float("-inf")

    def sample(self, replicas: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Takes a sample.

        Args:
            replicas: The PIDs of each replica's ranks, by the name of the replica in the sample.

        Returns:
            time: Seconds since 1970.
            host: `interval_s` (seconds over which the rates are averaged), `cpus` (that this login may use), `cpu`
                (percent of all CPUs), `load` (1 min), `memory_mb`, `memory_used_mb` (MiB), `network` {interface:
                {`received_bytes_s`, `sent_bytes_s`}}, `disk_read_bytes_s`, `disk_written_bytes_s` (of the device with
                the agent's folder, null if it has none), `disk_free_gb` and `disk_total_gb` (GiB).
            gpus: For each GPU `index`, `uuid`, `name`, `memory_mb`, `memory_used_mb` (MiB), `utilisation` (percent),
                `power_w`, `temperature_c`, `sm_clock_mhz`, `memory_clock_mhz`, `throttling` (reasons, see
                `nvml_bindings`), `ecc_errors` (uncorrected ones since the driver was loaded), `xid` (the last {`code`,
                `time`}, or null), `processes` [{`pid`, `user`, `program`, `memory_mb`, `computes`, `draws_screen` (a
                display server that does nothing else), `replica` (null for other processes)}] and `problem` (a
                sentence, or null). Unsupported values are null.
            replicas: By name {`cpu` (percent of one CPU, null in the first sample), `memory_mb` (MiB resident, with
                shared pages counted in each process), `processes`}.
        """
        now = time.monotonic()
        replicas_now = self._trees.sample(replicas, now)
        return {
            "time": round(time.time(), 3),
            "host": self._host.sample(now),
            "gpus": self._gpus(now),
            "replicas": replicas_now,
        }

    def close_nvml(self) -> None:
        """Shuts down NVML when no samples are needed, so that the driver can be replaced."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = None
        self._opened_at = float("-inf")

    def _gpus(self, now: float) -> list[dict[str, Any]]:
        self._open_nvml(now)
        if self._nvml is None:
            return []
        gpus = self._nvml.sample()
        replica_of = self._trees.replica_of()
        for gpu in gpus:
            for process in gpu["processes"]:
                self._owners.describe(process, now)
                process["replica"] = replica_of.get(process["pid"])
        return gpus

    def _open_nvml(self, now: float) -> None:
        """Opens NVML if it is not open, or reopens it if a GPU has a problem, but at most once in _REOPEN_S."""
        if now - self._opened_at < _REOPEN_S:
            return
        if self._nvml is not None:
            if not any(gpu.problem for gpu in self._nvml.gpus):
                return
            self._nvml.close()
        # The NVML module imports ctypes, so it is imported only when it is needed.
        from torchyard_agent.telemetry.nvml import Nvml

        self._nvml = Nvml.open()
        self._opened_at = now
