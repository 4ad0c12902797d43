"""A sample sweep with trials in every state, for screenshots and tests."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.sweeps.trial_table import read_table
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.sweeps.page import SweepsPage

LIVE, PAST = "20261120-151502-8c1d", "20261119-101502-77aa"
WANTED = 50
PARAMETERS = ("lr", "depth", "dropout", "optimizer")
LONG_PARAMETERS = ("encoder.attention.learning_rate", "decoder_number_of_layers", "attention_dropout", "optimizer")
TOPOLOGY = """version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 2, gpus: 1}]
program: {script: train.py, args: ['--lr={params.lr}', '--depth={params.depth}']}
"""


def sweep_data(
    run_id: str, hosts: list[str], count: int = 38, *, state: str = "running", names: tuple[str, ...] = PARAMETERS
) -> dict[str, Any]:
    """Returns the coordinator's table of a sweep with `count` trials. The same arguments return the same table."""
    draw = random.Random(7)
    began = datetime.now(UTC) - timedelta(minutes=9 * count)
    rows = [_row(draw, run_id, number, count, hosts, began, names) for number in range(1, count + 1)]
    if state != "running":
        for row in rows:
            if row["state"] == "running":
                row.update(state="interrupted", cause="the sweep was stopped", ended=row["started"])
    return {
        "run_id": run_id,
        "name": "digits-search",
        "state": state,
        "metric": "loss",
        "goal": "minimize",
        "parameters": list(names),
        "wanted": WANTED,
        "slots": [[host] for host in hosts[:2]],
        "lost": [],
        "trials": rows,
        "importances": dict(zip(names, (0.64, 0.21, 0.09, 0.06), strict=True)),
        "study": "",
    }


def _row(
    draw: random.Random,
    run_id: str,
    number: int,
    count: int,
    hosts: list[str],
    began: datetime,
    names: tuple[str, ...],
) -> dict[str, Any]:
    focus = number / count  # Later trials are closer to the best values.
    lr = 10 ** (-2.5 + draw.uniform(-1.5, 1.5) * (1.1 - focus))
    depth, dropout, optimizer = (
        draw.randint(2, 12),
        round(draw.uniform(0, 0.5), 3),
        draw.choice(["adamw", "lion", "sgd"]),
    )
    loss = 0.03 + 0.2 * abs(math.log10(lr) + 2.5) + 0.004 * abs(depth - 8) + 0.05 * dropout + draw.uniform(0, 0.02)
    state, cause = "complete", ""
    if number in (5, 17, 29):
        state = "failed"
        cause = "worker-1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
    elif number % 7 == 4:
        state = "pruned"
    elif number > count - 2:
        state = "running"
    started = began + timedelta(minutes=8.5 * number)
    ended = "" if state == "running" else (started + timedelta(seconds=draw.randint(300, 620))).isoformat()
    return {
        "trial": str(number),
        "state": state,
        "params": dict(zip(names, (lr, depth, dropout, optimizer), strict=True)),
        "value": round(loss, 4) if state in ("complete", "pruned") else None,
        "run_id": f"{run_id}.{number}",
        "hosts": [hosts[number % len(hosts)]],
        "cause": cause,
        "started": started.isoformat(),
        "ended": ended,
        "values": [] if state == "failed" else [[step, round(loss * (1 + 2 / step), 4)] for step in (1, 2, 5, 10)],
    }


def note_sweeps(runs: RunsModel, hosts: list[str]) -> None:
    """Records a live and an ended sweep in the history, as if this computer had started them."""
    for run_id, day, state, reason, before in (
        (LIVE, "20", "running", "", PAST),
        (PAST, "19", "stopped", "stopped by kim@laptop", ""),
    ):
        runs.history.save(
            RunRecord(
                run_id,
                "digits-search",
                "",
                hosts[0],
                tuple(hosts[:2]),
                submitted=f"2026-11-{day}T15:15:02Z",
                state=state,
                reason=reason,
                as_of=f"2026-11-{day}T16:15:02Z",
                topology=TOPOLOGY,
                sweep="version: 1\n",
                restarted_from=before,
            )
        )
    runs.read_history()


def show_sample_sweeps(page: SweepsPage, hosts: list[str], names: tuple[str, ...] = PARAMETERS) -> None:
    """Shows the recorded sweeps with trials. No host is contacted."""
    model = page.model
    model.update = lambda run: None  # type: ignore[method-assign]  # The pictures need no contact with hosts.
    model.runs._runs = [_answering(run) for run in model.runs.runs]  # The model has no public setter.
    model.runs.runs_changed.emit()
    for run_id, state, count in ((LIVE, "running", 38), (PAST, "stopped", 16)):
        run = model.sweep(run_id)
        assert run is not None
        model._take(run, read_table(sweep_data(run_id, hosts, count, state=state, names=names)), None)


def _answering(run: KnownRun) -> KnownRun:
    return replace(run, is_fresh=True) if run.is_sweep else run
