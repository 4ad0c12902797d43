"""Scenes of the window: every page with sample data, live runs, drawers and dialogs, for screenshots and tests.

No host is contacted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QCoreApplication, QEvent, QEventLoop, QTimer
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QApplication, QWidget
from tests.core.advisor.samples import profile
from tools.launch_phases import FINGERPRINT, phases
from tools.live_run import RUNS_FOR_S, begin_live_run, feed_run, log_opener
from tools.sample_bookings import Sample, at
from tools.sample_cluster import (
    add_cluster,
    begin_waiting_run,
    book_nodes,
    cluster_design,
    let_cluster_answer,
    sample_lanes,
)
from tools.sample_fleet import FAILED_RUN, FLEETS, let_hosts_answer, write_sample
from tools.sample_sweep import LIVE, LONG_PARAMETERS, PARAMETERS, note_sweeps, show_sample_sweeps
from tools.strategy_designs import SERVED, STEP, design_of

from torchyard_core.advisor.profile import host_kind
from torchyard_core.app.profile_script import profile_cache, workdir_of
from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.fleet.host_key_trust import ShownKey
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.model import StrategyKind
from torchyard_core.topology.strategies.presets import PRESETS
from torchyard_gui.app import make_window
from torchyard_gui.bridge import fleet_model
from torchyard_gui.runs.growth import AddWorkersDialog
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.settings_dialog import SettingsDialog
from torchyard_gui.windows.signal_connections import SignalConnections

if TYPE_CHECKING:
    from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
    from torchyard_gui.bookings.page import BookingsPage
    from torchyard_gui.fleet.dialogs.cluster_form import ClusterForm
    from torchyard_gui.fleet.page import FleetPage
    from torchyard_gui.runs.page import RunsPage
    from torchyard_gui.sweeps.page import SweepsPage
    from torchyard_gui.topology.page import TopologyPage

PAGES = ("topology", "fleet", "runs")
PARTS = (*PAGES, "bookings", "sweeps", "strategies", "live", "launch", "cluster", "dialogs")
STATES = tuple(FLEETS)
SETTLE_MS = 400
FOLLOWED_WITHIN_MS = 1200
LOADED_WITHIN_MS = 20_000
TOAST_MS = 60_000
EARLIER_KEY = f"SHA256:{'Qyg0' * 10}jBO"


class Camera(Protocol):
    """Interface of an object that takes pictures of the scenes or checks them."""

    def take(
        self, window: MainWindow, name: str, over: QWidget | None = None, show: Callable[[], object] | None = None
    ) -> None:
        """Takes a picture of a window, or checks it.

        Args:
            over: A separate dialog or panel over the middle of the window.
            show: Called after each change of size, to show again anything that the change hid.
        """


def show_scenes(camera: Camera, parts: Sequence[str] = PARTS, states: Sequence[str] = STATES) -> None:
    """Shows some parts of the window in some states of the fleet, and calls the camera for each scene."""
    for state in states:
        if any(page in parts for page in PAGES) or ("launch" in parts and state == "eight"):
            with _window(state) as window:
                for key in (key for key in window.keys if key in parts and key in PAGES):
                    _prepare(window.show_page(key), key)
                    camera.take(window, f"{key}-{state}")
                if "launch" in parts and state == "eight":
                    _launch(window, camera)
        if "strategies" in parts and state == "eight":
            with _window(state) as window:
                _strategies(window, camera)
        if "bookings" in parts:
            _bookings(camera, state)
        if "sweeps" in parts and state in ("empty", "eight", "long"):
            with _window(state) as window:
                _sweeps(window, camera, state)
        if "live" in parts and state in ("one", "eight"):
            with _window(state) as window:
                _live(window, camera, state)
        if "cluster" in parts and state == "eight":
            with _window(state, add_cluster) as window:
                _cluster(window, camera)
            with _window(state, add_cluster) as window:
                _cluster_of_fleet(window, camera)
        if "dialogs" in parts and state in ("eight", "long"):
            _dialogs(camera, state)


def _live(window: MainWindow, camera: Camera, state: str) -> None:
    """Shows the Runs page with a live run and its log. With eight hosts, it shows all three views of the run."""
    acting = begin_live_run(_wiring(window), state)
    page = _runs(window)
    feed_run(page, acting, lambda: settle(FOLLOWED_WITHIN_MS))
    views = page.bar.views.set_value
    for view in ("canvas", "table", "plots") if state == "eight" else ("canvas",):
        views(view)
        camera.take(window, f"live-{state}" if view == "canvas" else f"live-{state}-{view}")
    views("canvas")
    log_opener(page)(True)
    settle(FOLLOWED_WITHIN_MS)
    camera.take(window, f"live-{state}-log")
    page.ask_to_add_workers()
    settle()
    dialog = page.findChildren(AddWorkersDialog)[-1]
    camera.take(window, f"dialog-{state}-add-workers", over=dialog)
    dialog.close()


def _cluster(window: MainWindow, camera: Camera) -> None:
    """Shows the Topology page with a Slurm cluster as the place, and a run that waits in the queue and then runs."""
    wiring = _wiring(window)
    page = _topology(window)
    page.files.begin(cluster_design())
    wiring.place.choose("hpc")
    page.view.fit()
    camera.take(window, "cluster-unchecked")
    let_cluster_answer(wiring)
    page.view.fit()
    camera.take(window, "cluster-topology")
    menu = page.bar.where.open()
    camera.take(window, "cluster-menu", over=menu)
    menu.close()
    acting = begin_waiting_run(wiring)
    runs = _runs(window)
    runs.show_run(acting.run_id)
    settle(FOLLOWED_WITHIN_MS)
    camera.take(window, "cluster-run-waiting")
    acting.start(RUNS_FOR_S - 60)
    settle(FOLLOWED_WITHIN_MS)
    camera.take(window, "cluster-run")
    runs.bar.views.set_value("table")
    settle()
    camera.take(window, "cluster-run-table")


def _cluster_of_fleet(window: MainWindow, camera: Camera) -> None:
    """Shows a Slurm cluster on the Fleet page, and its dialogs."""
    let_cluster_answer(_wiring(window))
    fleet = cast("FleetPage", window.show_page("fleet"))
    camera.take(window, "cluster-fleet", show=lambda: fleet.list.choose("hpc"))
    for name, show in (
        ("add-cluster", lambda: fleet.add_cluster()),
        ("edit-cluster", lambda: fleet.edit_hosts("hpc")),
    ):
        show()
        settle()
        dialog = cast("ClusterForm", fleet.dialog)
        camera.take(window, f"dialog-eight-{name}", over=dialog)
        dialog.more.setChecked(True)
        settle()
        camera.take(window, f"dialog-eight-{name}-more", over=dialog)
        dialog.close()


@contextmanager
def _calendar(state: str) -> Iterator[MainWindow]:
    """Opens a window on the Bookings page with the sample calendar."""
    with tempfile.TemporaryDirectory(prefix="torchyard-pictures-") as folder:
        sample = Sample(Path(folder), state)
        with _window(state, lambda wiring: sample.show_in(wiring.bookings)) as window:
            page = _calendar_page(window)
            _wait_until(lambda: page.model.seen.is_live)
            page.go_today()
            settle()
            yield window


def _bookings(camera: Camera, state: str) -> None:
    """Shows the sample calendar. With eight hosts, it also shows the slot finder, the waitlist and the other views."""
    with _calendar(state) as window:
        camera.take(window, f"bookings-{state}")
        if state not in ("eight", "long"):
            return
        page = _calendar_page(window)
        page.finder.count.setValue(4)
        page.finder.length.setText("6h")
        page.find_slot()
        settle()
        camera.take(window, f"bookings-{state}-find")
        page.show_waitlist()
        camera.take(window, f"bookings-{state}-waitlist")
        bookings = _wiring(window).bookings.seen.bookings
        page.surface.select(next(one.id for one in bookings if one.owner == "kim" and one.gpus[1:]))
        for view in ("day", "month", "agenda"):
            page.bar.views.set_value(view)
            settle()
            camera.take(window, f"bookings-{state}-{view}")
        if state == "eight":
            page.bar.views.set_value("week")
            page.drawers.close()
            page.fold_all()
            page.clusters.calendars["hpc"] = sample_lanes(page.model.now)
            book_nodes(page.model.store(), page.model.now)
            page.model.reload()
            _wait_until(lambda: any("hpc" in note for note in page.surface.picture.notes.values()))
            page.surface.verticalScrollBar().setValue(page.surface.verticalScrollBar().maximum())
            camera.take(window, "bookings-cluster")
            page.surface.select("slurm:hpc/job 4711")
            camera.take(window, "bookings-cluster-job")
            page.surface.select("")
            _book_nodes(window, camera)
            del page.clusters.calendars["hpc"]
            page.refresh()
            _when(window, camera)


def _book_nodes(window: MainWindow, camera: Camera) -> None:
    """Shows the dialog that books nodes of the sample cluster, also while Slurm is asked for the reservation."""
    page = _calendar_page(window)
    nodes = [slot.id for slot in page.model.slots if slot.node][-2:]
    start = page.model.now.timestamp() + 40 * 3600
    page.dialogs.book_at(nodes, start, start + 8 * 3600)
    settle()
    dialog = cast("BookingDialog", page.dialog)
    camera.take(window, "dialog-eight-book-nodes", over=dialog)
    dialog._busy(True, on_nodes=True)
    settle()
    camera.take(window, "dialog-eight-book-nodes-busy", over=dialog)
    page.dialogs.close()


def _sweeps(window: MainWindow, camera: Camera, state: str) -> None:
    """Shows the Sweeps page: without sweeps, or with a live one, a selected trial, and the question before a stop."""
    page = cast("SweepsPage", window.page("sweeps"))
    hosts = list(FLEETS[state])
    if not hosts:
        window.show_page("sweeps")
        camera.take(window, "sweeps-empty")
        return
    _new_sweep(window, camera, state)
    note_sweeps(page.model.runs, hosts)
    show_sample_sweeps(page, hosts, LONG_PARAMETERS if state == "long" else PARAMETERS)
    window.show_page("sweeps")
    page.show_sweep(LIVE)
    camera.take(window, f"sweeps-{state}")
    page.choose("17")
    camera.take(window, f"sweeps-{state}-failed-trial")
    page.choose("34")
    camera.take(window, f"sweeps-{state}-trial")
    page.ask_to_stop()
    settle()
    assert page.dialog is not None
    camera.take(window, f"dialog-{state}-stop-sweep", over=page.dialog)
    page.dialog.close()


def _new_sweep(window: MainWindow, camera: Camera, state: str) -> None:
    """Shows the form for a new sweep: its initial state, and all kinds of parameters, settings and problems."""
    wiring = _wiring(window)
    words = ["--lr={params.lr}", "--batch={params.batch}", "--layers={params.layers}"]
    cast("TopologyPage", window.show_page("topology")).add_arguments(words)
    wiring.new_sweep()
    dialog = wiring.search_dialog
    settle()
    camera.take(window, f"dialog-{state}-new-sweep", over=dialog)
    rows = dialog.form.parameters.rows
    rows[0].low.setText("0.5")
    rows[2].name.setText("a_long_name_of_a_parameter" if state == "long" else "depth")
    dialog.form.trials.setText("many")
    for choice, key in ((dialog.form.sampler, "cma_es"), (dialog.form.pruner, "hyperband")):
        choice.set_value(key)
        choice.changed.emit(key)
    settle()
    camera.take(window, f"dialog-{state}-new-sweep-problems", over=dialog)
    dialog.show_field(("pruner", "max_resource"))
    settle()
    camera.take(window, f"dialog-{state}-new-sweep-pruner", over=dialog)
    dialog.launched()


def _dialogs(camera: Camera, state: str) -> None:
    """Shows the common dialogs, drawers and notices over their pages."""
    host = next(iter(FLEETS[state]))
    with _window(state) as window:
        key = ShownKey(
            Host(name=host, address="gpu.example"), "ssh-ed25519", FINGERPRINT, "", "SHA256:" + "Qyg0" * 10 + "jBO"
        )
        setattr(fleet_model, "show_key", lambda *_: key)  # noqa: B010  # The pictures need no key.
        _wiring(window).fleet.fleet.dialer = None  # type: ignore[assignment]  # The pictures need no key.
        fleet = cast("FleetPage", window.show_page("fleet"))
        for name, show in (
            ("add-host", lambda: fleet.add_host(host)),
            ("trust", lambda: fleet.trust(host)),
            ("remove-hosts", lambda: fleet.remove_hosts(*FLEETS[state])),
        ):
            show()
            _wait_until(lambda: fleet.dialog is not None)
            settle()
            assert fleet.dialog is not None
            camera.take(window, f"dialog-{state}-{name}", over=fleet.dialog)
            fleet.dialog.close()
        fleet.notice.show_notice("fail", f"The host key of {host} has changed: it shows {FINGERPRINT}.")
        camera.take(window, f"notice-{state}-fleet")
        topology = _topology(window)
        topology.editor.select(["worker-3"])
        camera.take(window, f"drawer-{state}-fields", show=topology.fields.reveal)
        topology.editor.select([])
        camera.take(window, f"drawer-{state}-strategy", show=topology.fields.reveal)
        topology.fields.shut()
        camera.take(window, f"drawer-{state}-palette", show=topology.side.reveal)
        topology.side.shut()
        _advice(window, camera, state)
        window.palette_.open()
        settle()
        camera.take(window, f"palette-{state}")
        window.palette_.close_palette()
        text = f"The run {host} has ended: worker-5 ran out of GPU memory after 3 restarts on {host}"
        camera.take(window, f"toast-{state}", show=lambda: window.toast.say(text, TOAST_MS))
        window.toast.hide()
        _wiring(window).open_settings()
        settle()
        settings = window.findChildren(SettingsDialog)[-1]
        camera.take(window, f"dialog-{state}-settings", over=settings)
        settings.close()
        for name, menu in (("menu", window.menu), *window.menu.menus.items()):
            window.menu.fill()
            menu.popup(window.mapToGlobal(window.rect().center()))
            settle()
            menu.resize(menu.sizeHint())  # The offscreen display is smaller than a menu at a scale of two.
            camera.take(window, f"menu-{state}-{name}", over=menu)
            menu.hide()
    with _calendar(state) as window:
        page = _calendar_page(window)
        bookings = _wiring(window).bookings.seen.bookings
        mine = next(one for one in bookings if one.owner == "kim" and one.gpus[4:])
        page.show_booking(mine.id)
        settle()
        camera.take(window, f"drawer-{state}-booking")
        for name, show in (
            ("book", page.dialogs.book),
            ("edit", page.edit),
            ("release", page.release_or_cancel),
            ("usage", page.dialogs.usage_report),
            ("rules", page.dialogs.rules),
            ("team", page.dialogs.team_calendar),
        ):
            show()
            settle()
            if page.dialog is not None:
                camera.take(window, f"dialog-{state}-{name}", over=page.dialog)
                page.dialogs.close()


def _advice(window: MainWindow, camera: Camera, state: str) -> None:
    """Shows the Advice drawer without a profile, and with advice for the sample hosts."""
    page = _topology(window)
    if not page.document.value.pools:
        return
    page.show_advice.setChecked(True)
    drawer = page.advice
    _wait_until(lambda: "never profiled" in drawer.message.text())
    camera.take(window, f"drawer-{state}-advice-unprofiled")
    cache = profile_cache(_wiring(window).home)
    for kind in {host_kind(host) for host in page.editor.facts()}:
        cache.keep(workdir_of(page.document.as_file()), profile(kind=kind, is_gpu=True, spread_s=0.02))
    drawer.refresh()
    _wait_until(lambda: "never profiled" not in drawer.message.text())
    camera.take(window, f"drawer-{state}-advice")
    page.show_advice.setChecked(False)


def _when(window: MainWindow, camera: Camera) -> None:
    """Shows the Topology page with bookings of other users, for now and for the next day."""
    planning = _wiring(window).planning
    planning.begin()
    page = _topology(window)
    page.editor.show_host("gpu-d")
    page.view.fit()
    camera.take(window, "topology-booked")
    planning.choose(PlannedTime(at(3, 9), timedelta(hours=24)))
    camera.take(window, "topology-later")


def _topology(window: MainWindow) -> TopologyPage:
    return cast("TopologyPage", window.show_page("topology"))


def _runs(window: MainWindow) -> RunsPage:
    return cast("RunsPage", window.show_page("runs"))


def _calendar_page(window: MainWindow) -> BookingsPage:
    return cast("BookingsPage", window.show_page("bookings"))


def _strategies(window: MainWindow, camera: Camera) -> None:
    """Shows the editor with a topology of each strategy that has a preset, and a run with all parts of a step."""
    page = _topology(window)
    for kind in PRESETS:
        page.files.begin(design_of(kind))
        page.view.fit()
        camera.take(window, f"strategy-{kind.value}")
        page.bar.arrangement.button("group").click()
        page.view.fit()
        camera.take(window, f"strategy-{kind.value}-groups")
        page.bar.arrangement.button("host").click()
    acting = begin_live_run(_wiring(window), "eight", design_of(StrategyKind.DOWNPOUR))
    runs = _runs(window)
    feed_run(runs, acting, lambda: settle(FOLLOWED_WITHIN_MS), STEP, SERVED)
    views = runs.bar.views.set_value
    for view in ("canvas", "table", "plots"):
        views(view)
        runs.run_view.choose(["worker-3"])
        if view == "plots":
            runs.run_view.plots.choice.set_value("step")
        camera.take(window, f"strategy-run-{view}")
    views("table")
    runs.run_view.choose(["ps-1"])
    camera.take(window, "strategy-run-server")


def _launch(window: MainWindow, camera: Camera) -> None:
    """Shows the launch panel over the Topology page."""
    window.show_page("topology")
    for name, panel in phases(_wiring(window)):
        camera.take(window, f"launch-{name}", over=panel)


def _wiring(window: MainWindow) -> SignalConnections:
    wiring = window.findChild(SignalConnections)
    assert isinstance(wiring, SignalConnections)
    return wiring


@contextmanager
def _window(state: str, prepare: Callable[[SignalConnections], None] | None = None) -> Iterator[MainWindow]:
    """Opens a window on sample hosts, none of which is contacted. `prepare` is called before the pages are made."""
    with tempfile.TemporaryDirectory(prefix="torchyard-pictures-") as folder:
        home, fleet_file, file = write_sample(Path(folder), state)
        window = make_window(home, fleet_file, file)
        wiring = _wiring(window)
        window.painted.disconnect()  # The tasks after the first paint would contact hosts.
        wiring.runs.refresh = lambda: None  # type: ignore[method-assign]  # The pictures need no contact with a real host.
        let_hosts_answer(wiring.fleet)
        if prepare is not None:
            prepare(wiring)
        window.make_pages()
        QCursor.setPos(10_000, 10_000)  # With the pointer over the window, the first button would be drawn as hovered.
        window.show()
        settle()
        try:
            yield window
        finally:
            wiring.document.start_new()  # With a new document, the window does not ask about unsaved changes.
            window.close()
            window.deleteLater()
            QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


def _prepare(page: object, key: str) -> None:
    """Selects an item on each page that shows details of a selection."""
    if key == "topology" and hasattr(page, "editor"):
        page.editor.select([f"worker-{index}" for index in (1, 2, 5)])
    if key == "runs" and hasattr(page, "show_run"):
        page.show_run(FAILED_RUN)  # A failed run shows more than a successful one.


def _wait_until(condition: Callable[[], bool]) -> None:
    enough = QTimer()
    enough.setSingleShot(True)
    enough.start(LOADED_WITHIN_MS)
    while not condition():
        assert enough.isActive(), "the sample data did not load"
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents, 50)


def settle(for_ms: int = SETTLE_MS) -> None:
    """Processes events for `for_ms` milliseconds."""
    enough = QTimer()
    enough.setSingleShot(True)
    enough.start(for_ms)
    while enough.isActive():
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)
