"""Draws sample plans to PNG files for visual inspection: `python -m tests.gui.canvas.demo FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.gui.canvas import samples
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.model import Role
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.theme.theme import theme


class Stage:
    """A scene in a view of a given size. `save` saves a picture of the view."""

    def __init__(self, folder: Path, width: int = 888, height: int = 796):
        self.folder = folder
        self.scene = TopologyScene()
        self.view = CanvasView(self.scene)
        self.view.resize(width, height)
        self.view.show()

    def carry(self, name: str, end: QPointF) -> None:
        """Drags a chip to a point of the scene without dropping it."""
        QApplication.processEvents()
        start, there = self.view.mapFromScene(self.scene.rect_of(name).center()), self.view.mapFromScene(end)
        QTest.mousePress(self.view.viewport(), Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, start)
        QTest.mouseMove(self.view.viewport(), (start + there) / 2)
        QTest.mouseMove(self.view.viewport(), there)

    def save(self, name: str) -> None:
        QApplication.processEvents()
        self.view.grab().save(str(self.folder / f"{name}.png"))
        self.view.close()
        self.view.deleteLater()


def main(folder: Path) -> None:
    application = QApplication.instance() or QApplication([])
    folder.mkdir(parents=True, exist_ok=True)
    theme().install(application)  # type: ignore[arg-type]  # The instance is a QApplication.
    for mode in ("light", "dark"):
        theme().set_mode(mode)  # type: ignore[arg-type]  # mypy infers str instead of a Literal.
        drawn, hosts = samples.drawn_example()
        stage = Stage(folder)
        stage.scene.show_plan(drawn, hosts, also=["gpu-d"])
        stage.scene.show_hosts({"cpu-f": HostLiveState("unknown", "09:41")})
        stage.scene.set_selection(["worker-1", "worker-2", "worker-5"])
        stage.save(f"design-{mode}")

        states, looks = samples.live_example()
        stage = Stage(folder)
        stage.scene.show_plan(drawn, hosts, also=["gpu-d"])
        stage.scene.show_states(states)
        stage.scene.show_hosts(looks)
        stage.save(f"live-{mode}")

        crowd, fleet = samples.many(128, 1000)
        for name, live in (("hosts-128-design", False), ("hosts-128-live", True)):
            stage = Stage(folder)
            stage.scene.show_plan(crowd, fleet)
            if live:
                look = samples.many_states(stage.scene.names)
                look["worker-500"] = ReplicaLiveState("failed", 0, "", "fail", "out of memory")
                look["worker-77"] = ReplicaLiveState("running", 0.4, "40 %", "wait", "1.8×")
                stage.scene.show_states(look)
                stage.scene.show_hosts({"n117": HostLiveState("unknown", "14:21")})
            stage.save(f"{name}-{mode}")

        crowd, fleet = samples.many(32, 200)
        stage = Stage(folder, 1280, 800)
        stage.scene.show_plan(crowd, fleet)
        stage.scene.show_states(samples.many_states(stage.scene.names))
        stage.save(f"hosts-32-{mode}")

        stage = Stage(folder)
        stage.save(f"empty-{mode}")

        few = [samples.host("gpu-a", 8), samples.host("gpu-b", 4, samples.A100, 64), samples.host("box", 1)]
        design = samples.topology(
            samples.pool("big", Role.WORKER, 2, 8),
            samples.pool("odd", Role.WORKER, 2, 3),
            samples.pool("servers", Role.PS, 3),
        )
        stage = Stage(folder)
        stage.scene.show_plan(plan(design, few), few)
        stage.scene.show_problems({"worker-0": "takes all of gpu-a"})
        stage.save(f"not-placed-{mode}")

        stage = Stage(folder)
        stage.scene.show_plan(drawn, hosts, also=["gpu-d"])
        stage.scene.set_selection(["worker-1", "worker-2", "worker-5"])
        stage.carry("worker-2", stage.scene.rect_of_slot("gpu-c", 1).center())
        stage.save(f"drag-{mode}")

        stage = Stage(folder)
        stage.scene.show_plan(drawn, hosts, also=["gpu-d"])
        stage.scene.set_focused("worker-6")
        stage.view.fits = lambda names, target: "gpu-d:1 is in use by another user; gpu-c has GPU 1 free"
        stage.carry("worker-9", stage.scene.rect_of_slot("gpu-d", 1).center())
        stage.save(f"drag-refused-{mode}")

        one = [samples.host("this-computer", 1, ("NVIDIA GeForce RTX 4090", 24564), 16)]
        design = samples.topology(samples.pool("workers", Role.WORKER, 2, 0))
        stage = Stage(folder)
        stage.scene.show_plan(plan(design, one), one)
        stage.save(f"one-host-{mode}")
    theme().set_mode("system")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
