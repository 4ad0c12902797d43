"""Opens two windows of one user.

Each window shows bookings that are made in the other one, and notices that the other one has changed a file that both
have open.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QApplication

from tests.window.user import User, xdotool
from torchyard_core.booking.model import Slot
from torchyard_core.booking.store import open_store
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog

DESIGN = """\
version: 1
name: shared
pools:
  - {name: workers, role: worker, replicas: 2, gpus: 0}
program: {script: train.py}
"""


def prepare(home: Path) -> list[str]:
    """Prepares a calendar with two GPUs, a fleet without hosts, and a file that both windows open."""
    home.mkdir()
    (home / "fleet.yaml").write_text("version: 1\nhosts: []\n")
    store = open_store(f"sqlite:///{Home(home).bookings_file}", login_name())
    store.remember_slots([Slot(f"GPU-a{number}", "gpu-a", number, "NVIDIA A100-SXM4-40GB", 40960) for number in (0, 1)])
    store.close()
    (home / "train.py").write_text("print('hello')\n")
    file = home / "shared.yaml"
    file.write_text(DESIGN)
    return [str(file)]


def journey(user: User) -> None:
    """Performs the steps in the first window, which start the second window once the calendar is loaded."""
    home: Home = user.arguments[0]
    page = user.show_page("bookings")
    user.expect(lambda: len(page.model.seen.slots) == 2, "the GPUs are shown")
    pictures = ["--pictures", str(user.pictures)] if user.pictures is not None else []
    program = [sys.executable, "-m", "tests.window.run", *pictures, "--part", "other", "two_windows"]
    other = subprocess.Popen([*program, "--home", str(home.path), str(home.path / "shared.yaml")])
    try:
        perform(user, page, home)
        assert other.wait(60) == 0, "the journey of the second window failed"
    finally:
        other.kill()
        other.wait()


def perform(user: User, page: Any, home: Home) -> None:
    user.expect(lambda: (home.path / "second-is-ready").exists(), "the second window is ready")
    activate(user)
    book(user, page, "gpu-a:0 tomorrow 9-17")
    # The second window shows the booking that was made in the first one, and then makes a booking itself.
    user.expect(lambda: len(bookings(page)) == 2, "the booking of the second window appears")
    assert user.gui(lambda: bookings(page)) == [("GPU-a0",), ("GPU-a1",)]
    # In the second window, a worker is added and the file is saved.
    user.expect(lambda: (home.path / "second-has-saved").exists(), "the second window has saved")
    activate(user)
    topology = user.show_page("topology")
    user.expect(lambda: "changed by another program" in topology.notice_bar.text, "the change of the file is noticed")
    user.picture("first-file-changed")
    user.click(user.button("Read theirs", topology.notice_bar))
    user.expect(lambda: topology.document.value.pools[0].replicas == 3, "the first window shows the new worker")
    user.expect(lambda: not topology.notice_bar.isVisible(), "the notice is gone")
    bookings_page = user.show_page("bookings")
    user.expect(lambda: len(bookings_page.surface.picture.blocks) == 2, "both bookings are drawn")
    user.picture("first-bookings")


def other(user: User) -> None:
    """Performs the steps in the second window, which the window manager puts in front of the first one."""
    home: Home = user.arguments[0]
    page = user.show_page("bookings")
    user.expect(lambda: len(page.model.seen.slots) == 2, "the GPUs are shown")
    user.gui((home.path / "second-is-ready").touch)
    user.expect(lambda: bookings(page) == [("GPU-a0",)], "the booking of the first window appears")
    activate(user)
    user.picture("second-sees-booking")
    book(user, page, "gpu-a:1 tomorrow 9-17")
    topology = user.show_page("topology")
    assert user.gui(lambda: topology.document.path) == home.path / "shared.yaml"
    user.key("a")
    user.type("worker")
    user.key("Return")
    user.expect(lambda: topology.document.value.pools[0].replicas == 3, "a worker is added")
    user.key("ctrl+s")
    user.expect(lambda: not topology.document.is_modified, "the file is saved")
    user.picture("second-saved")
    user.gui((home.path / "second-has-saved").touch)


def activate(user: User) -> None:
    """Brings the window to the front, as a click in a task bar would."""
    xdotool("windowactivate", str(user.gui(lambda: int(user.window.winId()))))
    user.expect(user.window.isActiveWindow, "the window is in front")


def book(user: User, page: Any, text: str) -> None:
    before = user.gui(lambda: len(bookings(page)))
    user.gui(lambda: QApplication.clipboard().setText(text))
    user.click(page.surface.viewport())
    user.key("ctrl+v")
    user.expect(lambda: isinstance(QApplication.activeWindow(), BookingDialog), "the booking is pasted")
    user.key("Return")
    user.expect(lambda: len(bookings(page)) == before + 1, "it is booked")


def bookings(page: Any) -> list[tuple[str, ...]]:
    return sorted(one.gpus for one in page.model.seen.bookings)
