"""Opens a terminal on the desktop with a login shell on a host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from torchyard_core.background_thread import in_background
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.inventory import Host

TERMINALS = {
    "x-terminal-emulator": ("-e",),
    "gnome-terminal": ("--",),
    "konsole": ("-e",),
    "xfce4-terminal": ("-x",),
    "alacritty": ("-e",),
    "kitty": (),
    "wezterm": ("start", "--"),
    "foot": (),
    "xterm": ("-e",),
}
"""Terminal emulators in the order of preference, each with the arguments that must precede the command to run."""


def open_terminal(host: Host, known_hosts: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Starts a terminal that outlives this program. Raises TorchyardError if no terminal emulator is installed."""
    command = terminal_of(environment)
    if not host.local:
        from torchyard_core.fleet.ssh.openssh import terminal_command  # Imported late: paramiko takes 0.25 s to load.

        command += terminal_command(host, known_hosts)
    else:
        command += [environment.get("SHELL") or "/bin/sh"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=Path.home(),
        )
    except OSError as error:
        raise TorchyardError(f"{command[0]} cannot be started: {error.strerror}.", code="no_terminal") from error
    in_background(process.wait)  # If wait() were not called, the process would remain as a zombie.


def terminal_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the command of $TERMINAL or of the first installed terminal. Raises TorchyardError if there is none.

    The command to run in the terminal must be appended.
    """
    wanted = environment.get("TERMINAL", "")
    path = environment.get("PATH")
    for name in (wanted, *TERMINALS):
        if name and (program := shutil.which(name, path=path)) is not None:
            return [program, *TERMINALS.get(Path(name).name, ("-e",))]
    message = f"the terminal {wanted} of $TERMINAL was not found." if wanted else "no terminal emulator was found."
    hint = "Install one, such as xterm, or name it in the environment variable TERMINAL."
    raise TorchyardError(message, code="no_terminal", hint=hint)
