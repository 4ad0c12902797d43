"""Tests of determining the origin of a process from its control group and from other data of the real kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchyard_agent.enforcement import process_origin
from torchyard_agent.enforcement.classification import CGROUP, CLAIM, LOGIN, PARENT, PROCESS, Origin
from torchyard_agent.enforcement.process_origin import container_of, find_origin, is_in_group_below, login_of
from torchyard_agent.keeper.processes import cgroup

ID = "4d1f" * 16
SCOPE = "/user.slice/user-1001.slice/session-7.scope"


@pytest.mark.parametrize(
    ("groups", "login"),
    [
        (f"0::{SCOPE}\n", (1001, "7")),
        (f"12:cpu:/\n1:name=systemd:{SCOPE}\n0::/\n", (1001, "7")),
        (f"0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{ID}.scope\n", (1001, "")),
        ("0::/user.slice/user-1001.slice\n", (1001, "")),
        ("0::/user.slice/user-1001.slice/user@1001.service/user.slice/user-1002.slice/x\n", (1001, "")),
        ("0::/mine/user.slice/user-1002.slice/x\n", (None, "")),
        (f"0::/../..{SCOPE}\n", (None, "")),
        ("0::/user.slice/user-1001.slicer/x\n", (None, "")),
        ("", (None, "")),
        ("nonsense\n", (None, "")),
    ],
)
def test_the_login_is_that_of_the_slice_at_the_root_of_the_control_groups(
    groups: str, login: tuple[int | None, str]
) -> None:
    assert login_of(groups) == login


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (f"/docker/{ID}", ID),
        (f"/system.slice/docker-{ID}.scope", ID),
        (f"/machine.slice/libpod-{ID}.scope/container", ID),
        (f"/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-{ID}.scope", ID),
        (f"/kubepods/besteffort/pod1-2/{ID}", ID),
        ("/lxc.payload.web/init.scope", "web"),
        ("/lxc/web", "web"),
        ("/machine.slice/machine-web.scope", "web"),
        (SCOPE, ""),
        ("/system.slice/docker.service", ""),
        (f"/docker/{ID[:-1]}", ""),
        ("/", ""),
    ],
)
def test_containers_are_recognized_by_their_control_groups(path: str, container: str) -> None:
    assert container_of(f"0::{path}\n") == container


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.setuid(4242) if os.getuid() == 0 else None) as process:
        yield process
        process.kill()


def test_the_origin_of_an_ordinary_process_is_its_uid(sleeper: subprocess.Popen[bytes]) -> None:
    uid = Path(f"/proc/{sleeper.pid}").stat().st_uid
    assert find_origin(sleeper.pid, uid)[:3] == (uid, PROCESS, False)


def test_an_ended_process_has_an_unknown_origin() -> None:
    assert find_origin(2**22 + 1, 1001).uid in (1001, None)


class Kernel:
    """Simulates the kernel's data on the control group, the login and the ancestors of every process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.groups = "0::/system.slice/cron.service\n"
        self.loginuid = self.sessionid = 0
        self.above: list[int] = []
        monkeypatch.setattr(process_origin, "_groups", lambda pid: self.groups)
        monkeypatch.setattr(process_origin, "_number", lambda path: getattr(self, path.rpartition("/")[2]))
        monkeypatch.setattr(process_origin, "ancestors", lambda pid: self.above)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@pytest.fixture
def sudos() -> Iterator[int]:
    """Starts a process with the environment that sudo sets for a caller with UID 1001; yields its PID."""
    with subprocess.Popen(["sleep", "60"], env={"SUDO_UID": "1001"}) as process:
        yield process.pid
        process.kill()


def test_the_origin_of_a_root_process_is_its_most_reliable_session(
    kernel: Kernel, sudos: int, sleeper: subprocess.Popen[bytes]
) -> None:
    uid = Path(f"/proc/{sleeper.pid}").stat().st_uid
    found = [find_origin(os.getpid(), 0), find_origin(sudos, 0)]
    kernel.above = [os.getpid(), sleeper.pid]
    found.append(find_origin(sudos, 0))
    kernel.groups = "0::/user.slice/user-1003.slice/session-7.scope\n"
    found.append(find_origin(sudos, 0))
    kernel.loginuid, kernel.sessionid = 1004, 12
    found.append(find_origin(sudos, 0))
    kernel.groups = "0::/\n"
    found.append(find_origin(sudos, 0))
    assert found == [
        Origin(None, "", as_root=True),
        Origin(1001, CLAIM, as_root=True),
        Origin(uid, PARENT, as_root=True),
        Origin(1003, CGROUP, as_root=True, session="7"),
        Origin(1004, LOGIN, as_root=True, session="7"),
        Origin(1004, LOGIN, as_root=True, session="12"),
    ]


@pytest.mark.parametrize("claim", ["0", "-1", "99999999999999999999", "ann", ""])
def test_an_invalid_sudo_uid_is_ignored(kernel: Kernel, claim: str) -> None:
    with subprocess.Popen(["sleep", "60"], env={"SUDO_UID": claim}) as process:
        assert find_origin(process.pid, 0) == Origin(None, "", as_root=True)
        process.kill()


def test_a_users_group_with_a_container_name_is_no_container(kernel: Kernel, sleeper: subprocess.Popen[bytes]) -> None:
    kernel.groups = f"0::/mine/{ID}\n"
    uid = Path(f"/proc/{sleeper.pid}").stat().st_uid
    assert find_origin(sleeper.pid, uid) == Origin(uid, PROCESS)


def test_a_process_in_the_group_of_a_run_belongs_to_the_run() -> None:
    group = cgroup.create(os.urandom(6).hex(), "gpu-a")
    assert group is not None, "this test needs cgroup v2, mounted where this user may make groups"
    group.make("worker-0")
    try:
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
            assert not is_in_group_below(process.pid, os.getpid())
            group.join("worker-0", process.pid)
            assert is_in_group_below(process.pid, os.getpid())
            assert not is_in_group_below(process.pid, 2**22 + 1)
            process.kill()
    finally:
        group.remove()
