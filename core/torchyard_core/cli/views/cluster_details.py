"""The output of `hosts check` about a cluster."""

from __future__ import annotations

from torchyard_core.cli.output import as_called, say, table
from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.formatting import memory

HEADINGS = ("NODES", "CPUS", "MEMORY", "GPUS", "STATES")


def print_cluster(found: ClusterCheck) -> None:
    """Prints a cluster's version and settings, its nodes by shape, its limits, and its problems."""
    if found.description is not None:
        _print_description(found)
    else:
        say(f"{found.name}: {found.state}")
    for problem in found.problems:
        say(as_called(problem.sentence()))


def _print_description(found: ClusterCheck) -> None:
    assert found.description is not None
    about, settings = found.description.answer, found.description.answer["settings"]
    names = [one["name"] + (" (default)" if one["default"] else "") for one in about["partitions"]]
    say(f"{found.name}: {found.state}, Slurm {about['version']}, agent {found.description.agent}")
    say(f"partitions: {', '.join(names) or 'none'}")
    where = f" of {found.partition}" if found.partition else ""
    rows = [
        [
            str(shape["count"]),
            str(shape["cpus"]),
            memory(shape["memory_mb"]),
            " ".join(f"{count} x {kind or 'GPU'}" for kind, count in shape["gpus"].items()) or "-",
            ", ".join(f"{count} {state}" for state, count in shape["states"].items()),
        ]
        for shape in about["nodes"]
    ]
    if rows:
        say(f"nodes{where}:")
        table(HEADINGS, rows)
    for limit in about["limits"]:
        say("limits: " + ", ".join(f"{name} {value}" for name, value in limit.items()))
    graces = [f"{one['name']} {one['grace_s']:.0f} s" for one in about["partitions"] if one["grace_s"]]
    signal = "with" if settings["preempt_send_user_signal"] else "without"
    wait = "unknown" if settings["KillWait"] is None else f"{settings['KillWait']:.0f} s"
    preemption = f"preemption {settings['PreemptMode'] or 'off'} {signal} preempt_send_user_signal"
    lost = f"SlurmdTimeout {settings['SlurmdTimeout'] or 0:.0f} s"
    say(f"KillWait {wait}, GraceTime {', '.join(graces) or '0'}, {preemption}, {lost}, {settings['ProctrackType']}")
    works = {"reservations": about["reservations"], "sacct": about["sacct"], "srun --overlap": about["overlap"]}
    abilities = [f"{what} {'works' if able else 'does not work'}" for what, able in works.items()]
    say(f"{', '.join(abilities)}, home on {about['home']['file_system'] or 'an unknown file system'}")
