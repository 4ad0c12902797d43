"""Tests a topology of 1,000 replicas on 128 hosts: racks by label, the minimap, the arrangement by group, and a drag
between groups.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint, QPointF
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit

from tests.window.user import User

HOSTS, GPUS, IN_RACK, REPLICAS = 128, 8, 16, 992
ADDRESS = "127.0.0.1"
TOPOLOGY = """\
version: 1
name: big
strategy: {{kind: downpour, worker_groups: 4}}
pools:
  - {{name: workers, role: worker, replicas: {workers}, gpus: 1}}
  - {{name: servers, role: ps, replicas: {servers}, labels: {{rack: r8}}}}
program: {{launcher: torch, script: train.py}}
"""


def prepare(home: Path) -> None:
    """Writes a fleet of 128 unreachable hosts in 8 racks, all checked earlier, and a topology for them."""
    home.mkdir(parents=True)
    names = [f"n{number:03}" for number in range(HOSTS)]
    lines = [
        f"  - {{name: {name}, address: {ADDRESS}, port: 9, labels: {{rack: r{number // IN_RACK + 1}}}}}\n"
        for number, name in enumerate(names)
    ]
    (home / "fleet.yaml").write_text("version: 1\nhosts:\n" + "".join(lines))
    facts = {name: {"address": ADDRESS, "cpus": 96, "memory_gb": 384, "gpus": gpus_of(name)} for name in names}
    (home / "facts.json").write_text(json.dumps(facts))
    (home / "big.yaml").write_text(TOPOLOGY.format(workers=REPLICAS, servers=1000 - REPLICAS))
    (home / "train.py").write_text("")


def gpus_of(host: str) -> list[dict[str, object]]:
    return [
        {"index": index, "uuid": f"GPU-{host}-{index}", "name": "NVIDIA H100 80GB HBM3", "memory_mb": 81559}
        for index in range(GPUS)
    ]


def journey(user: User) -> None:
    page = user.show_page("topology")
    open_file(user, user.gui(lambda: page._hosts.fleet_file.with_name("big.yaml")))
    user.expect(lambda: len(page.scene.names) == 1000, "the topology is drawn")
    user.expect(
        lambda: list(page.scene._racks.headings) == [f"r{number}" for number in range(1, 9)], "a rack a heading"
    )
    heading = user.gui(lambda: page.scene._racks.headings["r1"].summary)
    assert heading.startswith("128 of 128 GPUs used · "), heading
    assert user.gui(lambda: page.view.minimap.isHidden()), "everything is visible"
    user.picture("big-fleet-racks")

    user.click(page.view.viewport(), user.gui(lambda: page.view.viewport().rect().center()))
    user.key("Escape", "0")
    user.expect(lambda: page.view.zoom == 1.0 and page.view.minimap.isVisible(), "the minimap appears at full size")
    drag_minimap(user, page)
    user.picture("big-fleet-minimap")
    user.key("ctrl+shift+m")
    user.expect(page.view.minimap.isHidden, "Ctrl+Shift+M hides the minimap")
    user.key("ctrl+shift+m")
    user.expect(page.view.minimap.isVisible, "Ctrl+Shift+M shows the minimap")

    user.click(user.button("By group", page.bar))
    user.expect(lambda: page.scene.by_group and page.scene.rack_count == 5, "4 worker groups and the servers")
    user.picture("big-fleet-groups")
    drag_to_group(user, page)
    user.key("ctrl+g")
    user.expect(lambda: not page.scene.by_group and page.bar.arrangement.value == "host", "Ctrl+G returns to hosts")
    user.picture("big-fleet-by-host")


def open_file(user: User, path: Path) -> None:
    user.key("ctrl+o")

    def is_asked() -> bool:
        dialog, focus = QApplication.activeWindow(), QApplication.focusWidget()
        return isinstance(dialog, QFileDialog) and isinstance(focus, QLineEdit) and dialog.isAncestorOf(focus)

    user.expect(is_asked, "Ctrl+O asks for a file")
    user.type(str(path))
    user.key("Return")


def drag_minimap(user: User, page: Any) -> None:
    map_ = page.view.minimap

    def spots() -> tuple[QPoint, QPoint]:
        far = map_.point_of(page.scene.rect_of_rack("n127").center())
        return map_.mapToGlobal(map_.visible_rect().center().toPoint()), map_.mapToGlobal(far.toPoint())

    start, end = user.gui(spots)
    user.drag(start, end)
    user.expect(lambda: shows(page, page.scene.rect_of_rack("n127").center()), "the last host is visible")


def shows(page: Any, point: QPointF) -> bool:
    view = page.view
    return bool(view.mapToScene(view.viewport().rect()).boundingRect().contains(point))


def drag_to_group(user: User, page: Any) -> None:
    def middle(name: str) -> QPoint:
        view = page.view
        return view.viewport().mapToGlobal(view.mapFromScene(page.scene.rect_of(name).center()))

    before = user.gui(lambda: page.editor.value)
    start, end = user.gui(lambda: (middle("worker-3"), middle("worker-400")))
    user.drag(start, end, release=False)
    user.expect(lambda: page.view.gesture.caption == "exchange with worker-400", "the text at the pointer")
    user.picture("big-fleet-drag")
    user.release()
    user.expect(lambda: set(page.editor.value.pins) == {"worker-3", "worker-400"}, "the two exchange their places")
    assert user.gui(lambda: page.editor.selection) == ("worker-400",)
    assert user.gui(lambda: (page.editor.value.pools, page.editor.value.strategy)) == (before.pools, before.strategy)
    user.key("ctrl+z")
    user.expect(lambda: page.editor.value == before, "Ctrl+Z takes it back")
