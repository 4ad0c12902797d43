"""Group of the inspector, which has a heading and a row for each key of a block of the topology file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_core.topology.model import FrozenModel
from torchyard_gui.topology.inspector.fields import ChoiceField, Field
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.layouts import FLUSH, vbox
from torchyard_gui.widgets.screen_reader import announce
from torchyard_gui.widgets.text_labels import Divider, SectionLabel

NAME_WIDTH = 112
LEAST_WIDTH = 72
"""Minimum width of a field in pixels, regardless of its text. Text that does not fit is shortened or wrapped."""

Change = Callable[[str, Any, str], str]
"""Function of (key, new value, label of the key) that returns the reason for a refusal, or "" if there is none."""


def stack(groups: Sequence[QWidget], inside: QVBoxLayout) -> None:
    """Adds groups to a layout, with dividers between them."""
    for number, group in enumerate(groups):
        if number:
            inside.addWidget(Divider())
        inside.addWidget(group)


class Group(QWidget):
    """Fields for the keys of one block, or of several blocks that are edited together."""

    def __init__(self, title: str, change: Change) -> None:
        super().__init__()
        self._change = change
        self.rows: dict[str, FormRow] = {}
        self._refused: set[str] = set()
        self._problems: Mapping[str, str] = {}
        self._blocks: tuple[FrozenModel, ...] = ()
        self._layout = vbox(parent=self, margins=FLUSH, spacing=8)
        if title:
            self._layout.addWidget(SectionLabel(title))

    def add(self, key: str, label: str, field: Field, tip: str = "") -> FormRow:
        """Adds a row for a key. `tip` becomes the tool tip of the row."""
        field.setToolTip(tip)
        field.setMinimumWidth(LEAST_WIDTH)
        field.setAccessibleName(label)
        field.setAccessibleDescription(tip)
        row = FormRow(label, field, name_width=NAME_WIDTH)
        row.setToolTip(tip)
        field.committed.connect(lambda value: self._commit(key, value, label))
        field.misread.connect(lambda why: self._refuse(key, why))
        self.rows[key] = row
        self._layout.addWidget(row)
        return row

    def field(self, key: str) -> Field:
        field = self.rows[key].field
        assert isinstance(field, Field)
        return field

    def show_blocks(self, blocks: Sequence[FrozenModel]) -> None:
        self._refused.clear()
        self._blocks = tuple(blocks)
        for key, row in self.rows.items():
            self.field(key).set_values([getattr(block, key) for block in blocks])
            row.set_problem(self._problems.get(key, ""))

    def show_problems(self, problems: Mapping[str, str]) -> None:
        """Shows problems by key. If the input for a key was refused, the message about the refusal stays."""
        self._problems = problems
        for key, row in self.rows.items():
            if key not in self._refused:
                row.set_problem(problems.get(key, ""))

    def shows(self, key: str) -> bool:
        """Returns whether the group has a visible row for a key."""
        row = self.rows.get(key)
        return row is not None and not row.isHidden()

    def _commit(self, key: str, value: Any, label: str) -> None:
        self._refused.discard(key)
        if why := self._change(key, value, label):
            self._refuse(key, why)
        else:
            self.rows[key].set_problem(self._problems.get(key, ""))

    def _refuse(self, key: str, why: str) -> None:
        self._refused.add(key)
        row = self.rows[key]
        row.set_problem(why)
        announce(row, f"{row.name.text()}: {why}", urgent=True)
        if isinstance(field := self.field(key), ChoiceField):
            # A refused text stays in its field, so that the user can correct it. A refused choice is reset.
            field.set_values([getattr(block, key) for block in self._blocks])
