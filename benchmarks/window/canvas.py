"""Benchmark of the canvas: dragging a chip, live updates, opening 128 hosts, and panning.

Promises: a frame of a drag among 200 replicas on 32 hosts takes at most twice as long as a frame of a bare scene with
as many rectangles; live updates of these replicas at 1 Hz take at most 10% of a core; 1,000 replicas on 128 hosts open
in 1 s.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QGraphicsItem, QGraphicsRectItem, QGraphicsScene, QGraphicsView
from tests.gui.canvas import samples

from benchmarks.harness import Promise, alternate, ratio, record, show, timed
from benchmarks.window.application import themed_application
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.canvas.scene import TopologyScene
from torchyard_gui.canvas.view import CanvasView
from torchyard_gui.theme.theme import theme

SIZE = (1280, 800)
HOSTS, REPLICAS = 32, 200
MOVES = 500
"""Number of mouse moves of about 9 pixels each, which amount to a fast drag at 125 moves per second."""
ROUNDS = 8
LIVE_S = 12
"""Seconds of measured live updates, one per second."""


def spread_plan() -> tuple[Plan, list[HostFacts]]:
    """Returns a plan with 200 replicas spread over 32 hosts with 8 GPUs each, with 6 or 7 replicas on each host."""
    return samples.many(HOSTS, REPLICAS, spread=True)


def canvas() -> tuple[TopologyScene, CanvasView]:
    plan, hosts = spread_plan()
    scene = TopologyScene()
    view = CanvasView(scene)
    view.resize(*SIZE)
    view.show()
    scene.show_plan(plan, hosts)
    view.reset()
    QApplication.processEvents()
    return scene, view


def bare(like: TopologyScene, zoom: float) -> tuple[QGraphicsView, QGraphicsRectItem]:
    """Returns a plain scene that has a filled rectangle for each rack and chip. One rectangle can be dragged."""
    scene = QGraphicsScene()
    rects = [like.rect_of_rack(host) for host in like.hosts] + [like.rect_of(name) for name in like.names]
    items = [scene.addRect(rect, theme().pen("line"), theme().brush("s2")) for rect in rects]
    dragged = items[len(like.hosts)]
    dragged.setFlag(QGraphicsItem.GraphicsItemFlag.ItemIsMovable)
    dragged.setZValue(1)
    view = QGraphicsView(scene)
    view.resize(*SIZE)
    view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.setSceneRect(like.sceneRect())
    view.show()
    view.scale(zoom, zoom)
    scene.setParent(view)
    return view, dragged


def send(view: QGraphicsView, kind: QEvent.Type, at: QPointF, held: bool) -> None:
    button = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseMove else Qt.MouseButton.LeftButton
    buttons = Qt.MouseButton.LeftButton if held else Qt.MouseButton.NoButton
    place = view.viewport().mapToGlobal(at)
    event = QMouseEvent(kind, at, place, button, buttons, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(view.viewport(), event)


def drag(view: QGraphicsView, start: QPoint) -> float:
    """Drags an item along a path over many racks. Returns the median duration of a frame in milliseconds.

    A frame lasts from the mouse event to the end of its painting.
    """
    frames = []
    send(view, QEvent.Type.MouseButtonPress, QPointF(start), True)
    width, height = SIZE
    for number in range(MOVES):
        part = number / MOVES
        at = QPointF(40 + (width - 80) * part, 40 + (height - 80) * abs(((part * 6) % 2) - 1))

        def frame(at: QPointF = at) -> None:
            send(view, QEvent.Type.MouseMove, at, True)
            QApplication.processEvents()

        frames.append(timed(frame))
    escape(view)
    send(view, QEvent.Type.MouseButtonRelease, QPointF(start), False)
    QApplication.processEvents()
    return statistics.median(frames) * 1000


def escape(view: QGraphicsView) -> None:
    if isinstance(view, CanvasView):
        view.cancel_gesture()


def drag_arms(zoom: float) -> tuple[dict[str, Callable[[], float]], list[QGraphicsView]]:
    scene, view = canvas()
    if zoom:
        view.set_zoom(zoom, QPointF(0, 0))
    else:
        view.fit()
    QApplication.processEvents()
    plain, rect = bare(scene, view.zoom)
    corner = view.mapToScene(0, 0)
    plain.horizontalScrollBar().setValue(view.horizontalScrollBar().value())
    plain.verticalScrollBar().setValue(view.verticalScrollBar().value())
    assert abs(plain.mapToScene(0, 0).x() - corner.x()) < 2
    home = rect.pos()

    def ours() -> float:
        return drag(view, view.mapFromScene(scene.rect_of(scene.names[0]).center()))

    def theirs() -> float:
        rect.setPos(home)
        QApplication.processEvents()
        return drag(plain, plain.mapFromScene(rect.sceneBoundingRect().center()))

    return {"canvas": ours, "bare scene": theirs}, [view, plain]


def live_share() -> float:
    """Returns the percentage of a core used by updates of all replicas at 1 Hz, including painting."""
    scene, view = canvas()
    view.fit()
    updates = [samples.many_states(scene.names, seed) for seed in range(LIVE_S + 1)]
    scene.show_states(updates[0])
    QApplication.processEvents()
    begin, cpu = time.perf_counter(), time.process_time()
    for second, states in enumerate(updates[1:], 1):
        scene.show_states(states)
        QApplication.processEvents()
        time.sleep(max(0.0, begin + second - time.perf_counter()))
    share = (time.process_time() - cpu) / (time.perf_counter() - begin) * 100
    view.close()
    return share


def opening() -> float:
    """Returns the seconds from receiving a plan of 1,000 replicas on 128 hosts to the first painting."""
    plan, hosts = samples.many(128, 1000)

    def open_it() -> None:
        scene = TopologyScene()
        view = CanvasView(scene)
        view.resize(*SIZE)
        view.show()
        scene.show_plan(plan, hosts)
        QApplication.processEvents()
        view.close()

    return timed(open_it)


def panning() -> list[float]:
    """Returns the milliseconds of each frame while 1,000 replicas are panned at full size."""
    plan, hosts = samples.many(128, 1000)
    scene = TopologyScene()
    view = CanvasView(scene)
    view.resize(*SIZE)
    view.show()
    scene.show_plan(plan, hosts)
    view.reset()
    QApplication.processEvents()
    frames = []
    for number in range(100):

        def frame(by: int = 12 if number < 50 else -12) -> None:
            view.horizontalScrollBar().setValue(view.horizontalScrollBar().value() + by)
            view.verticalScrollBar().setValue(view.verticalScrollBar().value() + by)
            QApplication.processEvents()

        frames.append(timed(frame) * 1000)
    view.close()
    return frames


def main() -> list[Promise]:
    themed_application()
    found: dict[str, list[float]] = {}
    promises = []
    for name, zoom in (("fitted", 0.0), ("at full size", 1.0)):
        arms, views = drag_arms(zoom)
        measured = alternate(arms, ROUNDS)
        show(f"A frame of dragging a chip, {name}", measured, "ms")
        promises.append(
            Promise(f"drag frame against a bare scene, {name}", ratio(measured, "canvas", "bare scene"), 2.0)
        )
        found |= {f"{arm}, {name}, ms": values for arm, values in measured.items()}
        for view in views:
            view.close()
    share = live_share()
    found["live at 1 Hz, % of a core"] = [share]
    promises.append(Promise("live canvas at 1 Hz, CPU", share, 10.0, "% of a core"))
    opened = [opening() for _ in range(5)]
    found["opening 1,000 replicas on 128 hosts, s"] = opened
    promises.append(Promise("1,000 replicas on 128 hosts open", statistics.median(opened), 1.0, "s"))
    frames = panning()
    found["panning 1,000 replicas, ms"] = frames
    show("Panning 1,000 replicas at full size", {"frame": frames}, "ms")
    record("canvas", found, promises)
    return promises


if __name__ == "__main__":
    main()
