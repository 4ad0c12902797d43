"""The list of runs, live runs first. Each row shows the state, the name and the times of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QObject, QRect, QSize
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyleOptionViewItem

from torchyard_core.launch.runs.annotations import Annotation
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.bridge.run_state_types import when
from torchyard_gui.runs.labels import mark_of, moment_in_full, state_word
from torchyard_gui.runs.run_titles import restart_of, start_of, title_of
from torchyard_gui.widgets.elided_text import RIGHT, draw_elided
from torchyard_gui.widgets.run_rows import RUN, Index, RunRowDelegate, RunRows, ink_of, state_as_of

ROW, HEADING = 48, 28


class RunListModel(RunRows):
    """A list model with one row for each run and each heading."""

    def __init__(self, parent: QObject | None = None):
        super().__init__(parent)
        self._all: tuple[KnownRun, ...] = ()
        self._filter = ""
        self._annotations: dict[str, Annotation] = {}

    def set_runs(self, runs: Sequence[KnownRun], annotations: Mapping[str, Annotation]) -> None:
        """Sets the runs and their notes."""
        self._all = tuple(runs)
        self._annotations = dict(annotations)
        self._arrange()

    def set_filter(self, text: str) -> None:
        """Shows only the runs whose name, ID, hosts, state, tags (`#baseline`) or note contain `text`."""
        self._filter = text.strip().lower()
        self._arrange()

    def first_run(self) -> KnownRun | None:
        return next((run for run in self._rows if isinstance(run, KnownRun)), None)

    def spoken(self, run: KnownRun) -> Sequence[str]:
        restart = restart_of(run, self._all)
        return title_of(run, self._all), self.state_of(run), restart, self.tags_of(run), run.run_id

    def tip(self, run: KnownRun) -> Sequence[str]:
        again = self.tr("Restart of {run}").format(run=run.restarted_from) if run.restarted_from else ""
        return (
            title_of(run, self._all),
            self.details_of(run),
            run.run_id,
            again,
            " ".join(run.hosts),
            moment_in_full(when(run.submitted)),
            "" if run.state == "failed" else run.reason,
            self._annotations.get(run.run_id, Annotation()).text,
        )

    def state_of(self, run: KnownRun) -> str:
        """Returns the name of the state. If the state may be outdated, adds the time of the last contact."""
        return state_as_of(run, state_word(run.state))

    @property
    def runs(self) -> tuple[KnownRun, ...]:
        """All runs, including those that the filter hides."""
        return self._all

    def tags_of(self, run: KnownRun) -> str:
        """Returns the tags of a run, such as `#baseline #lr-3`."""
        return " ".join(f"#{tag}" for tag in self._annotations.get(run.run_id, Annotation()).tags)

    def details_of(self, run: KnownRun) -> str:
        """Returns the second line of a row: the state, the reason for a failure, and then less important details."""
        hosts = run.hosts[0] if len(run.hosts) == 1 else self.tr("{count} hosts").format(count=len(run.hosts))
        reason = run.reason if run.state == "failed" else ""
        parts = self.state_of(run), reason, self.time_of(run)[1], self.tags_of(run), restart_of(run, self._all)
        return " · ".join(part for part in (*parts, "" if reason else hosts) if part)

    def time_of(self, run: KnownRun) -> tuple[str, str]:
        """Returns the start of a run as two texts: one beside the name, and one for the line of details.

        Beside the name, there is no space for a day with a time, or for an ID. A day and a time are therefore split
        between the two texts, and an ID is the second text. Either text may be empty.
        """
        start = start_of(run, self._all)
        if start == run.run_id:
            return "", start
        day, _, clock_text = start.rpartition(" ")
        return (day, clock_text) if ":" in clock_text and day else (f"{day} {clock_text}".strip(), "")

    def _text(self, run: KnownRun) -> str:
        """Returns the text that the filter searches, in lower case."""
        about = self._annotations.get(run.run_id, Annotation()).text
        return f"{run.name} {run.run_id} {' '.join(run.hosts)} {run.state} {run.primary} {about}".lower()

    def _arrange(self) -> None:
        shown = [run for run in self._all if self._filter in self._text(run)]
        live = [run for run in shown if not run.has_ended]
        past = [run for run in shown if run.has_ended]
        rows: list[KnownRun | str] = []
        if live:
            rows += [self.tr("Live"), *live]
        if past:
            rows += [self.tr("Past"), *past]
        self.set_rows(rows)


class RunDelegate(RunRowDelegate):
    """Paints the row of a run: a mark, the name and start, and a line with details."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, ROW if index.data(RUN) else HEADING)

    def mark_of(self, run: KnownRun) -> str:
        return mark_of(run.state)

    def paint_texts(self, painter: QPainter, line: QRect, index: Index, run: KnownRun) -> None:
        model = index.model()
        assert isinstance(model, RunListModel)
        time_text, _ = model.time_of(run)
        time_width = draw_elided(painter, line, time_text, "small", "text3", RIGHT)
        draw_elided(painter, line.adjusted(0, 0, -time_width - 8, 0), run.name or run.run_id, "strong", "text")
        draw_elided(painter, line.translated(0, 19), model.details_of(run), "small", ink_of(run))
