"""Builds the contents of the files with which a host boots: its boot script, accounts and sshd configuration."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import bcrypt  # bcrypt is a dependency of paramiko.

from tests import REPOSITORY
from tests.lab.hosts.spec import HostSpec

INSIDE = "/run/lab"
"""The path of a host's folder on the host itself."""
FIRST_UID = 2001
OLD_PYTHON = "3.6"

START_SSHD = (
    f"setsid /usr/sbin/sshd -D -e -f {INSIDE}/sshd_config </dev/null >>{INSIDE}/sshd.log 2>&1 & "
    f"echo $! >{INSIDE}/sshd.pid"
)
"""Shell line that starts the host's sshd and writes its process ID to a file on the host."""


def kept_reachable(spec: HostSpec) -> list[Path]:
    """Returns the folders below HOME or /tmp that remain visible on hosts: the repository and the tests' interpreter.

    A virtual environment's interpreter links to its base interpreter, so both folders are included. If the base
    interpreter was installed by pyenv, the entire pyenv folder is included. A host that is specified without Python
    gets no folder, and a host with an old Python gets only the folder of that interpreter.
    """
    if spec.python == "none":
        return []
    pyenv = Path("/root/.pyenv")
    if spec.python == OLD_PYTHON:
        return [old_python().parents[1]]
    base = Path(sys.base_prefix)
    wanted = {pyenv if base.is_relative_to(pyenv) else base, Path(sys.prefix), REPOSITORY}
    hidden = [path for path in wanted if path.is_relative_to("/root") or path.is_relative_to("/tmp")]
    return sorted(path for path in hidden if not any(path != other and path.is_relative_to(other) for other in hidden))


def old_python() -> Path:
    """Returns this machine's Python 3.6 interpreter built with pyenv, or a path that does not exist."""
    versions = sorted(Path("/root/.pyenv/versions").glob(f"{OLD_PYTHON}.*"))
    return (versions[-1] if versions else Path("/root/.pyenv/versions/3.6")) / "bin" / "python3.6"


def boot_script(spec: HostSpec, folder: Path, home: Path, tmp: Path, home_of: Callable[[str], Path]) -> str:
    """Returns the script of the host's first process, which sets up its mounts, starts sshd, and waits.

    Its stdin is a pipe that the test process holds. When the test process exits for any reason, the read returns, the
    first process exits, and the kernel then kills every other process on the host.
    """
    lines = ["set -eu", f"echo {shlex.quote(spec.name)} > /proc/sys/kernel/hostname"]
    for name in etc_files(spec):
        lines.append(f"test ! -e /etc/{name} || mount --bind {_quoted(folder / 'etc' / name)} /etc/{name}")
    # These folders are mounted first, because later mounts hide their paths.
    for path in kept_reachable(spec):
        new_root, old_root = (home, "/root") if path.is_relative_to("/root") else (tmp, "/tmp")
        lines.append(f"mount --rbind {_quoted(path)} {_quoted(new_root / path.relative_to(old_root))}")
    lines += [
        "mount -t tmpfs -o mode=755 lab-mnt /mnt",
        "mkdir /mnt/lab /mnt/home /mnt/tmp",
        f"mount --bind {_quoted(folder)} /mnt/lab",
        f"mount --rbind {_quoted(home)} /mnt/home",
        f"mount --rbind {_quoted(tmp)} /mnt/tmp",
        *(f"mkdir /mnt/of-{name} && mount --bind {_quoted(home_of(name))} /mnt/of-{name}" for name in spec.accounts()),
        "mount -t tmpfs -o mode=755 lab-run /run",
        f"mkdir -p {INSIDE} /run/sshd /run/lock",
        f"mount --rbind /mnt/lab {INSIDE}",
        "mount --rbind /mnt/home /root",
        "mount --rbind /mnt/tmp /tmp",
        *(["mount -t tmpfs -o mode=755 lab-home /home"] if spec.accounts() else []),
        *(f"mkdir /home/{name} && mount --bind /mnt/of-{name} /home/{name}" for name in spec.accounts()),
        "umount -R /mnt",
        "mount -t tmpfs -o mode=755 lab-log /var/log",
        "touch /var/log/lastlog /var/log/wtmp",
        "test ! -d /dev/shm || mount -t tmpfs -o mode=1777 lab-shm /dev/shm",
    ]
    if spec.python != "usual":
        lines += _without_python()
    if spec.python == OLD_PYTHON:
        lines.append(f"ln -s {_quoted(old_python())} /usr/bin/python3")
    lines += ["cd /", START_SSHD, "while read -r _; do :; done"]
    return "\n".join(lines) + "\n"


def _hashed(password: str) -> str:
    """Returns the hash of a password in the format of /etc/shadow."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def etc_files(spec: HostSpec) -> dict[str, str]:
    """Returns the host's own versions of files in /etc, with its accounts and without the names of other machines."""
    accounts = [("root", 0, "/root"), ("nobody", 65534, "/nonexistent"), ("sshd", 102, "/run/sshd")]
    accounts += [(name, FIRST_UID + index, f"/home/{name}") for index, name in enumerate(spec.accounts())]
    shells = {"nobody": "/usr/sbin/nologin", "sshd": "/usr/sbin/nologin"}
    return {
        "hostname": f"{spec.name}\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "resolv.conf": "# No name server: other machines have addresses only.\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "passwd": "".join(
            f"{name}:x:{uid}:{uid}::{home}:{shells.get(name, spec.login_shell)}\n" for name, uid, home in accounts
        ),
        "group": "".join(f"{name}:x:{uid}:\n" for name, uid, _ in accounts) + "tty:x:5:\n",
        "shadow": "".join(
            f"{name}:{_hashed(spec.passwords[name]) if name in spec.passwords else '*'}:20000:0:99999:7:::\n"
            for name, _, _ in accounts
        ),
        "pam.d/sshd": "auth required pam_unix.so\naccount required pam_unix.so\nsession required pam_permit.so\n",
    }


def sshd_config(spec: HostSpec, port: int) -> str:
    """Returns the configuration of the host's sshd."""
    lines = [
        *spec.sshd,
        f"Port {port}",
        "AddressFamily inet",
        f"HostKey {INSIDE}/host_key",
        f"AuthorizedKeysFile {INSIDE}/authorized_keys .ssh/authorized_keys",
        "PermitRootLogin yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "UsePAM no",
        "StrictModes no",
        "PidFile none",
        "UseDNS no",
        "PrintMotd no",
        "Subsystem sftp internal-sftp",
    ]
    if not any(line.startswith("MaxStartups") for line in spec.sshd):  # sshd uses the last line that has this keyword.
        lines.append("MaxStartups 100:30:200")
    if spec.login_takes_s:
        lines.insert(0, "AuthorizedKeysFile none")
        lines += [f"AuthorizedKeysCommand {INSIDE}/slow_keys", "AuthorizedKeysCommandUser root"]
    if spec.ssh_environment:
        # sshd uses only the first SetEnv line, so that line must contain all variables.
        pairs = (f'"{name}={_escaped(value)}"' for name, value in spec.ssh_environment.items())
        lines.append(f"SetEnv {' '.join(pairs)}")
    if spec.noisy:
        lines.append(f"Banner {INSIDE}/banner")
    return "\n".join(lines) + "\n"


def start_up_files(spec: HostSpec) -> dict[str, str]:
    """Returns the start-up files in the accounts' HOME folders, by relative path; only a noisy host has any."""
    if not spec.noisy:
        return {}
    chatter = "echo 'Welcome to the cluster!'; echo 'quota: 93% used' >&2; printf 'no newline at the end of this'\n"
    return {
        ".bashrc": chatter,
        ".profile": chatter,
        ".cshrc": "echo 'Welcome to the cluster (csh)!'\n",
        ".ssh/rc": "echo 'a line of ~/.ssh/rc'\n",
    }


def _without_python() -> Iterable[str]:
    """Returns the commands that hide every Python in /usr/bin and /usr/local/bin on this host only."""
    for place in ("/usr/bin", "/usr/local/bin"):
        layer = f"/run/layer{place}"
        yield f"mkdir -p {layer}/upper {layer}/work"
        yield f"mount -t overlay lab-bin -o lowerdir={place},upperdir={layer}/upper,workdir={layer}/work {place}"
        yield f"rm -f {place}/python* {place}/pypy*"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def mount_points(spec: HostSpec) -> Sequence[tuple[str, Path]]:
    """Returns the root and the relative folder of each mount in HOME and /tmp; these must exist before mounting."""
    points = []
    for path in kept_reachable(spec):
        root = "/root" if path.is_relative_to("/root") else "/tmp"
        points.append((root, path.relative_to(root)))
    return points
