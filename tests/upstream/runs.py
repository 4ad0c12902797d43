"""Launches loops with `torchyard run` on this computer, and judges their results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from tests.fork_server import ForkServer
from tests.lab.desktop import Desktop
from tests.upstream import reference
from tests.upstream.reference import LOOPS, RESULTS
from tests.warm_python import write_client
from torchyard_roles import errors

TOLERANCE = 1e-10
"""The largest allowed difference between a synchronous run and the reference, in double precision."""
PATIENCE_S = 170
STRATEGIES = {
    "all_reduce": ("{kind: all_reduce}", None),
    "reduction_server": ("{kind: reduction_server}", "{name: reducers, role: reducer, replicas: 2}"),
    "sandblaster": ("{kind: sandblaster}", "{name: servers, role: ps, replicas: 2}"),
    "downpour": ("{kind: downpour, worker_groups: 2}", "{name: servers, role: ps, replicas: 1}"),
}
"""For each strategy, the strategy block of the topology and the additional pool that the strategy needs."""
WORKERS = (2, 3)
PACE = {"UPSTREAM_RATE": "0.3", "UPSTREAM_PASSES": "4"}
"""Environment variables with which loops take more and smaller steps, for asynchronous groups."""
SILENT_FAULTS = {"plateau_of_each"}
"""Loops whose ranks diverge because of a defect in the script. If such a run continued, its result would silently be
wrong.
"""
CONSEQUENCES = {"PeerLost", "StoreLost", "StoreTimeout", "ProtocolError"}
"""Torchyard's errors that are consequences of another error, and therefore do not explain why a loop cannot work."""

Cell = tuple[str, str, int]
"""A loop, a strategy and a number of workers."""
FAULT = "torchyard: this is a fault in Torchyard itself"

_LAST_LINE = re.compile(r"exited with \d+; its last line was: torchyard: (.*?)\s*$", re.MULTILINE)
"""Matches the last line of the error output if Torchyard refuses a script while it exits, when an exception can no
longer be raised.
"""
_END = re.compile(r"exited with \d+: (?:\w+\.)*(\w+): (.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run, with details.

    `outcome` is `equal`, `learns`, `agrees` or `refused`, or a defect: `different`, `diverging`, `fails` or `hangs`.
    """

    outcome: str
    sentence: str = ""
    difference: float = 0.0

    @property
    def is_defect(self) -> bool:
        return self.outcome not in ("equal", "learns", "agrees", "refused")


def names() -> list[str]:
    """Returns the names of all loops."""
    return sorted(path.stem for path in LOOPS.glob("*.py") if path.stem != "experiment")


def make_references(cells: Iterable[Cell], folder: Path) -> None:
    """Computes the reference results of the given cells, each in its folder.

    Loops with silent faults have a reference only for downpour.
    """
    for place, (loop, strategy, workers) in {reference_of(folder, cell): cell for cell in cells}.items():
        if strategy == "downpour":
            with _environment(PACE):
                reference.run(loop, workers, place, alone=True)
        elif loop not in SILENT_FAULTS:
            reference.run(loop, workers, place)


def reference_of(folder: Path, cell: Cell) -> Path:
    loop, strategy, workers = cell
    return folder / loop / ("alone" if strategy == "downpour" else "together") / str(workers)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


class Computer:
    """This computer as the only host, with a separate home folder for the user."""

    def __init__(self, folder: Path, python: str) -> None:
        self._desktop = Desktop(folder)
        self._folder = folder
        self._desktop.fleet_file.write_text(
            f"version: 1\nhosts:\n  - {{name: this-computer, local: true, python: {python}}}\n"
        )

    def run(self, loop: str, strategy: str, workers: int) -> tuple[subprocess.CompletedProcess[str] | None, Path]:
        """Runs a loop with `torchyard run`. Returns the result of the command, or None if it did not exit, and the
        folder with the loop's results.
        """
        folder = self._folder / f"{loop}-{strategy}-{workers}"
        folder.mkdir()
        kind, more = STRATEGIES[strategy]
        topology = folder / "topology.yaml"
        environment = {"OMP_NUM_THREADS": "1", RESULTS: str(folder), **(PACE if strategy == "downpour" else {})}
        topology.write_text(
            f"version: 1\nname: {loop}\nstrategy: {kind}\npools:\n"
            f"  - {{name: workers, role: worker, replicas: {workers}}}\n"
            + (f"  - {more}\n" if more else "")
            + f"program:\n  script: {loop}.py\n  workdir: {LOOPS}\n  max_restarts: 0\n  stop_grace_s: 3\n"
            f"  env: {json.dumps(environment)}\n"
        )
        try:
            done = self._desktop.torchyard("run", "-y", topology, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            done = None
        if done is None or FAULT in done.stderr:
            self._desktop.torchyard("runs", "stop", "last", "--force")
        return done, folder

    def close(self) -> None:
        done = self._desktop.torchyard("undeploy", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        self._desktop.close()


@contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Yields a Python for this computer that forks scripts from a process that has imported torch. Requires root."""
    with ExitStack() as stack:
        fork_server = ForkServer({**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}, "tests.lab.torch_imports")
        stack.callback(fork_server.close)
        fork_server.serve(write_client(folder), os.getpid())
        stopped = threading.Event()
        hearing = threading.Thread(target=_serve_exit_statuses, args=(fork_server, stopped))
        hearing.start()
        stack.callback(hearing.join)
        stack.callback(stopped.set)
        yield str(folder / "python")


def _serve_exit_statuses(fork_server: ForkServer, stopped: threading.Event) -> None:
    """Reads the exit statuses that the fork server reports. If they were not read, the server would block."""
    while not stopped.wait(0.5):
        fork_server.receive_pending()


def judge(
    loop: str,
    strategy: str,
    workers: int,
    done: subprocess.CompletedProcess[str] | None,
    results: Path,
    expected: Path,
) -> Verdict:
    """Returns the verdict on a run, from its end and from the comparison of its results with the reference.

    For downpour, the reference's ranks have trained separately, and the run must only have learned.
    """
    if done is None:
        return Verdict("hangs", f"after {PATIENCE_S} s")
    if done.returncode != 0:
        return _judge_failure(done)
    found = [_load(results, rank) for rank in range(workers)]
    if any(each is None for each in found):
        return Verdict("fails", "a rank ended with 0 and wrote no result")
    ours: list[dict[str, Any]] = [each for each in found if each is not None]
    numbers = [value for each in ours for value in [*each["parameters"].values(), each["losses"], each["numbers"]]]
    if not all(value.isfinite().all() for value in numbers):
        return Verdict("diverging", "a parameter or a loss is not finite")
    if strategy != "downpour" and loop in SILENT_FAULTS:
        between = (each for rank in range(workers) for each in _differences(ours[rank], ours[0], "parameters", rank))
        difference, where = max(between, key=itemgetter(0))
        return Verdict("different", where, difference) if difference else Verdict("agrees")
    theirs = [_load(expected, rank) for rank in range(workers)]
    assert all(each is not None for each in theirs), expected
    if strategy == "downpour":
        return _judge_learning(ours, theirs)
    difference, where = max(
        (each for rank in range(workers) for each in differences(ours[rank], theirs[rank] or {}, rank)),
        key=itemgetter(0),
    )
    if difference > TOLERANCE:
        return Verdict("different", where, difference)
    return Verdict("equal", "", difference)


def differences(ours: dict[str, Any], theirs: dict[str, Any], rank: int) -> Iterator[tuple[float, str]]:
    """Yields the largest difference and the name of each tensor. A missing tensor has an infinite difference.

    Buffers are compared only on rank 0.
    """
    for kind in ("parameters", "buffers") if rank == 0 else ("parameters",):
        yield from _differences(ours, theirs, kind, rank)
    for kind in ("losses", "numbers"):
        yield _difference(ours[kind], theirs[kind]), f"the {kind} of rank {rank}"


def _differences(ours: dict[str, Any], theirs: dict[str, Any], kind: str, rank: int) -> Iterator[tuple[float, str]]:
    for name in sorted(ours[kind].keys() ^ theirs[kind].keys()):
        yield float("inf"), f"the name {name} in the {kind} of rank {rank}"
    for name in ours[kind].keys() & theirs[kind].keys():
        yield _difference(ours[kind][name], theirs[kind][name]), f"{name} of rank {rank}"


def _difference(value: torch.Tensor, other: torch.Tensor) -> float:
    if value.shape != other.shape:
        return float("inf")
    return float((value.double() - other.double()).abs().max()) if value.numel() else 0.0


def _judge_failure(done: subprocess.CompletedProcess[str]) -> Verdict:
    said = done.stdout + done.stderr
    if FAULT in said:
        return Verdict("fails", said[said.index(FAULT) :].strip())
    refusals = {name for name, each in vars(errors).items() if isinstance(each, type)} - CONSEQUENCES
    end = said.rpartition("✗ run ")[2]
    ends, last_line = _END.findall(end), _LAST_LINE.search(end)
    if last_line is not None:
        return Verdict("refused", last_line[1])
    if ends and ends[-1][0] in refusals:
        return Verdict("refused", ends[-1][1])
    return Verdict("fails", f"{ends[-1][0]}: {ends[-1][1]}" if ends else said[-400:])


def _judge_learning(found: list[dict[str, Any]], alone: list[dict[str, Any] | None]) -> Verdict:
    for rank, each in enumerate(found):
        if max(difference for difference, _ in _differences(each, alone[rank] or {}, "parameters", rank)) < TOLERANCE:
            return Verdict("different", f"rank {rank} has trained alone")
        # A worker group that begins late starts from parameters that were already trained by other groups, so its first
        # loss may already be low.
        losses, untrained = each["losses"], (alone[rank] or {})["losses"]
        part = max(1, len(losses) // 4)
        first, last = untrained[: max(1, part // 2)].mean().item(), losses[-part:].mean().item()
        if last >= first:
            return Verdict("diverging", f"rank {rank}'s loss went from {first:.4f} to {last:.4f}")
    return Verdict("learns")


def _load(folder: Path, rank: int) -> dict[str, Any] | None:
    file = folder / f"rank-{rank}.pt"
    if not file.exists():
        return None
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
