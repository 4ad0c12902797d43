"""Entry point of `make bench`. Runs all benchmarks, or only the benchmarks that are named as arguments.

The exit status is 1 if a promise was missed.
"""

from __future__ import annotations

import sys

from benchmarks import (
    advice,
    bookings,
    calendar_cost,
    deploy,
    first_step,
    idle_daemon,
    log_flood,
    parsers,
    placement,
    races,
    resend,
    restart,
    slurm,
)
from benchmarks.training import (
    diloco_wire,
    killed_groups,
    learning,
    lost_workers,
    low_communication,
    rejoin,
    roles,
    roles_cost,
    roles_on_gpus,
    roles_sharded,
    slow_group,
)
from benchmarks.window import bookings_page, canvas, first_paint, runs_page

BENCHMARKS = {
    "deploy": deploy.main,
    "first_step": first_step.main,
    "resend": resend.main,
    "restart": restart.main,
    "slurm": slurm.main,
    "log_flood": log_flood.main,
    "idle_daemon": idle_daemon.main,
    "first_paint": first_paint.main,
    "canvas": canvas.main,
    "runs_page": runs_page.main,
    "roles": roles.main,
    "roles_cost": roles_cost.main,
    "low_communication": low_communication.main,
    "roles_on_gpus": roles_on_gpus.main,
    "roles_sharded": roles_sharded.main,
    "lost_workers": lost_workers.main,
    "rejoin": rejoin.main,
    "diloco_wire": diloco_wire.main,
    "learning": learning.main,
    "slow_group": slow_group.main,
    "killed_groups": killed_groups.main,
    "parsers": parsers.main,
    "races": races.main,
    "placement": placement.main,
    "advice": advice.main,
    "bookings": bookings.main,
    "bookings_page": bookings_page.main,
    "calendar_cost": calendar_cost.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark {unknown[0]}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    promises = [promise for name in names or BENCHMARKS for promise in BENCHMARKS[name]()]
    print()
    for promise in promises:
        print(promise)
    return 0 if all(promise.is_kept for promise in promises) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
