"""Finds the user who started a process.

A process in a container can choose its UID, so the UID alone is not sufficient.

| condition | result |
|---|---|
| a user other than root created the process's user namespace (rootless podman, `unshare`) | that user |
| the process runs as root, or in a container or user namespace that root created | the user of its session |
| otherwise | the process's UID |

The session is determined by the first of these that is known: the login (`loginuid`, which sudo, su and setuid programs
keep); the user's slice in the control group's path; the first ancestor that does not belong to root (the shell that
called sudo); sudo's variables in the environment, which are not verified. A container is usually started by a daemon,
in which case no session is known. Sources: namespaces(7), ioctl_ns(2), proc(5), pam_loginuid(8), systemd's
user-UID.slice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct

from torchyard_agent.enforcement.classification import CGROUP, CLAIM, LOGIN, NAMESPACE, PARENT, PROCESS, Origin
from torchyard_agent.enforcement.process_identity import ancestors
from torchyard_agent.telemetry.procfs import read, read_or

_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704
_UNSET = 2**32 - 1
"""The value of `loginuid` and `sessionid` if a process has no login."""
_DEEPEST = 32
"""The deepest nesting of user namespaces that the kernel allows."""
_SLICE = re.compile(r"/user\.slice/user-(\d+)\.slice(?:/(?:.*/)?session-([^/]+)\.scope)?(?:/|$)")
_CONTAINER = re.compile(
    # The first alternative matches containers of Docker, Podman, containerd and CRI-O.
    r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)"
    r"|/lxc(?:\.payload)?[./]([^/]+)"
    r"|/machine\.slice/machine-([^/]+)\.scope"
)


def find_origin(pid: int, uid: int) -> Origin:
    """Returns the origin of a process. `uid` is the UID of the process as this agent sees it."""
    groups = _groups(pid)
    login, session = login_of(groups)
    container = container_of(groups)
    if container and (container == container_of(_groups("self")) or _is_same_namespace(pid, "mnt")):
        # Either the agent is in the same container, or the control group merely has a name that resembles a
        # container's.
        container = ""
    ours, owner = _namespace_owner(pid)
    if owner:
        return Origin(owner, NAMESPACE, container=container, session=session)
    if ours is None and container:  # The container belongs to another user, whose namespaces this user cannot read.
        return Origin(login, CGROUP if login is not None else "", container=container, session=session)
    if uid != 0 and not container and ours is not False:
        return Origin(uid, PROCESS)
    return _from_session(pid, Origin(None, "", True, container, session), login)


def _from_session(pid: int, found: Origin, login: int | None) -> Origin:
    """Returns `found` with the user of the process's session, or `found` itself if the session is unknown."""
    number = _number(f"/proc/{pid}/loginuid")
    if number:
        session = _number(f"/proc/{pid}/sessionid")
        return found._replace(uid=number, known_by=LOGIN, session=found.session or str(session or ""))
    if login:
        return found._replace(uid=login, known_by=CGROUP)
    for ancestor in ancestors(pid):
        with contextlib.suppress(OSError):
            if not _is_same_namespace(ancestor, "user"):
                continue
            if found.container and container_of(_groups(ancestor)) == found.container:
                continue  # In a container, an ancestor may run under any UID, so its UID does not identify the user.
            uid = os.stat(f"/proc/{ancestor}").st_uid
            if uid != 0:
                return found._replace(uid=uid, known_by=PARENT)
    with contextlib.suppress(OSError, ValueError):
        for entry in read(f"/proc/{pid}/environ", 2**20).split(b"\0"):
            if entry.startswith(b"SUDO_UID=") and 0 < int(entry[9:]) < _UNSET:
                return found._replace(uid=int(entry[9:]), known_by=CLAIM)
    return found


def login_of(groups: str) -> tuple[int | None, str]:
    """Returns (UID, session) of the login to which control groups in /proc/PID/cgroup belong, or (None, "")."""
    for path in _paths(groups):
        # The pattern must match from the start of the path, because users may create groups of any name below their own
        # group.
        found = _SLICE.match(path)
        if found:
            return int(found[1]), found[2] or ""
    return None, ""


def container_of(groups: str) -> str:
    """Returns the ID or name of the container to which control groups belong, or "" if there is none."""
    for path in _paths(groups):
        found = _CONTAINER.search(path)
        if found:
            return next(group for group in found.groups() if group)
    return ""


def is_in_group_below(pid: int, keeper: int) -> bool:
    """Returns whether a process is in a control group that the keeper with the PID `keeper` created for its run."""
    above = dict(_lines(_groups(keeper)))
    groups = (f"{above.get(name, '?').rstrip('/')}/torchyard-" for name, _ in _lines(_groups(pid)))
    return any(path.startswith(group) for (_, path), group in zip(_lines(_groups(pid)), groups))


def _namespace_owner(pid: int) -> tuple[bool | None, int | None]:
    """Returns whether a process is in the agent's own user namespace and, if not, the UID that created its namespace.

    If namespaces are nested, the UID is that of the creator of the outermost namespace below the agent's. The result
    is (None, None) if the process is hidden. Kernels before 4.11 do not provide the creator.
    """
    try:
        if _is_same_namespace(pid, "user"):
            return True, None
        descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None, None
    try:
        ours = os.stat("/proc/self/ns/user")
        for _ in range(_DEEPEST):
            above = fcntl.ioctl(descriptor, _NS_GET_PARENT)
            if os.path.samestat(os.fstat(above), ours):
                os.close(above)
                owner = bytearray(4)
                fcntl.ioctl(descriptor, _NS_GET_OWNER_UID, owner)
                return False, struct.unpack("I", owner)[0]
            os.close(descriptor)
            descriptor = above
        return False, None
    except OSError:
        return False, None
    finally:
        os.close(descriptor)


def _is_same_namespace(pid: int, kind: str) -> bool:
    """Returns whether a process and the agent are in the same namespace of this kind, such as `user`.

    If the namespace is hidden, the result is False, except for the kind `user`, for which OSError is raised.
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        if kind == "user":
            raise
        return False


def _groups(pid: object) -> str:
    return read_or(f"/proc/{pid}/cgroup").decode(errors="replace")


def _lines(groups: str) -> list[tuple[str, str]]:
    """Returns (controllers, path) for each control group hierarchy in the text of /proc/PID/cgroup."""
    parts = (line.split(":", 2) for line in groups.splitlines())
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _paths(groups: str) -> list[str]:
    return [path for _, path in _lines(groups)]


def _number(path: str) -> int:
    """Reads a number from a file. Returns 0 if the number is not set or the file cannot be read."""
    try:
        number = int(read(path, 32))
    except (OSError, ValueError):
        return 0
    return 0 if number == _UNSET else number
