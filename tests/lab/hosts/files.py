"""The folders of a host on this machine, which are filled before the host boots and cleared between tests."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.lab.hosts import boot
from tests.lab.hosts.spec import HostSpec


@dataclass(frozen=True)
class HostFiles:
    """Folders of this machine that appear on the host as /run/lab, /root, /tmp and the users' homes."""

    folder: Path
    home: Path
    homes: Path
    """The folder of the homes of users other than root."""

    @property
    def tmp(self) -> Path:
        """The host's /tmp."""
        return self.folder / "tmp"

    def home_of(self, user: str) -> Path:
        """Returns the HOME folder of one of the host's users."""
        return self.home if user == "root" else self.homes / f"home-{user}"

    def inside(self, path: Path) -> str:
        """Converts the path of a file on this machine to its path on the host, below /root, /tmp or /run/lab."""
        for outer, inner in ((self.home, "/root"), (self.tmp, "/tmp"), (self.folder, boot.INSIDE)):
            if path.is_relative_to(outer):
                return str(Path(inner, path.relative_to(outer)))
        raise ValueError(f"{path} is not on the host: only {self.home} and {self.tmp} are.")

    def write(self, spec: HostSpec, port: int, authorized: str) -> None:
        """Writes all files from which the host boots."""
        for folder in (self.folder, self.folder / "etc", self.home, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.tmp.chmod(0o1777)
        for root, point in boot.mount_points(spec):
            (self.home if root == "/root" else self.tmp).joinpath(point).mkdir(parents=True, exist_ok=True)
        for name, text in boot.etc_files(spec).items():
            (self.folder / "etc" / name).parent.mkdir(exist_ok=True)
            (self.folder / "etc" / name).write_text(text)
        (self.folder / "etc" / "shadow").chmod(0o600)
        (self.folder / "boot.sh").write_text(boot.boot_script(spec, self.folder, self.home, self.tmp, self.home_of))
        (self.folder / "authorized_keys").write_text(authorized + "\n")
        (self.folder / "banner").write_text("Authorised use only.\n")
        slow = self.folder / "slow_keys"
        slow.write_text(f"#!/bin/sh\nsleep {spec.login_takes_s}\ncat {boot.INSIDE}/authorized_keys\n")
        slow.chmod(0o755)
        self.write_sshd_config(spec, port)
        for index, account in enumerate(spec.accounts()):
            self.home_of(account).mkdir(mode=0o755, exist_ok=True)
            os.chown(self.home_of(account), boot.FIRST_UID + index, boot.FIRST_UID + index)
        for user in ("root", *spec.accounts()):
            for name, text in boot.start_up_files(spec).items():
                path = self.home_of(user) / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)

    def write_sshd_config(self, spec: HostSpec, port: int) -> None:
        """Writes sshd's configuration, which sshd reads when it starts."""
        (self.folder / "sshd_config").write_text(boot.sshd_config(spec, port))

    def wipe(self, spec: HostSpec) -> None:
        """Removes the files from root's HOME and /tmp that did not exist at boot time."""
        start_up = {Path(name).parts[0] for name in boot.start_up_files(spec)}
        for folder, root, own in ((self.home, "/root", start_up), (self.tmp, "/tmp", set[str]())):
            # If a mount point were removed, the host's mount would silently disappear.
            stays = own | {point.parts[0] for where, point in boot.mount_points(spec) if where == root}
            for entry in folder.iterdir():
                if entry.name not in stays:
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def log(self) -> str:
        """Returns the output of the boot script and of sshd."""
        texts = (self.folder / name for name in ("boot.log", "sshd.log"))
        return "\n".join(path.read_text() for path in texts if path.exists()).strip()
