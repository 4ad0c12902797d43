"""The team's rules: shown to all, changed by admins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from torchyard_core.booking.rules.team_rules import EVERYBODY, Rules, Window
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_gui.bookings import labels
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.widgets import FormRow, label

NAMES = 176


class RulesDialog(QDialog):
    """Closes once the store has the new rules."""

    def __init__(self, model: BookingsModel, parent: QWidget | None = None):
        super().__init__(parent)
        self.model = model
        self.setWindowTitle(self.tr("Rules"))
        self.setMinimumWidth(560)
        rules = model.seen.rules
        texts = as_fields(rules)
        titles = {
            "shortest_min": self.tr("Shortest booking, min"),
            "longest_h": self.tr("Longest booking, h"),
            "furthest_days": self.tr("Furthest ahead, days"),
            "quota_gpu_hours": self.tr("GPU-hours a person and week"),
            "quotas": self.tr("Other quotas"),
            "idle_release_min": self.tr("Idle bookings free after, min"),
            "zone": self.tr("Time zone of weeks"),
            "groups": self.tr("Groups"),
            "windows": self.tr("Open times"),
        }
        notes = {
            "quotas": "kim=200, lee=50",
            "groups": "students: kim, lee",
            "windows": "gpu-a:* gpu-b:0 | students | Mon,Tue | 09:00-18:00 | Europe/Berlin",
        }
        self.fields: dict[str, QLineEdit | QPlainTextEdit] = {}
        self.same_day = QCheckBox(self.tr("What is booked for the same day needs no quota"))
        self.same_day.setChecked(rules.same_day_is_free)
        rows = QVBoxLayout(self)
        rows.setContentsMargins(20, 18, 20, 16)
        rows.setSpacing(8)
        rows.addWidget(label(self.windowTitle(), role="title"))
        rows.addWidget(label(self.tr("An empty field is no limit."), role="small", ink="2"))
        for name, title in titles.items():
            field: QLineEdit | QPlainTextEdit
            if name in ("groups", "windows"):
                field = QPlainTextEdit(texts[name])
                field.setFixedHeight(58)
                field.setTabChangesFocus(True)
            else:
                field = QLineEdit(texts[name])
            field.setReadOnly(not model.seen.is_admin)
            self.fields[name] = field
            note = self.tr("Such as {example}").format(example=notes[name]) if name in notes else ""
            rows.addWidget(FormRow(title, field, note, name_width=NAMES))
            if name == "quotas":
                rows.addWidget(self.same_day)
        self.same_day.setEnabled(model.seen.is_admin)
        self.problem = label(ink="fail", wrap=True)
        self.problem.hide()
        rows.addWidget(self.problem)
        buttons = QDialogButtonBox()
        self.ok = QPushButton(self.tr("Save"))
        self.ok.setProperty("primary", True)
        if model.seen.is_admin:
            buttons.addButton(self.ok, QDialogButtonBox.ButtonRole.AcceptRole)
        else:
            self.ok.hide()
            rows.insertWidget(1, label(self.tr("Only an admin can change them."), ink="2"))
        buttons.addButton(self.tr("Close"), QDialogButtonBox.ButtonRole.RejectRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        rows.addWidget(buttons)

    def accept(self) -> None:
        texts = {
            name: field.text() if isinstance(field, QLineEdit) else field.toPlainText()
            for name, field in self.fields.items()
        }
        try:
            rules = read_rules(texts, same_day_is_free=self.same_day.isChecked())
        except TorchyardError as error:
            self._failed(error)
            return
        self.ok.setEnabled(False)
        self.model.act(lambda store: store.set_rules(rules), lambda _: QDialog.accept(self), self._failed, self)

    def _failed(self, error: TorchyardError) -> None:
        self.ok.setEnabled(True)
        self.problem.setText(labels.said(error))
        self.problem.show()


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
NUMBERS = ("shortest_min", "longest_h", "furthest_days", "quota_gpu_hours", "idle_release_min")
Fields = Mapping[str, str]


def as_fields(rules: Rules) -> dict[str, str]:
    """Each rule as a text; no limit is an empty one."""
    fields = {name: "" if (value := getattr(rules, name)) is None else f"{value:g}" for name in NUMBERS}
    fields["zone"] = rules.zone
    fields["quotas"] = ", ".join(f"{person}={hours:g}" for person, hours in sorted(rules.quotas.items()))
    fields["groups"] = "\n".join(f"{name}: {', '.join(persons)}" for name, persons in sorted(rules.groups.items()))
    fields["windows"] = "\n".join(map(_window_text, rules.windows))
    return fields


def read_rules(fields: Fields, *, same_day_is_free: bool) -> Rules:
    """Raises UsageError with what cannot be read."""
    found: dict[str, Any] = {name: _number(name, fields[name]) for name in NUMBERS}
    found["zone"] = fields["zone"].strip()
    found["same_day_is_free"] = same_day_is_free
    found["quotas"] = {}
    for part in filter(None, (part.strip() for part in re.split(r"[,\n]", fields["quotas"]))):
        person, equals, hours = part.partition("=")
        if not equals or not person.strip():
            raise UsageError(f"the quota `{part}` cannot be read", code="bad_rules", hint="Write kim=200, lee=50.")
        found["quotas"][person.strip()] = _number("quota", hours)
    found["groups"] = {}
    for line in _lines(fields["groups"]):
        name, colon, persons = line.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"the group `{line}` cannot be read", code="bad_rules", hint="Write students: kim, lee.")
        found["groups"][name.strip()] = [person.strip() for person in persons.split(",") if person.strip()]
    found["windows"] = [_window(line) for line in _lines(fields["windows"])]
    return Rules.from_json(found)


def _window_text(window: Window) -> str:
    days = "never" if not window.days else "daily" if len(window.days) == 7 else ",".join(DAYS[d] for d in window.days)
    who = "everybody" if window.group == EVERYBODY else window.group
    return f"{' '.join(window.gpus)} | {who} | {days} | {window.opens}-{window.closes} | {window.zone}"


def _window(line: str) -> dict[str, Any]:
    parts = [part.strip() for part in line.split("|")]
    hint = "Write gpu-a:* | students | Mon,Tue | 09:00-18:00 | Europe/Berlin."
    if len(parts) != 5:
        raise UsageError(f"the window `{line}` has not five parts", code="bad_rules", hint=hint)
    gpus, who, days, times, zone = parts
    opens, dash, closes = times.partition("-")
    if not dash:
        raise UsageError(f"`{times}` is not a time from and to", code="bad_rules", hint=hint)
    return {
        "gpus": gpus.split(),
        "group": EVERYBODY if who == "everybody" else who,
        "days": _days(days),
        "opens": opens.strip(),
        "closes": closes.strip(),
        "zone": zone,
    }


def _days(text: str) -> list[int]:
    if text in ("daily", "never"):
        return list(range(7)) if text == "daily" else []
    names = [name.strip()[:3].title() for name in text.split(",")]
    unknown = [name for name in names if name not in DAYS]
    if unknown:
        raise UsageError(f"there is no day `{unknown[0]}`", code="bad_rules", hint="Write daily, never, or Mon,Tue.")
    return sorted(DAYS.index(name) for name in names)


def _number(name: str, text: str) -> float | None:
    text = text.strip()
    if not text and name not in ("shortest_min", "quota"):
        return None
    try:
        return float(text)
    except ValueError:
        words = name.replace("_", " ")
        raise UsageError(
            f"{words}: `{text}` is not a number", code="bad_rules", hint="Leave it empty for no limit."
        ) from None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
