"""Test of the Bookings page with a real cluster: the window books nodes, changes bookings, and shows refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.end_to_end.slurm.conftest import DesktopFactory, on_cluster
from tests.end_to_end.slurm.jobs import reservations
from tests.gui.page_window import show_page
from tests.lab.slurm import SlurmCluster
from torchyard_core.booking.model import Booking
from torchyard_core.home import Home
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.fleet_model import FleetModel

pytestmark = pytest.mark.lab
__all__ = ["on_cluster"]
HOUR = timedelta(hours=1)
WITHIN_MS = 60_000


@pytest.fixture
def page(qtbot: Any, on_cluster: DesktopFactory, cluster: SlurmCluster) -> Iterator[BookingsPage]:
    """Returns the page of root, who may reserve nodes."""
    desktop = on_cluster()
    home = Home(desktop.home)
    fleet = FleetModel(home, desktop.fleet_file)
    fleet.clusters.check()  # Installs the agent.
    model = BookingsModel(home, fleet)
    made, _ = show_page(qtbot, lambda: BookingsPage(model), 1168, 700)
    yield made
    made.close_page()
    model.close()
    fleet.close()
    for name in reservations(cluster):
        cluster.run("scontrol", "delete", f"ReservationName={name}")


def test_nodes_booked_in_the_window_are_reserved_in_slurm(
    qtbot: Any, page: BookingsPage, cluster: SlurmCluster
) -> None:
    def wait(condition: Callable[[], object]) -> None:
        qtbot.waitUntil(lambda: bool(condition()), timeout=WITHIN_MS)

    def book(title: str, *nodes: str) -> BookingDialog:
        start = page.model.now.replace(minute=0, second=0, microsecond=0) + 2 * HOUR
        gpus = [f"slurm:hpc/{node}" for node in nodes]
        page.dialogs.book_at(gpus, start.timestamp(), (start + HOUR).timestamp())
        dialog = page.dialog
        assert isinstance(dialog, BookingDialog)
        dialog.title.setText(title)
        QTest.keyClick(dialog.title, Qt.Key.Key_Return)
        return dialog

    def booking(title: str) -> Booking | None:
        return next((one for one in page.model.seen.bookings if one.title == title and one.is_live), None)

    wait(lambda: page.model.fleet.clusters.all[0].answers)
    page.clusters.read()
    wait(lambda: "slurm:hpc/n3" in page.surface.picture.lanes.lane_of)
    book("mine", "n1", "n2")
    wait(lambda: booking("mine"))
    made = booking("mine")
    assert made is not None
    reservation = reservations(cluster)[f"torchyard_{made.id}"]
    assert (reservation["Nodes"], reservation["Users"]) == ("n[1-2]", "root")
    page.commands.extend(made, HOUR)
    wait(lambda: len(page.commands.history.done) == 2)
    end = int(reservations(cluster)[f"torchyard_{made.id}"]["EndTime"])
    assert end == int(made.end.timestamp()) + 3600
    refused = book("theirs", "n1", "n3")
    wait(lambda: refused.problem.text())
    assert "n1" in refused.problem.text()
    refused.reject()
    cluster.run(
        *("scontrol", "create", "reservation", "ReservationName=maint"),
        *("StartTime=now+1hour", "Duration=240", "Nodes=n3", "Users=root"),
    )
    refused = book("theirs", "n3")
    wait(lambda: "so nothing was booked" in refused.problem.text())
    wait(lambda: booking("theirs") is None)  # The calendar is read again after the refusal.
    refused.reject()
    page.commands.undo()
    page.commands.undo()
    wait(lambda: list(reservations(cluster)) == ["maint"])
