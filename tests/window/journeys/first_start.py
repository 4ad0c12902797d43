"""Starts the window for the first time, without fleet, settings or agent: opens the example, runs it on this computer,
and copies it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PySide6.QtWidgets import QPushButton

from tests.window.user import User

TRAINED_WITHIN_S = 300


@contextmanager
def prepared(home: Path) -> Iterator[None]:
    """Gives the agent a separate home folder, and undeploys the agent after the journey."""
    folder = home.parent / "user"
    folder.mkdir()
    with patch.dict(os.environ, HOME=str(folder)):
        try:
            yield
        finally:
            command = [str(Path(sys.executable).with_name("torchyard")), "--home", str(home), "undeploy", "--yes"]
            subprocess.run(command, check=False, timeout=60, capture_output=True)


def journey(user: User) -> None:
    window = user.window
    page: Any = user.gui(lambda: window.page("topology"))
    assert user.gui(lambda: window.current) == "topology"
    assert not user.gui(user.arguments[0].fleet_file.exists)
    user.picture("first-start")
    user.click(user.button("Open the example", page.view))
    user.expect(lambda: page.document.path is not None and page.scene.names, "the example is drawn")
    assert user.gui(page.view.hasFocus), "the canvas has the focus"
    user.picture("example")
    user.click(page.bar.launch)
    user.expect(lambda: window.current == "runs" and state(window) != "", "the run is shown", within_s=TRAINED_WITHIN_S)
    user.picture("launched")
    user.expect(lambda: state(window) == "succeeded", "the run succeeds", within_s=TRAINED_WITHIN_S)
    runs: Any = user.gui(lambda: window.page("runs"))
    user.picture("succeeded")
    copy = user.gui(lambda: [one for one in runs.findChildren(QPushButton) if one.text() == "Edit a copy"])
    if copy and user.gui(copy[0].isVisible):
        user.click(copy[0])
    else:
        user.key("ctrl+shift+e")
    user.expect(lambda: window.current == "topology" and page.document.path is None, "a copy is open")
    assert user.gui(lambda: [pool.role.value for pool in page.document.value.pools]) == ["chief", "worker"]
    user.picture("copy")
    user.key("a")
    user.type("evaluator")
    user.key("Return")
    user.expect(lambda: len(page.document.value.pools) == 3, "the copy is edited")
    user.picture("edited")


def state(window: Any) -> str:
    feed = window.page("runs").feed
    return feed.picture.state if feed is not None else ""
