"""Tests that dialogs and cards show the fingerprints of host keys in a monospaced font, unclipped and selectable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.fleet.hosts import WITHIN_MS, Show
from torchyard_core.errors import KeyChanged, Unreachable
from torchyard_core.fleet.host_check import failed_check
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_status import now
from torchyard_gui.fleet.dialogs.host_key_dialogs import HostKeyDialog
from torchyard_gui.fleet.fingerprint import Fingerprint
from torchyard_gui.theme.theme import theme

KEY = "SHA256:QOyvgaqQjpgyjQqgyp0O0OQyvgajpqy1234567890ABgjpq"
OTHER = "SHA256:gjpqyQ/gjpqyQ+gjpqyQ/gjpqyQ+gjpqyQ/gjpqyQ+gjpqy"
INK = 60
"""The difference in brightness from the background at which a pixel counts as ink."""


def ink(image: QImage, rect: QRect) -> set[tuple[int, int]]:
    """Returns the pixels of the text in a rectangle."""
    ground = image.pixelColor(rect.topLeft()).lightness()
    return {
        (x - rect.left(), y - rect.top())
        for y in range(rect.top(), rect.bottom() + 1)
        for x in range(rect.left(), rect.right() + 1)
        if abs(image.pixelColor(x, y).lightness() - ground) > INK
    }


def unclipped(text: str, color: QColor, ground: QColor) -> set[tuple[int, int]]:
    """Returns the pixels of a line that is drawn with ample space around it. Positions are relative to the left end of
    its baseline.
    """
    image = QImage(800, 80, QImage.Format.Format_RGB32)
    image.fill(ground)
    painter = QPainter(image)
    painter.setFont(theme().font("mono"))
    painter.setPen(color)
    painter.drawText(QPointF(0, 40), text)
    painter.end()
    return {(x, y - 40) for x, y in ink(image, image.rect())}


def check_unclipped(field: Fingerprint, text: str) -> None:
    """Compares the pixels of each line, including the descenders, with those of an unclipped line.

    Callers repeat the check, because it fails until the layout is complete.
    """
    field.clearFocus()  # Without the focus, the field shows no caret.
    image = field.window().grab().toImage()
    rect = QRect(field.mapTo(field.window(), QPoint(0, 0)), field.size())
    drawn = ink(image, rect)
    metrics = field.fontMetrics()
    layout = field.document().firstBlock().layout()
    parts = [layout.lineAt(number) for number in range(layout.lineCount())]
    lines = [text[part.textStart() : part.textStart() + part.textLength()] for part in parts]
    assert "".join(lines) == text
    ground = image.pixelColor(rect.topLeft())
    wanted = {
        (x, y + metrics.ascent() + number * metrics.lineSpacing())
        for number, line in enumerate(lines)
        for x, y in unclipped(line, theme().color("text"), ground)
    }
    assert max(y for _, y in drawn) == max(y for _, y in wanted)  # The lowest pixels are those of descenders.
    assert len(drawn ^ wanted) <= len(wanted) * 0.02, (len(drawn - wanted), len(wanted - drawn))


@pytest.fixture
def model(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot) -> Iterator[FleetModel]:
    monkeypatch.setenv("HOME", str(tmp_path))
    home.path.mkdir(parents=True)
    home.fleet_file.write_text("version: 1\nhosts: [{name: gpu-a}, {name: gpu-b}]\n")
    made = FleetModel(home, home.fleet_file)
    yield made
    made.close()


@pytest.mark.parametrize("width", [420, 250, 120])
def test_a_fingerprint_is_drawn_whole_at_any_width(width: int, qtbot: QtBot) -> None:
    around = QWidget()
    qtbot.addWidget(around)
    field = Fingerprint("Shown")
    QVBoxLayout(around).addWidget(field)
    field.setText(KEY)
    around.resize(width, 200)
    with qtbot.waitExposed(around):
        around.show()
    assert field.fontMetrics().horizontalAdvance("i") == field.fontMetrics().horizontalAdvance("W")
    qtbot.waitUntil(lambda: check_unclipped(field, KEY), timeout=WITHIN_MS)


def test_the_dialog_of_a_changed_key_shows_both_fingerprints_whole(
    model: FleetModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ShownKey(Host(name="gpu-a"), "ssh-ed25519", KEY, "", OTHER)
    monkeypatch.setattr(model, "ask_key", lambda name, done, failed, owner=None: model.jobs.run(lambda: key, done))
    dialog = HostKeyDialog(model, "gpu-a")
    qtbot.addWidget(dialog)
    dialog.open()
    qtbot.waitUntil(dialog.on_record.isVisible, timeout=WITHIN_MS)
    with qtbot.waitExposed(dialog):
        pass
    qtbot.waitUntil(lambda: check_unclipped(dialog.shown.fingerprint, KEY), timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: check_unclipped(dialog.on_record.fingerprint, OTHER), timeout=WITHIN_MS)


def test_the_reason_why_a_key_cannot_be_trusted_is_shown_whole(
    model: FleetModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = Unreachable("gpu-a", "the address gpu-a is not known to this computer. " * 4)
    monkeypatch.setattr(model, "ask_key", lambda name, done, failed, owner=None: model.jobs.run(fail, done, failed))

    def fail() -> ShownKey:
        raise error

    dialog = HostKeyDialog(model, "gpu-a")
    qtbot.addWidget(dialog)
    dialog.open()
    qtbot.waitUntil(dialog.notice.isVisible, timeout=WITHIN_MS)
    rows = dialog.layout()
    assert rows is not None
    qtbot.waitUntil(lambda: dialog.height() >= rows.totalHeightForWidth(dialog.width()), timeout=WITHIN_MS)


def test_a_card_shows_them_whole_and_they_can_be_selected(model: FleetModel, show: Show, qtbot: QtBot) -> None:
    page = show(model)
    error = KeyChanged("gpu-b", f"the host key of gpu-b has changed: {KEY}.", fingerprint=KEY, on_record=OTHER)
    model._statuses["gpu-b"] = model._statuses["gpu-b"].checked(failed_check("gpu-b", error.state, error), now())
    model.host_changed.emit("gpu-b")
    qtbot.waitUntil(lambda: "gpu-b" in page.list._fingerprints, timeout=WITHIN_MS)
    shown, on_record = page.list._fingerprints["gpu-b"]
    qtbot.waitUntil(lambda: shown.isVisible() and on_record.y() > shown.y(), timeout=WITHIN_MS)
    card = page.list.card_rect(page.rows.index_of("gpu-b"))
    assert card.contains(shown.geometry())
    assert card.contains(on_record.geometry())
    qtbot.waitUntil(lambda: check_unclipped(shown, KEY), timeout=WITHIN_MS)
    qtbot.waitUntil(lambda: check_unclipped(on_record, OTHER), timeout=WITHIN_MS)
    qtbot.mouseDClick(shown.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(90, 8))
    assert shown.textCursor().selectedText() == KEY.partition(":")[2]
    for key in (Qt.Key.Key_A, Qt.Key.Key_C):
        qtbot.keyClick(shown, key, Qt.KeyboardModifier.ControlModifier)
    assert QApplication.clipboard().text() == KEY
    QApplication.clipboard().clear()
    page.list.choose("gpu-b")
    assert [field.text() for _, field in page.details.keys if field.isVisible()] == [KEY, OTHER]
