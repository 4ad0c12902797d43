"""Benchmark of `diloco` while one worker group is killed each minute: useful steps, and pauses of the other groups.

There are four groups of one worker on four hosts of the lab. A step sleeps instead of computing, so that a busy machine
hardly affects the measurement. Each minute, the worker of the next group is killed with SIGKILL, and its keeper starts
it again. The chief's group is not spared. *Goodput* is the number of steps that became part of an average, divided by
the number of steps that four groups take in the same time without any loss or exchange.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise

from benchmarks.harness import Promise, record, show
from benchmarks.training.roles import Arms, on_lab

GROUPS = 4
INNER_STEPS = 20
COMPUTE_S = 0.1
KILLS = 10
EVERY_S = 60.0
START_S = 45.0
"""Time in seconds within which all groups must have started. The measurement begins after this time."""
GOODPUT = 0.88
PAUSE_S = 1.0


def kill_in_turn(arms: Arms, began: float, killed: list[tuple[int, float]]) -> None:
    """Kills a worker of the next group in the middle of each interval, and records the group and the time."""
    hosts = arms.hosts
    for number in range(KILLS):
        time.sleep(max(0.0, began + (number + 0.5) * EVERY_S - time.time()))
        group = number % GROUPS
        hosts[group].exec(["pkill", "-KILL", "-f", "paced_groups.py"], check=True)
        killed.append((group, time.time()))


def goodput(times: list[list[float]], killed: list[tuple[int, float]], began: float, until: float) -> float:
    """Returns the goodput, as a fraction of the steps without losses and exchanges.

    Args:
        times: The times of each process's steps, in seconds since 1970.
    """
    own = statistics.median(after - before for each in times for before, after in pairwise(each))
    done = sum(began <= step < until for each in times for step in each)
    ends = sorted(each[-1] for each in times)
    lost = sum(len(each) % INNER_STEPS for each in times if each[-1] in ends[: len(killed)])
    return (done - lost) * own / (GROUPS * (until - began))


def measure(arms: Arms) -> list[Promise]:
    began = time.time() + START_S
    until = began + KILLS * EVERY_S
    killed: list[tuple[int, float]] = []
    killer = threading.Thread(target=kill_in_turn, args=(arms, began, killed), daemon=True)
    killer.start()
    strategy = {"kind": "diloco", "inner_steps": INNER_STEPS}
    options = ("--until", until, "--compute", COMPUTE_S)
    files = arms.files("steps-*.txt", "paced_groups.py", strategy, {"worker": GROUPS}, *options, max_restarts=2 * KILLS)
    killer.join()
    times = [steps for file in files if (steps := [float(line) for line in file.read_text().split()])]
    assert len(killed) == KILLS
    assert len(times) == GROUPS + KILLS, "each killed worker was started again"
    pauses = [after - before for each in times for before, after in pairwise(each[1:])]
    found = {"longest pauses": sorted(pauses)[-5:]}
    show(f"{GROUPS} groups, one killed every {EVERY_S:g} s", found)
    promises = [
        Promise("loss of goodput", 1 - goodput(times, killed, began, until), 1 - GOODPUT),
        Promise("longest pause between two steps", max(pauses), PAUSE_S, "s"),
    ]
    record("killed_groups", found, promises)
    return promises


def main() -> list[Promise]:
    return on_lab(GROUPS, measure)


if __name__ == "__main__":
    main()
