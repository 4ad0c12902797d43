"""Records the ends of trials in the copy of a study, an SQLite file with Optuna's tables, without using Optuna.

This is needed when the last jobs of a sweep on a cluster have been killed or cancelled, because no process with Optuna
is left then.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_agent.sweeps import trial_outcomes

_STATES = {trial_outcomes.COMPLETE: "COMPLETE", trial_outcomes.PRUNED: "PRUNED"}


def write(file: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Records the end of each given trial that has not ended in the copy of the study.

    SQLite needs file locks, which file systems of clusters may lack, so the changes are made in a temporary folder.

    Args:
        file: The copy of the study, which is replaced.
        rows: The rows of all ended trials (`sweep_table`).

    Returns:
        The rows of the trials that had not ended in the copy, or [] if this Python has no SQLite.
    """
    try:
        import sqlite3
    except ImportError:
        return []
    with tempfile.TemporaryDirectory(prefix="torchyard-study-") as folder:
        scratch = os.path.join(folder, "study.sqlite3")
        shutil.copyfile(file, scratch)
        with contextlib.closing(sqlite3.connect(scratch)) as study, study:
            ended = [row for row in rows if _end(study.execute, row)]
        if ended:
            shutil.copyfile(scratch, f"{file}.new")
            os.replace(f"{file}.new", file)
        return ended


def _end(execute: Any, row: Mapping[str, Any]) -> bool:
    """Records the end of a trial in the tables. Returns False if they contain no such trial that has not ended."""
    unfinished = "SELECT trial_id FROM trials WHERE number = ? AND state IN ('RUNNING', 'WAITING')"
    found = execute(unfinished, (int(row["trial"]) - 1,)).fetchone()
    if found is None:
        return False
    (trial,) = found
    state = _STATES.get(row["state"], "FAIL")
    now = datetime.datetime.now().isoformat(" ")  # Optuna's times are local.
    execute("UPDATE trials SET state = ?, datetime_complete = ? WHERE trial_id = ?", (state, now, trial))
    if row["state"] == trial_outcomes.COMPLETE:
        columns = "trial_values (trial_id, objective, value, value_type)"
        execute(f"INSERT INTO {columns} VALUES (?, 0, ?, 'FINITE')", (trial, row["value"]))
    columns = "trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type)"
    for step, value in row["values"]:
        execute(f"INSERT OR IGNORE INTO {columns} VALUES (?, ?, ?, 'FINITE')", (trial, step, value))
    attributes = {"cause": row["cause"], "interrupted": row["state"] == trial_outcomes.INTERRUPTED}
    columns = "trial_user_attributes (trial_id, key, value_json)"
    for name, content in attributes.items():
        if content:
            execute(f"INSERT OR REPLACE INTO {columns} VALUES (?, ?, ?)", (trial, name, json.dumps(content)))
    return True
