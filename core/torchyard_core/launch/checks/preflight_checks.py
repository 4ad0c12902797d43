"""Verdicts on what the hosts' agents measured for a launch (`host.preflight`). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchyard_core.launch.checks.check import Check
from torchyard_core.topology.model import Launcher

CLOCKS_WITHIN_S = 5.0
NOFILE_LEAST = 1024
NOFILE_A_RANK = 8
"""Descriptors for connections to each other rank: its store, its ring, its log."""
SHM_LEAST = 1 << 30
MEMLOCK_LEAST = 1 << 30
MUCH_OF_A_GPU = 0.5
"""A stranger with more than this of its memory leaves too little for training."""

Measured = Mapping[str, Any]
"""An agent's answer to `host.preflight`."""


@dataclass(frozen=True)
class Clock:
    """A host's clock less this computer's, in seconds; it is that, give or take `error`."""

    offset: float
    error: float

    @staticmethod
    def read(sent: float, answer: Measured, heard: float) -> Clock:
        """From one question, `sent` and `heard` by our clock. As NTP reckons, so the host may take its time."""
        received, answered = float(answer["received"]), float(answer["answered"])
        return Clock(
            ((received - sent) + (answered - heard)) / 2, max(0.0, ((heard - sent) - (answered - received)) / 2)
        )


def check_start_clock(primary: str, clock: Clock) -> Check:
    """Red where the clock that a scheduled run starts by is more than 5 s off this computer's."""
    by = clock.offset
    if abs(by) - clock.error <= CLOCKS_WITHIN_S:
        return Check(
            "clock", primary, True, f"the run starts by the clock of {primary}, {abs(by):.3f} s off this one's"
        )
    return Check(
        "clock",
        primary,
        False,
        f"the run would start by the clock of {primary}, which is {abs(by):.1f} s "
        f"{'ahead of' if by > 0 else 'behind'} this computer's.",
        "Let a time service (chrony, systemd-timesyncd) run on both, or start the run now.",
    )


def check_clocks(clocks: Mapping[str, Clock]) -> list[Check]:
    """A line for all hosts, or a warning that names those whose clocks are off: by the middle one, not by ours."""
    if len(clocks) < 2:
        return []
    offsets = sorted(clock.offset for clock in clocks.values())
    middle = offsets[(len(offsets) - 1) // 2]
    spread = offsets[-1] - offsets[0]
    off = {
        host: clock.offset - middle
        for host, clock in clocks.items()
        if abs(clock.offset - middle) - clock.error > CLOCKS_WITHIN_S
    }
    if not off:
        return [Check("clock", "", True, f"clocks agree within {max(spread, 0.001):.3f} s")]
    hint = (
        "Let a time service (chrony, systemd-timesyncd) run there: times in logs and checkpoints are wrong until then."
    )
    return [
        Check(
            "clock",
            host,
            True,
            f"the clock of {host} is {abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} the other hosts'.",
            hint,
            warning=True,
        )
        for host, by in off.items()
    ]


def check_conditions(host: str, measured: Measured, launcher: Launcher, ranks: int) -> list[Check]:
    """The lines for one host. `ranks`: of the whole run."""
    return [
        *_check_limits(host, measured, ranks),
        *(_check_shm(host, measured) if launcher is Launcher.TORCH else []),
        *_check_gpus(host, measured.get("gpus", [])),
        *_check_leftovers(host, measured.get("leftovers", [])),
    ]


def _check_limits(host: str, measured: Measured, ranks: int) -> list[Check]:
    soft, hard = measured["limits"]["nofile"]
    wanted = max(NOFILE_LEAST, NOFILE_A_RANK * ranks)
    lines = []
    if soft is not None and soft < wanted:
        can = (
            f"`ulimit -n {wanted}` in `setup` raises it" if hard is None or hard >= wanted else "ask its administrator"
        )
        message = f"a process on {host} may open only {soft} files; this run wants {wanted}."
        lines.append(Check("limits", host, True, message, f"{can[:1].upper()}{can[1:]} (nofile).", warning=True))
    locked, _ = measured["limits"]["memlock"]
    if measured.get("infiniband") and locked is not None and locked < MEMLOCK_LEAST:
        message = f"a process on {host} may lock only {locked // 1024} KiB of memory; NCCL over InfiniBand wants more."
        hint = "Let its administrator set memlock to unlimited in limits.conf, or set NCCL_IB_DISABLE=1 in `env`."
        lines.append(Check("limits", host, True, message, hint, warning=True))
    if lines:
        return lines
    files = "any number of" if soft is None else f"{soft:,}"
    return [Check("limits", host, True, f"{files} open files, memory that may be locked: {_bytes(locked)}")]


def _check_shm(host: str, measured: Measured) -> list[Check]:
    shm = measured.get("shm")
    if shm is None:
        message = f"/dev/shm on {host} is missing or cannot be written: a DataLoader with workers fails there."
        return [Check("shm", host, True, message, "Set `num_workers=0` in the script.", warning=True)]
    if shm["free"] < SHM_LEAST:
        message = f"only {shm['free'] >> 20} MiB of shared memory (/dev/shm) are free on {host}."
        hint = "A DataLoader's workers or NCCL may end with a bus error; in a container give it more (--shm-size)."
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
        message = f"{who} has no spare memory left to replace what is broken (row remapping failed)."
        return [Check("gpu", host, False, message, "Choose another GPU; this one wants to be exchanged.")]
    lines = []
    reset = f"Let its administrator reset it: `nvidia-smi --gpu-reset -i {gpu['index']}`; or choose another."
    if gpu.get("repair_pending"):
        lines.append(_warn(host, f"{who} has broken memory that it replaces only when it is reset.", reset))
    if gpu.get("ecc_errors"):
        count = gpu["ecc_errors"]
        said = f"{count} uncorrectable memory error{'s' * (count > 1)}"
        lines.append(_warn(host, f"{who} has had {said} (ECC) since its driver was loaded.", reset))
    elif gpu.get("ecc_errors") is None:
        lines.append(_warn(host, f"ECC errors of {who} are unknown: it does not tell.", ""))
    xids = gpu.get("xids")
    if xids is None:
        hint = "Let its administrator look: `dmesg | grep Xid`."
        lines.append(_warn(host, f"XID errors of {who} are unknown: this user may not read the kernel's log.", hint))
    elif xids:
        which = ", ".join(str(code) for code in dict.fromkeys(xids))
        lines.append(_warn(host, f"{who} has had XID errors since the host booted: {which}.", reset))
    return lines


def _check_occupancy(host: str, gpu: Measured) -> list[Check]:
    running = gpu.get("processes", [])
    if not running:
        return []
    who = ", ".join(
        f"{_by(process)} ({process['program']}, PID {process['pid']}{_memory(process)})" for process in running
    )
    message = f"GPU {gpu['index']} of {host} is in use by {who}."
    used, all_of_it = sum(process["memory_mb"] or 0 for process in running), gpu.get("memory_mb")
    if all_of_it and used > MUCH_OF_A_GPU * all_of_it:
        return [Check("gpu", host, False, message, "Choose another GPU, wait until it is free, or ask them to end it.")]
    return [_warn(host, message, "It leaves less memory and time for this run.")]


def _by(process: Measured) -> str:
    return "somebody whom the host does not show" if process["user"] == "unknown" else str(process["user"])


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
            hint = f"`torchyard runs stop {run_id}` ends it."
            lines.append(Check("leftovers", host, True, message, hint, warning=True))
    return lines or [Check("leftovers", host, True, "nothing is left of earlier runs")]


def _warn(host: str, message: str, hint: str) -> Check:
    return Check("gpu", host, True, message, hint, warning=True)


def _bytes(number: int | None) -> str:
    return "all of it" if number is None else f"{number / 2**20:,.0f} MiB"
