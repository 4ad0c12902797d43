"""A virtual display with a window manager: Xvfb and openbox."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

ENDS_WITHIN_S = 60


@contextlib.contextmanager
def open_display(size: str = "1440x900") -> Iterator[str]:
    """Yields the name of a display of `size` pixels, such as ":99", with a window manager."""
    # Each server prints a line once it is ready: Xvfb prints the number of the display, and openbox runs `echo`.
    with _started(["Xvfb", "-displayfd", "1", "-screen", "0", f"{size}x24", "-nolisten", "tcp"]) as number:
        display = f":{number}"
        with _started(["openbox", "--startup", "echo ready"], {**os.environ, "DISPLAY": display}):
            yield display


@contextlib.contextmanager
def _started(command: list[str], environment: dict[str, str] | None = None) -> Iterator[str]:
    """Runs a server and yields the first line of its output; stops the server afterwards."""
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        assert line, f"{command[0]} did not start"
        yield line
    finally:
        server.terminate()
        server.wait(ENDS_WITHIN_S)
        server.stdout.close()
