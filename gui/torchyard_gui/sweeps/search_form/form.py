"""The form of a search: objective, parameters, sampler and pruner, with problems below their fields."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from torchyard_core.sweeps.model import PrunerKind, SamplerKind
from torchyard_core.sweeps.search_draft import SETTINGS_OF_PRUNER, SETTINGS_OF_SAMPLER, FieldName, SearchDraft
from torchyard_gui.sweeps.search_form.parameter_table import ParameterTable, problem_sentence
from torchyard_gui.widgets import FormRow, SectionLabel, Segmented
from torchyard_gui.widgets.input_fields import ChoiceBox
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox

NAMES = 104
"""Width in pixels of the names of fields."""


class SearchForm(QWidget):
    """The fields of a search. `changed` is emitted when the user has edited a field."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        tr = self.tr
        self.name = QLineEdit()
        self.metric_name = QLineEdit(placeholderText="loss")
        self.goal = Segmented([("minimize", tr("Minimize")), ("maximize", tr("Maximize"))])
        self.goal.setAccessibleName(tr("Goal"))
        self.parameters = ParameterTable()
        samplers = {
            SamplerKind.TPE: (tr("TPE"), tr("Learns from earlier trials where good values are. The usual choice.")),
            SamplerKind.RANDOM: (tr("Random"), tr("Draws every trial at random.")),
            SamplerKind.GRID: (tr("Grid"), tr("Tries every combination once, in random order.")),
            SamplerKind.CMA_ES: (tr("CMA-ES"), tr("Adapts a covariance matrix to earlier trials; numbers only.")),
        }
        pruners = {
            PrunerKind.NONE: (tr("None"), ""),
            PrunerKind.MEDIAN: (tr("Median"), tr("Ends trials that are worse than the median at the same step.")),
            PrunerKind.ASHA: (tr("ASHA"), tr("At each rung, only the best part of the trials continues.")),
            PrunerKind.HYPERBAND: (tr("Hyperband"), tr("As ASHA, with several brackets of rungs.")),
        }
        self._notes = {str(kind): note for kinds in (samplers, pruners) for kind, (_, note) in kinds.items()}
        self.sampler = ChoiceBox([(str(kind), text) for kind, (text, _) in samplers.items()], tr("Method"))
        self.pruner = ChoiceBox([(str(kind), text) for kind, (text, _) in pruners.items()], tr("Pruner"))
        self.trials, self.parallel = QLineEdit(), QLineEdit(placeholderText="1")
        self.rows: dict[FieldName, FormRow] = {
            ("name",): self._row(tr("Name"), self.name),
            ("metric",): self._row(tr("Metric"), self.metric_name),
            ("sampler", "kind"): self._row(tr("Method"), self.sampler),
            ("trials",): self._row(tr("Trials"), self.trials),
            ("parallel",): self._row(tr("Side by side"), self.parallel),
            ("pruner", "kind"): self._row(tr("Pruner"), self.pruner),
        }
        self.settings: dict[FieldName, QLineEdit] = {}
        for key, name, default, tip in self._setting_fields():
            field = QLineEdit(placeholderText=default)
            field.setToolTip(tip)
            self.settings[key] = field
            self.rows[key] = self._row(name, field)
        self._lay_out()
        for text in (self.name, self.metric_name, self.trials, self.parallel, *self.settings.values()):
            text.textEdited.connect(self._edited)
        for choice in (self.goal, self.sampler, self.pruner):
            choice.changed.connect(self._edited)
        self.parameters.changed.connect(self._edited)
        self.parameters.rows_changed.connect(self._set_tab_order)
        self._is_shown = False
        self._show_settings()

    @property
    def draft(self) -> SearchDraft:
        return SearchDraft(
            self.parameters.drafts,
            self.name.text(),
            self.metric_name.text(),
            self.goal.value,
            self.sampler.value,
            self.pruner.value,
            {key: field.text() for key, field in self.settings.items() if field.text()},
            self.trials.text(),
            self.parallel.text(),
        )

    def set_draft(self, draft: SearchDraft) -> None:
        """Shows a draft without emitting `changed`."""
        self._is_shown = True
        self.parameters.set_drafts(draft.parameters)
        texts = ((self.name, draft.name), (self.metric_name, draft.metric), (self.trials, draft.trials))
        for field, text in (*texts, (self.parallel, draft.parallel)):
            field.setText(text)
        for key, field in self.settings.items():
            field.setText(draft.settings.get(key, ""))
        self.goal.set_value(draft.goal)
        self.sampler.set_value(draft.sampler)
        self.pruner.set_value(draft.pruner)
        self._is_shown = False
        self._show_settings()

    def show_problems(self, problems: Mapping[FieldName, str], *, all_of_them: bool = False) -> None:
        """Shows the problem of each field. With `all_of_them`, also shows problems of new rows that the user has not
        edited.
        """
        self.parameters.show_problems(problems, all_of_them=all_of_them)
        for key, row in self.rows.items():
            row.set_problem(problem_sentence(problems[key]) if key in problems else "")

    def focus_field(self, key: FieldName) -> QWidget:
        """Moves the focus to a field and returns the field. If the field is hidden, the name field of its row takes its
        place.
        """
        field: QWidget
        if key[:1] == ("parameters",):
            rows = self.parameters.rows
            field = rows[int(key[1])].fields[str(key[2])] if len(key) == 3 else self.parameters.add
            if not field.isVisibleTo(self):
                field = rows[int(key[1])].name
        else:
            field = self.rows[key].field
        field.setFocus(Qt.FocusReason.OtherFocusReason)
        return field

    def _setting_fields(self) -> list[tuple[FieldName, str, str, str]]:
        """Returns the key, name, default and tool tip of each setting of a sampler or pruner."""
        tr = self.tr
        return [
            (
                ("sampler", "seed"),
                tr("Seed"),
                tr("at random"),
                tr("Trials that run one after another are then repeatable"),
            ),
            (("sampler", "startup_trials"), tr("Random first"), "10", tr("Number of random trials at the beginning")),
            (
                ("pruner", "startup_trials"),
                tr("Trials first"),
                "5",
                tr("Finished trials before the first trial is ended"),
            ),
            (("pruner", "warmup_steps"), tr("Warm-up steps"), "0", tr("Steps of a trial before which it is not ended")),
            (("pruner", "interval_steps"), tr("Decide every"), "1", tr("Steps between two decisions")),
            (("pruner", "min_resource"), tr("Least steps"), "1", tr("Steps of the shortest trials")),
            (("pruner", "max_resource"), tr("Most steps"), tr("measured"), tr("Steps of a complete trial")),
            (
                ("pruner", "reduction_factor"),
                tr("Keep 1 in"),
                "4",
                tr("Of this many trials, one continues at each rung"),
            ),
        ]

    def _row(self, name: str, field: QWidget) -> FormRow:
        return FormRow(name, field, name_width=NAMES)

    def _lay_out(self) -> None:
        rows, top = self.rows, Qt.AlignmentFlag.AlignTop
        goal = hbox((rows[("metric",)], 1), self.goal, spacing=10)
        goal.setAlignment(self.goal, top)
        pairs = [
            (("trials",), ("parallel",)),
            (("sampler", "seed"), ("sampler", "startup_trials")),
            (("pruner", "startup_trials"), ("pruner", "warmup_steps")),
            (("pruner", "min_resource"), ("pruner", "max_resource")),
            (("pruner", "interval_steps"), ("pruner", "reduction_factor")),
        ]
        beside = []
        for one, other in pairs:
            pair = hbox((rows[one], 1), (rows[other], 1), spacing=16)
            for key in (one, other):
                pair.setAlignment(rows[key], top)
            beside.append(pair)
        method = vbox(rows["sampler", "kind"], *beside[:2], spacing=8)
        pruner = vbox(rows["pruner", "kind"], *beside[2:], spacing=8)
        vbox(
            rows[("name",)], 2,
            SectionLabel(self.tr("Objective")), goal, 2,
            SectionLabel(self.tr("Parameters")), self.parameters, 2,
            SectionLabel(self.tr("Search")), method, 2,
            SectionLabel(self.tr("Ending bad trials early")), pruner, None,
            parent=self, margins=FLUSH, spacing=8,
        )  # fmt: skip

    def _edited(self) -> None:
        if not self._is_shown:
            self._show_settings()
            self.changed.emit()

    def _show_settings(self) -> None:
        """Shows the settings of the chosen sampler and pruner."""
        shown = {("sampler", key) for key in SETTINGS_OF_SAMPLER[SamplerKind(self.sampler.value)]}
        shown |= {("pruner", key) for key in SETTINGS_OF_PRUNER[PrunerKind(self.pruner.value)]}
        for key in self.settings:
            self.rows[key].setVisible(key in shown)
        is_tpe = self.sampler.value == SamplerKind.TPE
        self.settings["sampler", "startup_trials"].setPlaceholderText("10" if is_tpe else "1")
        is_asha = self.pruner.value == PrunerKind.ASHA
        self.settings["pruner", "reduction_factor"].setPlaceholderText("4" if is_asha else "3")
        every = self.tr("every point once")
        self.trials.setPlaceholderText(every if self.sampler.value == SamplerKind.GRID else "")
        for kind in (self.sampler, self.pruner):
            block = "sampler" if kind is self.sampler else "pruner"
            self.rows[block, "kind"].set_note(self._notes[kind.value])

    def _set_tab_order(self) -> None:
        """Makes Tab move the focus in the visual order. By default, rows that were added later would be last."""
        fields: list[QWidget] = [self.name, self.metric_name, *self.goal.findChildren(QWidget, options=_DIRECT)]
        fields += self.parameters.tab_order
        fields += [self.sampler, self.trials, self.parallel]
        fields += [field for key, field in self.settings.items() if key[0] == "sampler"]
        fields.append(self.pruner)
        fields += [field for key, field in self.settings.items() if key[0] == "pruner"]
        for before, after in pairwise(fields):
            QWidget.setTabOrder(before, after)


_DIRECT = Qt.FindChildOption.FindDirectChildrenOnly
