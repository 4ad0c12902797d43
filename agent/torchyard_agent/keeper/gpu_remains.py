"""Whether a run's ended processes are still counted on its GPUs: the driver may hold them for a moment, or for good."""

from __future__ import annotations

from collections.abc import Collection


def still_on_gpus(uuids: Collection[str], pids: Collection[int]) -> list[str]:
    """Sentences' ends such as "PID 4711 on GPU 0", for those of `pids` that NVML still lists there.

    Only processes that were the run's count: a stranger's, which a container may hide from this host, never do.
    Empty where there is no NVML to ask. Blocks some tens of milliseconds.
    """
    if not uuids or not pids:
        return []
    from torchyard_agent.telemetry.nvml import Nvml  # ctypes is imported where there are GPUs to look at

    nvml = Nvml.open()
    if nvml is None:
        return []
    try:
        return [
            f"PID {process['pid']} on GPU {gpu.index}"
            for gpu in nvml.gpus
            if gpu.uuid in uuids
            for process in nvml.running(gpu)
            if process["pid"] in pids
        ]
    finally:
        nvml.close()
