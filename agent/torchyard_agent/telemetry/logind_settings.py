"""The settings of systemd-logind that end a user's processes at logout.

`KillUserProcesses=yes` ends the agent and all runs with the SSH session that started them, unless lingering is enabled
for the user (`loginctl enable-linger`).
https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html
"""

from __future__ import annotations

import glob
import os
import pwd

from torchyard_agent.telemetry.procfs import read_or

_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""The folders that may contain logind's settings. Later folders take precedence."""


def ends_with_login(root: str = "/", user: str | None = None) -> bool:
    """Returns whether this host kills processes of `user` (by default this process's user) at logout."""
    user = user or pwd.getpwuid(os.getuid()).pw_name
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        return False  # This host does not run systemd.
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return False
    settings = _logind(root)
    if settings.get("KillUserProcesses", "no").lower() not in ("yes", "true", "on", "1"):
        return False
    only = settings.get("KillOnlyUsers", "").split()
    spared = settings.get("KillExcludeUsers", "root").split()
    return user not in spared and (not only or user in only)


def _logind(root: str) -> dict[str, str]:
    """Reads logind's settings from the main file, and then from the drop-in files in the order of their names."""
    main = [path for folder in _FOLDERS if os.path.exists(path := os.path.join(root, folder, "logind.conf"))][-1:]
    drop_ins = {
        os.path.basename(path): path
        for folder in _FOLDERS
        for path in glob.glob(os.path.join(root, folder, "logind.conf.d", "*.conf"))
    }
    settings: dict[str, str] = {}
    for path in (*main, *(drop_ins[name] for name in sorted(drop_ins))):
        for line in read_or(path).decode("utf-8", "replace").splitlines():
            name, is_setting, value = line.strip().partition("=")
            if is_setting and not name.startswith(("#", ";")):
                settings[name.strip()] = value.strip()
    return settings
