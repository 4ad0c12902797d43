"""Launches a run on this computer, stops and restarts the run, and kills and reopens the window."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QPushButton

from tests.window.user import User
from torchyard_gui.runs.notes import NotesDialog
from torchyard_gui.windows.signal_connections import SignalConnections

PARTS = ("journey", "reopened")
SCRIPT = """
    import json, os, pathlib, socket, time

    # Reports and checkpoints as train.py has them, without torch: the window is what is tested.
    folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"])
    folder.mkdir(parents=True, exist_ok=True)
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    keeper = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    step = max((int(path.name[5:]) for path in folder.glob("step-*")), default=0)
    print("begins at step", step, flush=True)
    while not pathlib.Path("ENOUGH").exists():
        step += 1
        metrics = {"step": step, "loss": 2 / step, "throughput": 96.0, "accuracy": 1 - 1 / step}
        report = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0, "metrics": metrics}
        reports.sendto(json.dumps(report).encode(), keeper)
        if step == 5:
            scratch = folder / ".saving-5"
            scratch.mkdir()
            (scratch / "checkpoint.json").write_text(json.dumps({"step": step, "files": {}}))
            scratch.rename(folder / f"step-{step:012d}")
        print("step", step, flush=True)
        time.sleep(0.1)
    time.sleep(1)  # the window is killed by then
"""
TOPOLOGY = """\
version: 1
name: short
pools:
  - {name: chief, role: chief, replicas: 1, gpus: 0, hosts: [this-computer]}
program: {script: train.py, stop_grace_s: 1}
"""


def folder_of(home: Path) -> Path:
    return home.parent / "short"


def prepare(home: Path) -> list[str]:
    """Writes a program, and a fleet whose only host is this computer, with a separate agent folder. Returns the file to
    open.
    """
    home.mkdir()
    agent = home.parent / "agent"
    (home / "fleet.yaml").write_text(
        f"version: 1\nhosts:\n  - {{name: this-computer, local: true, agent_dir: {agent}}}\n"
    )
    folder = folder_of(home)
    folder.mkdir()
    (folder / "short.yaml").write_text(TOPOLOGY)
    script = textwrap.dedent(SCRIPT).replace("ENOUGH", str(folder / "enough"))
    (folder / "train.py").write_text(script)
    return [str(folder / "short.yaml")]


@contextmanager
def prepared(home: Path) -> Iterator[None]:
    """Removes this computer's agent, and ends its run, after the journey."""
    try:
        yield
    finally:
        (folder_of(home) / "enough").touch()
        command = [str(Path(sys.executable).with_name("torchyard")), "--home", str(home), "undeploy", "--yes"]
        subprocess.run(command, check=False, timeout=60, capture_output=True)


def journey(user: User) -> None:
    """Performs the steps before the window is killed. At the end, there are unsaved changes and a live run."""
    window: Any = user.window
    user.expect(lambda: window.page("topology").document.path is not None, "the file is open")
    user.key("ctrl+Return")
    user.expect(lambda: window.current == "runs" and state(window) == "running", "the run is shown, and runs")
    page: Any = user.gui(lambda: window.page("runs"))
    first = user.gui(lambda: page.feed.run.run_id)
    user.expect(lambda: "samples/s" in page.bar.state.text(), "its throughput is shown")
    user.expect(lambda: "checkpoint at step 5 saved" in page.run_view.side.timeline.texts, "its checkpoint is an event")
    user.picture("live")

    stop = user.button("Stop …", page.bar)
    before = places(user, page)
    there = user.point(stop)
    user.click(there)
    user.expect(lambda: page._stop_dialog is not None and page._stop_dialog.isActiveWindow(), "Stop asks")
    user.click(user.button("Stop the run", user.gui(lambda: page._stop_dialog)))
    user.expect(lambda: state(window) == "stopped" and window.isActiveWindow(), "the run is stopped")
    assert places(user, page) == before, "a button moved"
    user.click(there)  # The click is where Stop was, and must not launch anything.
    user.picture("stopped")

    user.click(user.button("Restart …", page.bar))
    user.expect(lambda: page._restart_dialog is not None and page._restart_dialog.isActiveWindow(), "Restart asks")
    dialog: Any = user.gui(lambda: page._restart_dialog)
    user.expect(lambda: dialog.resume.text() == "From the checkpoint at step 5", "the checkpoint is found")
    user.picture("restart-question")
    user.click(dialog.begin, QPoint(10, user.gui(dialog.begin.height) // 2))
    user.expect(lambda: dialog.begin.isChecked(), "From the beginning is chosen")
    user.click(user.button("Restart", dialog))
    user.expect(lambda: page.feed.run.run_id != first and state(window) == "running", "the new run is shown, and runs")
    assert user.gui(lambda: page.model.run(page.feed.run.run_id).restarted_from) == first
    user.key("ctrl+shift+n")  # The search bar has the keyboard focus.
    user.expect(lambda: any(note.isActiveWindow() for note in page.findChildren(NotesDialog)), "the note opens")
    user.type("from-scratch")
    user.key("Return")
    user.expect(lambda: page.run_view.side.notes.tags.text() == "#from-scratch", "the tag is shown")
    user.picture("restarted")

    topology = user.show_page("topology")
    user.gui(lambda: topology.editor.set_name("renamed"))
    home: Path = user.gui(lambda: window.findChild(SignalConnections)).home.path
    recovery = home / "recovery"
    user.expect(lambda: any(recovery.glob("*.json")), "the change is kept for a crash")
    (folder_of(home) / "enough").touch()


def reopened(user: User) -> None:
    """Checks that the window restores its contents and the unsaved change, and reports that the run has ended."""
    window: Any = user.window
    topology: Any = user.gui(lambda: window.page("topology"))
    assert user.gui(lambda: window.current) == "topology"
    assert user.gui(lambda: topology.document.path).name == "short.yaml"
    assert user.gui(lambda: topology.document.value.name) == "renamed"
    connections: Any = user.gui(lambda: window.findChild(SignalConnections))
    bar = user.gui(lambda: connections.absence.bar)
    user.expect(lambda: bar.isVisible() and "finished" in bar.text, "the end of the run is reported")
    user.picture("reopened")
    user.click(user.gui(lambda: bar.buttons[0]))
    user.expect(lambda: window.current == "runs" and state(window) == "succeeded", "the run is shown")
    page: Any = user.gui(lambda: window.page("runs"))
    user.key("alt+4")
    user.expect(lambda: page.is_comparing and page.comparison.isVisible(), "both runs are compared")
    user.picture("compared")
    user.key("alt+4")
    user.expect(lambda: not page.is_comparing, "and the run is shown alone")
    user.key("alt+3")
    user.expect(lambda: page.run_view.view == "plots", "its plots are shown")
    user.picture("plots")


def state(window: Any) -> str:
    feed = window.page("runs").feed
    return feed.picture.state if feed is not None else ""


def places(user: User, page: Any) -> dict[str, QPoint]:
    buttons = ("Fetch …", "Restart …", "Stop …")
    return user.gui(
        lambda: {one.text(): one.pos() for one in page.bar.findChildren(QPushButton) if one.text() in buttons}
    )
