"""Pure functions that check a host's limits, shared memory and GPUs, and what earlier runs have left on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_core.launch.checks.check import Check
from torchyard_core.next_steps import Advice, SetField, StopRun
from torchyard_core.topology.model import Launcher

NOFILE_LEAST = 1024
NOFILE_A_RANK = 8
"""Number of file descriptors that each rank of the run may need, for the join store, the ring and the log."""
SHM_LEAST = 1 << 30
MEMLOCK_LEAST = 1 << 30
MUCH_OF_A_GPU = 0.5
"""Fraction of a GPU's memory. If other processes use more, the launch is prevented. Less use is a warning."""

Measured = Mapping[str, Any]
"""An agent's answer to `host.preflight`."""


def check_conditions(host: str, measured: Measured, launcher: Launcher, ranks: int) -> list[Check]:
    """Returns the checklist lines for one host. `ranks` is the number of ranks of the whole run."""
    return [
        *_check_limits(host, measured, ranks),
        *(_check_shm(host, measured) if launcher is Launcher.TORCH else []),
        *_check_gpus(host, measured.get("gpus", [])),
        *_check_leftovers(host, measured.get("leftovers", [])),
    ]


def _check_limits(host: str, measured: Measured, ranks: int) -> list[Check]:
    soft, hard = measured["limits"]["nofile"]
    needed = max(NOFILE_LEAST, NOFILE_A_RANK * ranks)
    lines = []
    if soft is not None and soft < needed:
        hint: Advice = "Ask its administrator to raise it (nofile)."
        if hard is None or hard >= needed:
            hint = (f"`ulimit -n {needed}` in `setup` raises it (nofile).", SetField("program.setup"))
        message = f"a process on {host} may open only {soft} files; this run needs {needed}."
        lines.append(Check("limits", host, True, message, hint, warning=True))
    locked, _ = measured["limits"]["memlock"]
    if measured.get("infiniband") and locked is not None and locked < MEMLOCK_LEAST:
        message = f"a process on {host} may lock only {locked // 1024} KiB of memory; NCCL over InfiniBand needs more."
        hint = (
            "Ask its administrator to set memlock to unlimited in limits.conf, or set NCCL_IB_DISABLE=1 in `env`.",
            SetField("program.env"),
        )
        lines.append(Check("limits", host, True, message, hint, warning=True))
    if lines:
        return lines
    files = "any number of" if soft is None else f"{soft:,}"
    return [Check("limits", host, True, f"{files} open files, lockable memory: {_bytes(locked)}")]


def _check_shm(host: str, measured: Measured) -> list[Check]:
    shm = measured.get("shm")
    if shm is None:
        message = f"/dev/shm on {host} is missing or not writable: a DataLoader with workers fails there."
        return [Check("shm", host, True, message, "Set `num_workers=0` in the script.", warning=True)]
    if shm["free"] < SHM_LEAST:
        message = f"only {shm['free'] >> 20} MiB of shared memory (/dev/shm) are free on {host}."
        hint = "A DataLoader's workers or NCCL may end with a bus error. Increase --shm-size of a container."
        return [Check("shm", host, True, message, hint, warning=True)]
    return [Check("shm", host, True, f"{shm['free'] / 2**30:.0f} GiB of shared memory free")]


def _check_gpus(host: str, gpus: Sequence[Measured]) -> list[Check]:
    lines = [line for gpu in gpus for line in (*_check_health(host, gpu), *_check_occupancy(host, gpu))]
    if lines or not gpus:
        return lines
    count = "the chosen GPU is" if len(gpus) == 1 else f"the {len(gpus)} chosen GPUs are"
    return [Check("gpu", host, True, f"{count} free, without ECC and XID errors")]


def _check_health(host: str, gpu: Measured) -> list[Check]:
    who = f"GPU {gpu['index']} of {host}"
    if gpu.get("problem"):
        return [Check("gpu", host, False, f"{host}: {gpu['problem']}", "Choose another GPU until it is back.")]
    if gpu.get("repair_failed"):
        message = f"{who} has no spare memory left to replace broken rows (row remapping failed)."
        return [Check("gpu", host, False, message, "Choose another GPU; this one needs to be replaced.")]
    lines = []
    reset = f"Ask its administrator to reset it (`nvidia-smi --gpu-reset -i {gpu['index']}`), or choose another GPU."
    if gpu.get("repair_pending"):
        lines.append(_warn(host, f"{who} has broken memory that is replaced only by a reset.", reset))
    if gpu.get("ecc_errors"):
        count = gpu["ecc_errors"]
        errors = f"{count} uncorrectable memory error{'s' * (count > 1)}"
        lines.append(_warn(host, f"{who} has had {errors} (ECC) since its driver was loaded.", reset))
    elif gpu.get("ecc_errors") is None:
        lines.append(_warn(host, f"ECC errors of {who} are unknown: it does not report them.", ""))
    xids = gpu.get("xids")
    if xids is None:
        hint = "Ask its administrator for `dmesg | grep Xid`."
        lines.append(_warn(host, f"XID errors of {who} are unknown: this user may not read the kernel log.", hint))
    elif xids:
        codes = ", ".join(str(code) for code in dict.fromkeys(xids))
        lines.append(_warn(host, f"{who} has had XID errors since the host booted: {codes}.", reset))
    return lines


def _check_occupancy(host: str, gpu: Measured) -> list[Check]:
    running = gpu.get("processes", [])
    if not running:
        return []
    who = ", ".join(
        f"{_user(process)} ({process['program']}, PID {process['pid']}{_memory(process)})" for process in running
    )
    message = f"GPU {gpu['index']} of {host} is in use by {who}."
    used, total = sum(process["memory_mb"] or 0 for process in running), gpu.get("memory_mb")
    if total and used > MUCH_OF_A_GPU * total:
        return [Check("gpu", host, False, message, "Choose another GPU, wait until it is free, or ask its user.")]
    return [_warn(host, message, "It leaves less memory and time for this run.")]


def _user(process: Measured) -> str:
    return "an unknown user" if process["user"] == "unknown" else str(process["user"])


def _memory(process: Measured) -> str:
    return f", {process['memory_mb']:,} MiB" if process.get("memory_mb") else ""


def _check_leftovers(host: str, leftovers: Sequence[Measured]) -> list[Check]:
    lines = []
    for left in leftovers:
        run_id = left["run_id"]
        if left["left"]:
            pids = ", ".join(map(str, left["left"]))
            message = f"processes of the earlier run {run_id} on {host} cannot be ended: {pids}."
            lines.append(
                Check("leftovers", host, True, message, "They may hold GPUs; a reboot ends them.", warning=True)
            )
        elif left["ended"]:
            count = len(left["ended"])
            what = "a process" if count == 1 else f"{count} processes"
            message = (
                f"{what} that the earlier run {run_id} had left on {host} {'was' if count == 1 else 'were'} ended."
            )
            lines.append(Check("leftovers", host, True, message, warning=True))
        if left["keeper"]:
            message = f"the keeper of run {run_id} is still on {host}, long after the run has ended."
            lines.append(Check("leftovers", host, True, message, StopRun(run_id), warning=True))
    return lines or [Check("leftovers", host, True, "nothing is left of earlier runs")]


def _warn(host: str, message: str, hint: str) -> Check:
    return Check("gpu", host, True, message, hint, warning=True)


def _bytes(number: int | None) -> str:
    return "unlimited" if number is None else f"{number / 2**20:,.0f} MiB"
