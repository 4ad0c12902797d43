"""Edits a topology: swaps and unpins chips, types text, applies a preset without reducers, and undoes all steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint, QPointF
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QApplication, QDialog, QPushButton

from tests.window.user import User
from torchyard_gui.topology.page import TopologyPage

DESIGN = """\
# Drawn by hand
version: 1
name: drawn
strategy:
  kind: reduction_server
pools:
  - {name: workers, role: worker, replicas: 4, gpus: 1}
  - {name: reducers, role: reducer, replicas: 3}
program:
  script: train.py
"""
FLEET = """\
version: 1
hosts:
  - {name: gpu-a, address: gpu-a.invalid}
  - {name: gpu-b, address: gpu-b.invalid}
"""


def prepare(home: Path) -> None:
    """Writes a fleet file with two hosts that are never contacted, a topology file, and the topology's script."""
    home.mkdir()
    (home / "fleet.yaml").write_text(FLEET)
    (home / "drawn.yaml").write_text(DESIGN)
    (home / "train.py").write_text("print('hello')\n")


def journey(user: User) -> None:
    page = user.show_page("topology")
    home: Any = user.arguments[0]
    user.gui(lambda: page.open(home.path / "drawn.yaml"))
    user.expect(lambda: len(page.scene.names) == 7, "the topology is drawn")
    racks = rack_places(user, page)
    user.picture("1-opened")

    drag_and_swap(user, page)
    type_in_the_text(user, page)
    apply_a_preset(user, page)

    # All edits share one undo stack, so the same key on the canvas undoes all of them.
    user.click(page.view.viewport(), QPoint(40, 300))
    for _ in range(12):
        if user.gui(lambda: page.editor.stack.canUndo()):
            user.key("ctrl+z")
    user.expect(lambda: not page.editor.stack.canUndo(), "all steps are undone")
    assert user.gui(lambda: page.document.text) == DESIGN
    assert not user.gui(lambda: page.document.is_modified)
    user.key("ctrl+e")
    user.expect(lambda: places(page) == racks, "the racks are where they were")
    user.picture("8-undone")


def drag_and_swap(user: User, page: TopologyPage) -> None:
    first, second = user.gui(lambda: [where(page, name) for name in ("worker-0", "worker-1")])
    start = chip(user, page, "worker-0")
    user.drag(start, chip(user, page, "worker-1"), release=False)
    user.expect(lambda: "swap with worker-1" in getattr(page.view.gesture, "caption", ""), "the swap is announced")
    user.picture("2-swap")
    user.release()
    user.expect(lambda: (where(page, "worker-0"), where(page, "worker-1")) == (second, first), "they swap")
    # When a chip is dropped outside the racks, its pin is removed and the planner places the replica.
    user.drag(chip(user, page, "worker-0"), empty_place(user, page))
    user.expect(lambda: where(page, "worker-0") == first, "unpinned")
    user.expect(lambda: page.document.value.pins == {}, "no pins are left")


def type_in_the_text(user: User, page: TopologyPage) -> None:
    user.key("ctrl+e")
    user.expect(page.yaml.isVisible, "the text is shown")
    view = page.yaml.view
    count = "role: worker, replicas: "
    user.click(view.viewport(), caret(user, page, count + "4"))
    user.key("BackSpace", "x")
    user.expect(lambda: view.marked_lines() == [7], "the error is marked at its line")
    user.expect(lambda: page.yaml.strip.text.text().startswith("Line 7: replicas must be"), "its sentence")
    assert user.gui(lambda: page.document.value.pools[0].replicas) == 4
    user.picture("3-error")
    user.key("BackSpace", "5")
    user.expect(lambda: "worker-4" in page.scene.names, "the corrected text is drawn")
    user.expect(lambda: view.marked_lines() == [], "the mark is gone")
    user.click(view.viewport(), caret(user, page, "# Drawn by hand"))
    user.type(", my words")
    user.expect(lambda: "# Drawn by hand, my words" in page.document.text, "a comment is kept")
    user.picture("4-corrected")
    user.key("ctrl+z")
    user.expect(lambda: view.text == page.document.shown_text and "my words" not in view.text, "undo in the text")
    user.key("ctrl+y")
    user.expect(lambda: "my words" in view.text, "redo in the text")
    user.key("Escape")
    user.expect(page.view.hasFocus, "Esc leaves the text")


def apply_a_preset(user: User, page: TopologyPage) -> None:
    user.key("a")
    user.expect(page.palette_.search.hasFocus, "the palette is searched")
    user.type("downp")
    user.picture("5-search")
    user.key("Escape")
    user.expect(lambda: page.palette_.search.text() == "" and page.palette_.search.hasFocus(), "Esc clears the search")
    user.type("downpour")
    user.key("Return")
    user.expect(lambda: question() is not None, "the preset asks about reducers")
    user.picture("6-preset")
    user.click(user.gui(lambda: next(one for one in dialog().findChildren(QPushButton) if one.text() == "Remove them")))
    user.expect(
        lambda: [pool.role.value for pool in page.document.value.pools] == ["worker", "ps"], "reducers are gone"
    )
    user.expect(lambda: "asynchronous" in page.view.legend_texts, "the legend follows")
    assert "# Drawn by hand, my words" in user.gui(lambda: page.document.text)
    user.picture("7-downpour")


def question() -> QDialog | None:
    shown = [one for one in QApplication.topLevelWidgets() if isinstance(one, QDialog) and one.isVisible()]
    return next((one for one in shown if one.windowTitle() == "Remove 3 reducers?"), None)


def dialog() -> QDialog:
    found = question()
    assert found is not None
    return found


def where(page: TopologyPage, name: str) -> str:
    content = page.scene.chip(name)
    assert content is not None
    return f"{content.host}:{content.gpus}"


def rack_places(user: User, page: TopologyPage) -> dict[str, Any]:
    return user.gui(lambda: places(page))


def places(page: TopologyPage) -> dict[str, Any]:
    return {host: page.scene.rect_of_rack(host).topLeft().toTuple() for host in page.scene.hosts}


def chip(user: User, page: TopologyPage, name: str) -> QPoint:
    return user.gui(lambda: on_screen(page, page.scene.rect_of(name).center()))


def on_screen(page: TopologyPage, point: QPointF) -> QPoint:
    return page.view.viewport().mapToGlobal(page.view.mapFromScene(point))


def empty_place(user: User, page: TopologyPage) -> QPoint:
    return user.gui(lambda: page.view.viewport().mapToGlobal(QPoint(60, page.view.viewport().height() - 120)))


def caret(user: User, page: TopologyPage, after: str) -> QPoint:
    """Returns the point in the text directly after the string `after`."""

    def find() -> QPoint:
        cursor = QTextCursor(page.yaml.view.document())
        cursor.setPosition(page.yaml.view.text.index(after) + len(after))
        return page.yaml.view.cursorRect(cursor).center()

    return user.gui(find)
