"""A systemd unit that starts the daemon after a reboot.

The unit is installed only if the user has enabled lingering (`loginctl enable-linger`). Without lingering, systemd
would start the user's units only at the next login, when the connection from a desktop starts the daemon anyway. The
unit does not contain the name of a host, because hosts may share home folders.
https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys

from torchyard_agent.protocol import paths

_UNIT = """\
[Unit]
Description=Torchyard agent

[Service]
ExecStart={python} -I -S {main} daemon {agent_dir} {sha256}
# Run keepers are started by the daemon and outlive it.
KillMode=process
Restart=no

[Install]
WantedBy=default.target
"""


def install(agent_dir: str, sha256: str, root: str = "/", home: str | None = None) -> bool:
    """Writes and enables the unit for this archive, if systemd would start the unit. Raises OSError if this fails.

    Returns:
        Whether the unit is enabled.
    """
    if not _can_come_back(root):
        return False
    main = os.path.join(paths.archive_dir(agent_dir, sha256), "torchyard_agent", "__main__.py")
    words = [_quoted(word) for word in (sys.executable, main, agent_dir)]
    text = _UNIT.format(python=words[0], main=words[1], agent_dir=words[2], sha256=sha256)
    unit, link = _paths(agent_dir, home)
    os.makedirs(os.path.dirname(link), 0o755, exist_ok=True)
    if _read(unit) != text:
        with open(f"{unit}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(f"{unit}.new", unit)
    with contextlib.suppress(FileExistsError):
        os.symlink(os.path.join("..", os.path.basename(unit)), link)
    return True


def remove(agent_dir: str, home: str | None = None) -> None:
    """Disables and removes the unit, if it exists."""
    for path in reversed(_paths(agent_dir, home)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _can_come_back(root: str) -> bool:
    user = pwd.getpwuid(os.getuid()).pw_name
    started_by_systemd = os.path.isdir(os.path.join(root, "run/systemd/system"))
    return started_by_systemd and os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))


def _paths(agent_dir: str, home: str | None) -> tuple[str, str]:
    """Returns the path of the unit, and of the link by which the unit is enabled."""
    folder = os.path.join(home or os.path.expanduser("~"), ".config", "systemd", "user")
    name = f"torchyard-agent-{paths.scope(agent_dir)}.service"
    return os.path.join(folder, name), os.path.join(folder, "default.target.wants", name)


def _quoted(word: str) -> str:
    """Quotes a word for a systemd unit, and escapes the characters that have a special meaning in a unit."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
