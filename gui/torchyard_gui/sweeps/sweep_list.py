"""The list of sweeps, each with its state, name and best value."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PySide6.QtCore import QObject, QRect, QSize
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyleOptionViewItem

from torchyard_core.formatting import day_and_clock, since
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.labels import amount, mark_of, sweep_state
from torchyard_gui.widgets.elided_text import draw_elided
from torchyard_gui.widgets.run_rows import RUN, Index, RunRowDelegate, RunRows, ink_of

ROW, LINE = 64, 18


class SweepListModel(RunRows):
    """A list model with one row for each sweep."""

    def __init__(self, model: SweepsModel, parent: QObject | None = None):
        super().__init__(parent)
        self._model = model

    def spoken(self, run: KnownRun) -> Sequence[str]:
        return run.name, self.progress_of(run), self.best_of(run), self.continued(run), run.run_id

    def tip(self, run: KnownRun) -> Sequence[str]:
        return run.name, self.progress_of(run), self.best_of(run), self.continued(run), run.run_id, run.reason

    def progress_of(self, run: KnownRun) -> str:
        """Returns the state of a sweep and the number of its trials that have ended."""
        table = self._model.table(run.run_id)
        if table is None:
            return sweep_state(run)
        done = table.count("complete", "failed", "pruned")
        text = self.tr("{state} · {done} of {wanted}")
        return text.format(state=sweep_state(run), done=done, wanted=table.wanted)

    def best_of(self, run: KnownRun) -> str:
        """Returns the best value of a sweep, if known, and the age of the sweep."""
        table = self._model.table(run.run_id)
        best = table.best if table is not None else None
        found = f"{table.metric} {amount(best.value)}" if table is not None and best is not None else ""
        return " · ".join(part for part in (found, since(run.submitted)) if part)

    def continued(self, run: KnownRun) -> str:
        """Returns a text that identifies the sweep that `run` continues by its submission time or, if that time is
        unknown, by its ID.

        Returns "" if `run` continues no sweep.
        """
        if not run.restarted_from:
            return ""
        before = self._model.sweep(run.restarted_from)
        start = when(before.submitted) if before is not None else None
        which = run.restarted_from if start is None else day_and_clock(start, time.time())
        return self.tr("continues {sweep}").format(sweep=which)


class SweepDelegate(RunRowDelegate):
    """Paints the row of a sweep: a mark, the name, its progress, its best value, and the sweep that it continues."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        run: KnownRun = index.data(RUN)
        return QSize(100, ROW + LINE if run.restarted_from else ROW)

    def mark_of(self, run: KnownRun) -> str:
        return mark_of(run.state)

    def paint_texts(self, painter: QPainter, line: QRect, index: Index, run: KnownRun) -> None:
        model = index.model()
        assert isinstance(model, SweepListModel)
        draw_elided(painter, line, run.name or run.run_id, "strong", "text")
        draw_elided(painter, line.translated(0, LINE), model.progress_of(run), "small", ink_of(run))
        draw_elided(painter, line.translated(0, 2 * LINE), model.best_of(run), "small", "text2")
        draw_elided(painter, line.translated(0, 3 * LINE), model.continued(run), "small", "text2")
