"""Tests of the Runs page with mouse and keyboard: the list, a live run, its log, and actions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel

from tests.core.examples import host, topology
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import BEGAN, Acting, ActingFleet
from torchyard_core.errors import Unreachable
from torchyard_core.home import Home
from torchyard_core.topology.file import dump
from torchyard_gui.runs.labels import clock
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.plots.comparison import Comparison
from torchyard_gui.runs.plots.run_plots import Plots
from torchyard_gui.runs.replica_columns import GPUS, PAST, USE
from torchyard_gui.widgets.empty_state import EmptyListMessage

LEFT = Qt.MouseButton.LeftButton


def labels(page: RunsPage) -> list[str]:
    model = page.list_model
    return [str(model.index(row).data()) for row in range(model.rowCount())]


def test_without_runs_the_page_says_what_to_do_first(qtbot: Any, make_page: MakePage) -> None:
    page = make_page()
    assert page.empty.isVisible()
    assert not page.run_view.isVisible()
    assert page.bar.name.text() == "Runs"
    with qtbot.waitSignal(page.launch_wanted):
        QTest.mouseClick(page.empty.buttons[0], LEFT)
    assert not any(action.isEnabled() for action in (page.actions_.stop, page.actions_.fetch, page.actions_.copy))


def test_live_runs_stand_above_past_ones_and_a_click_shows_one(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage
) -> None:
    old = Acting((host("gpu-x", 1),), "{name: w, role: worker, replicas: 1, gpus: 1}", name="old", run_id="20250101-a")
    old.start()
    old.end("succeeded", "")
    run.note(home)
    run.start()
    page = make_page(run, old)
    qtbot.waitUntil(lambda: labels(page) == ["Live", "digits", "Past", "old"])
    assert page.feed is not None
    assert page.feed.run.name == "digits"
    rect = page.list.visualRect(page.list_model.index(3))
    QTest.mouseClick(page.list.viewport(), LEFT, pos=rect.center())
    assert page.feed.run.name == "old"
    qtbot.waitUntil(lambda: "succeeded" in page.bar.state.text())
    QTest.keyClicks(page.search, "dig")
    assert labels(page) == ["Live", "digits"]
    (nothing,) = page.list.findChildren(EmptyListMessage)
    assert nothing.isHidden()
    QTest.keyClicks(page.search, "zzz")
    assert nothing.isVisible()
    assert nothing.text() == "No run matches “digzzz”."


def test_a_run_that_was_just_launched_is_shown(qtbot: Any, home: Home, run: Acting, make_page: MakePage) -> None:
    page = make_page(run)
    run.note(home)
    run.start()
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.run.run_id == run.run_id)
    qtbot.waitUntil(lambda: page.run_view.scene.names == ["chief-0", "worker-0", "worker-1", "worker-2"])


def test_what_is_measured_is_on_the_page(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.measure(10)
    run.measure(11)
    qtbot.waitUntil(lambda: "samples/s" in page.bar.state.text(), timeout=30_000)
    assert page.run_view.side.plots["throughput"].accessibleName().endswith("samples/s")
    page.actions_.table.trigger()
    assert page.run_view.view == "table"
    model = page.run_view.table.model()
    assert model.rowCount() == 4
    assert model.index(0, USE).data().endswith(" %")


def test_the_bar_and_the_plots_show_the_same_throughput(qtbot: Any, page: RunsPage, run: Acting) -> None:
    plot, bar = page.run_view.side.plots["throughput"], page.bar
    run.measure(10)
    qtbot.waitUntil(lambda: "samples/s" in bar.state.text())
    shown = plot.accessibleName().rpartition(": ")[2]
    assert plot.accessibleName().startswith("Throughput, 4 trainers: ")
    assert shown in bar.state.text()
    # The bar shows a new value only when the plot does, even if the page's timer fires in between.
    assert page.feed is not None
    page.feed.picture.totals.append(BEGAN + 20, {"throughput": 5000.0})
    page._tick()
    assert shown in bar.state.text()
    run.measure(30)
    qtbot.waitUntil(lambda: shown not in bar.state.text())
    assert plot.accessibleName().rpartition(": ")[2] in bar.state.text()
    # If one replica is chosen, the plot's name contains it.
    page.run_view.choose(["worker-0"])
    assert plot.accessibleName().startswith("Throughput, worker-0: ")


def test_plots_and_the_comparison_are_created_at_their_first_use_and_tab_reaches_plots_before_the_log(
    page: RunsPage,
) -> None:
    view = page.run_view
    view.choose(["worker-1"])
    assert not page.findChildren(Plots)
    assert not page.findChildren(Comparison)
    page.actions_.plots.trigger()
    assert view.view == "plots"
    assert view.plots.isVisible()
    assert view.plots.names == ["worker-1"]
    order, each = [], view.table.nextInFocusChain()
    while each is not view.table:
        order.append(each)
        each = each.nextInFocusChain()
    assert order.index(view.plots.range) < order.index(view.log.replica)


def test_what_is_chosen_in_one_view_is_chosen_in_all(qtbot: Any, page: RunsPage, run: Acting) -> None:
    view = page.run_view
    page.actions_.table.trigger()
    for row, how in ((1, Qt.KeyboardModifier.NoModifier), (3, Qt.KeyboardModifier.ControlModifier)):
        rect = view.table.visualRect(view.table.model().index(row, 0))
        QTest.mouseClick(view.table.viewport(), LEFT, how, rect.center())
    assert view.chosen == ["worker-0", "worker-2"]
    assert view.scene.selection == ["worker-0", "worker-2"]
    assert view.plots.names == ["worker-0", "worker-2"]
    view.scene.set_selection(["worker-1"])
    assert view.table.chosen() == ["worker-1"]
    assert view.log.replica.currentText() == "worker-1"


def test_a_column_sorts_by_values(qtbot: Any, page: RunsPage, run: Acting) -> None:
    for name, use in (("gpu-a", 50.0), ("gpu-b", 90.0)):
        run.links[name].say("telemetry", run.sample(name, 10.0, loss=1.0, use=use))
    tracks = page.feed.picture.tracks  # type: ignore[union-attr]  # The value is not None in this test.
    qtbot.waitUntil(lambda: all(len(track.ring) for track in tracks.values()))
    page.actions_.table.trigger()
    table = page.run_view.table
    header = table.horizontalHeader()
    at = QPoint(header.sectionViewportPosition(USE) + 20, header.height() // 2)
    QTest.mouseClick(header.viewport(), LEFT, pos=at)
    hosts = [table.model().index(row, 2).data() for row in range(4)]
    assert hosts in (["gpu-a", "gpu-a", "gpu-b", "gpu-b"], ["gpu-b", "gpu-b", "gpu-a", "gpu-a"])
    page.run_view.search.setText("gpu-b")
    assert table.model().rowCount() == 2


def test_stop_asks_first_and_can_kill(qtbot: Any, page: RunsPage, run: Acting) -> None:
    QTest.keyClick(page.list, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
    dialog = page._stop_dialog
    assert dialog is not None
    assert not dialog.isModal() or dialog.windowModality() == Qt.WindowModality.WindowModal
    assert dialog.focusWidget() is dialog.keep
    assert any("saves one when it is stopped" in text.text() for text in dialog.findChildren(QLabel))
    QTest.mouseClick(dialog.keep, LEFT)
    assert run.stopped == []
    qtbot.waitUntil(lambda: page._stop_dialog is None)
    page.run_view.work.show_error(Unreachable("gpu-a", "gpu-a does not answer."))
    page.actions_.stop.trigger()
    dialog = page._stop_dialog
    assert dialog is not None
    dialog.force.setChecked(True)
    QTest.mouseClick(dialog.stop, LEFT)
    assert not page.run_view.work.isVisible(), "the error of the last attempt"
    qtbot.waitUntil(lambda: bool(run.stopped))
    assert run.stopped[0]["force"] is True
    run.end("stopped", "stopped by somebody")
    qtbot.waitUntil(lambda: not page.actions_.stop.isEnabled())


def test_waiting_runs_are_counted_apart(page: RunsPage) -> None:
    assert page.status_texts() == [("running", "1 live run")]
    (run,) = page.model.runs
    page.model._runs = [replace(run, state="waiting"), replace(run, state="waiting")]
    assert page.status_texts() == [("waiting", "2 waiting runs")]


def test_a_lost_connection_shows_as_of_when_and_never_failed(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.measure(10)
    qtbot.waitUntil(lambda: len(page.feed.picture.totals) > 0)  # type: ignore[union-attr]  # The value is not None in this test.
    for name in run.links:
        run.down.add(name)
        run.links[name].break_off()
    qtbot.waitUntil(lambda: "as of" in page.bar.state.text())
    assert "does not answer" in page.run_view.notice.text
    assert page.run_view.notice.kind == "warn"
    qtbot.waitUntil(lambda: all(look.is_unknown for look in page.feed.live_states.values()))  # type: ignore[union-attr]  # The value is not None in this test.
    everything = [page.bar.state.text(), page.run_view.notice.text, *page.run_view.side.timeline.texts]
    assert not any("failed" in text for text in everything)


def test_a_run_whose_primary_is_in_no_fleet_is_as_it_was_until_that_host_is_added(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage
) -> None:
    run.start()
    run.note(home)
    page = make_page()
    view, acts = page.run_view, page.actions_
    qtbot.waitUntil(lambda: view.notice.isVisible())
    time = clock(BEGAN + 1, exact=True)
    assert view.notice.kind == "warn"
    assert view.notice.text == (
        "Live updates have stopped: the primary host gpu-a is not in the fleet. Add it by that name. "
        f"Last update {time}; the run may still be running."
    )
    assert [button.text() for button in view.notice.buttons] == ["Add a host …"]
    assert page.bar.state.text() == f"running as of {time}"
    assert view.side.needs.needs == []
    known = page.model.run(run.run_id)
    assert known is not None
    assert page.list_model.state_of(known) == f"running as of {clock(BEGAN + 1)}"
    # *Restart* is disabled, because it would create a second run. *Stop* is enabled, but only says why the run cannot
    # be stopped.
    assert (acts.stop.isEnabled(), acts.restart.isEnabled()) == (True, False)
    acts.stop.trigger()
    assert page._stop_dialog is not None
    QTest.mouseClick(page._stop_dialog.stop, LEFT)
    qtbot.waitUntil(view.work.isVisible)
    assert view.work.text.startswith("The primary host gpu-a of run ")

    fleet = page.model.fleet_model.fleet
    assert isinstance(fleet, ActingFleet)
    fleet.add(run)
    acts.refresh.trigger()
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.was_heard and not view.notice.isVisible())
    assert page.bar.state.text().startswith("running ")
    assert "as of" not in page.bar.state.text()


def test_what_a_host_but_the_primary_says_of_a_run_is_no_end_of_it(
    qtbot: Any, run: Acting, make_page: MakePage
) -> None:
    run.start()
    run.play("run_state", 20, state="failed", reason="the primary host gpu-a was lost")
    run.alive = False
    run.down.add("gpu-a")
    page = make_page(run)  # The run was launched by another computer.
    page.model.refresh()
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.error is not None)

    (known,) = page.model.runs
    when = BEGAN + 20
    assert (known.reported_by, known.is_fresh, known.has_ended) == ("gpu-b", False, False)
    assert page.list_model.data(page.list_model.index(0)) == "Live"
    assert page.list_model.state_of(known) == f"failed as of {clock(when)}"
    assert page.bar.state.text() == f"failed as of {clock(when, exact=True)}"
    assert page.run_view.notice.text == (
        f"gpu-a, the run's primary host, does not answer yet. gpu-b reported this state at {clock(when, exact=True)}; "
        "the run may have changed since. Reconnecting …"
    )
    assert (page.actions_.stop.isEnabled(), page.actions_.restart.isEnabled()) == (True, False)

    run.play("run_state", 30, state="running")
    run.alive = True
    run.down.clear()
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.was_heard and not page.run_view.notice.isVisible())
    assert page.bar.state.text().startswith("running ")
    qtbot.waitUntil(lambda: page.model.runs[0].is_fresh and not page.model.runs[0].reported_by)


def test_a_run_that_its_host_has_forgotten_has_not_failed(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage
) -> None:
    run.note(home)
    run.is_forgotten = True
    page = make_page(run)
    notice = page.run_view.notice
    qtbot.waitUntil(notice.isVisible)
    time = clock(BEGAN + 1, exact=True)
    said = f"gpu-a no longer has a record of this run. Last update {time}."
    assert (notice.kind, notice.text) == ("warn", said)
    assert page.bar.state.text() == f"running as of {time}"


def test_a_failure_has_its_cause_and_its_log(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.logs["worker-1"] = b"epoch 1\nValueError: bad\n"
    run.fail("worker-1", "exited with 1: ValueError: bad")
    notice = page.run_view.notice
    qtbot.waitUntil(lambda: "ValueError: bad" in notice.text)
    assert notice.kind == "fail"
    QTest.mouseClick(notice.buttons[0], LEFT)
    qtbot.waitUntil(lambda: page.run_view.log.view.shown_lines == ["epoch 1", "ValueError: bad"])
    assert page.run_view.log.is_open


def test_edit_a_copy_gives_what_was_run(qtbot: Any, page: RunsPage, run: Acting) -> None:
    with qtbot.waitSignal(page.edit_copy) as caught:
        page.actions_.copy.trigger()
    assert caught.args == [dump(run.topology)]


def test_files_come_home(qtbot: Any, page: RunsPage, run: Acting, tmp_path: Path) -> None:
    assert page.feed is not None
    page.fetch(page.feed.run, tmp_path / "here")
    qtbot.waitUntil(lambda: "2 files fetched" in page.run_view.work.text)
    assert (tmp_path / "here" / "gpu-b" / "outputs" / "model.pt").read_bytes() == b"model"


def test_a_folder_that_cannot_be_written_is_told_as_it_is(
    qtbot: Any, page: RunsPage, run: Acting, tmp_path: Path
) -> None:
    (tmp_path / "here").write_text("a file")
    assert page.feed is not None
    page.fetch(page.feed.run, tmp_path / "here")
    qtbot.waitUntil(lambda: "cannot be written" in page.run_view.work.text)
    assert page.run_view.work.kind == "fail"


def test_the_model_of_the_newest_checkpoint_comes_home_as_one_file(
    qtbot: Any, page: RunsPage, run: Acting, tmp_path: Path
) -> None:
    assert page.feed is not None
    page.fetch_model(page.feed.run, tmp_path / "model.pt")
    qtbot.waitUntil(lambda: "has no checkpoint on gpu-a" in page.run_view.work.text)
    entry = {"sharded": True, "bytes": 5, "missing": "", "parts": []}
    run.checkpoints = [{"step": 9, **entry, "missing": "__1_0.distcp"}, {"step": 7, **entry}]
    page.fetch_model(page.feed.run, tmp_path / "model.pt")
    qtbot.waitUntil(lambda: f"the model of step 7 fetched to {tmp_path / 'model.pt'}" in page.run_view.work.text)
    assert "The checkpoint of step 9 is incomplete: __1_0.distcp is missing on gpu-a" in page.run_view.work.text
    assert (tmp_path / "model.pt").read_bytes() == b"model"
    page.fetch_model(page.feed.run, tmp_path / "model.pt" / "below.pt")
    qtbot.waitUntil(lambda: "cannot be written" in page.run_view.work.text)


def test_nothing_is_requested_from_hosts_while_no_page_is_visible(qtbot: Any, page: RunsPage, run: Acting) -> None:
    qtbot.waitUntil(lambda: page.model._refreshing is None)
    page.hide()
    before = len(run.links["gpu-a"].asked)
    qtbot.wait(300)
    later = [method for method, _ in run.links["gpu-a"].asked[before:] if method != "logs.read"]
    assert later == []


def test_the_keyboard_reaches_everything(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.fail("worker-1", "exited with 1: ValueError: bad")
    qtbot.waitUntil(lambda: bool(page.run_view.side.needs.needs))
    view, window = page.run_view, page.window()
    page.actions_.table.trigger()
    view.log.set_open(True)
    wanted = {
        "the search for runs": page.search,
        "the list": page.list,
        "the search for replicas": view.search,
        "the table": view.table,
        "whose log": view.log.replica,
        "search in the log": view.log.search,
        "the log": view.log.view,
        "events": view.side.timeline,
    }
    reached = set()
    for _ in range(60):
        QTest.keyClick(window.focusWidget() or window, Qt.Key.Key_Tab)
        reached.add(window.focusWidget())
    assert {name for name, widget in wanted.items() if widget not in reached} == set()
    # The other buttons of the group are reached with the arrow keys.
    assert reached & {page.bar.views.button(key) for key in ("canvas", "table", "plots")}
    # The cards of failed replicas, which appear and disappear, can be reached, too.
    assert any(widget is not None and widget.accessibleName().startswith("worker-1 failed") for widget in reached)
    unnamed = [
        widget
        for widget in reached
        if widget is not None and not (widget.accessibleName() or getattr(widget, "text", str)())
    ]
    assert unnamed == []


def test_enter_in_the_table_opens_the_log(qtbot: Any, page: RunsPage, run: Acting) -> None:
    page.actions_.table.trigger()
    table = page.run_view.table
    table.setFocus()
    table.setCurrentIndex(table.model().index(2, 0))
    QTest.keyClick(table, Qt.Key.Key_Return)
    assert page.run_view.log.is_open
    assert page.run_view.log.replica.currentText() == "worker-1"


def test_a_narrow_table_leaves_room_for_its_curves(page: RunsPage) -> None:
    page.actions_.table.trigger()
    table = page.run_view.table
    table.resize(700, 400)
    assert sum(table.columnWidth(column) for column in range(PAST + 1)) <= 700
    assert table.isColumnHidden(GPUS)
    table.resize(1000, 400)
    assert not table.isColumnHidden(GPUS)


def test_the_result_of_a_fetch_stays_with_its_run(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage, tmp_path: Path
) -> None:
    old = Acting((host("gpu-x", 1),), "{name: w, role: worker, replicas: 1, gpus: 1}", name="old", run_id="20250101-a")
    old.start()
    old.end("succeeded", "")
    run.note(home)
    run.start()
    page = make_page(run, old)
    qtbot.waitUntil(lambda: labels(page) == ["Live", "digits", "Past", "old"])
    page.list.setCurrentIndex(page.list_model.index(3))
    assert page.feed is not None
    page.fetch(page.feed.run, tmp_path / "old")
    qtbot.waitUntil(lambda: page.run_view.work.text == f"old: 1 file fetched to {tmp_path / 'old'}")
    page.list.setCurrentIndex(page.list_model.index(1))
    assert page.feed.run.name == "digits"
    assert page.run_view.work.isHidden()


def test_a_single_value_makes_no_line_and_is_not_denied(qtbot: Any, page: RunsPage, run: Acting) -> None:
    plot = page.run_view.side.plots["throughput"]
    assert plot.sentence == "No reports yet"
    run.measure(10)
    qtbot.waitUntil(lambda: "samples/s" in plot.accessibleName())
    assert plot.sentence == "One value so far"


def test_a_run_whose_replicas_are_not_in_its_topology_is_not_said_to_have_no_data(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage
) -> None:
    """The coordinator of a sweep is such a replica."""
    run.topology = topology("{name: checks, role: evaluator, replicas: 1}")
    run.note(home)
    run.start()
    page = make_page(run)
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.was_heard)
    title, sentence = page.run_view.canvas.empty_texts
    assert title == "No picture of this run"
    assert "“Replicas” lists them" in sentence
