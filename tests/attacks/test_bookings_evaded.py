"""Tests of tricks to use GPUs that other users have booked, unnoticed by enforcement. Each trick succeeded once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.booked_host import SLEEPER, Site, booked_host
from tests.faults.runs import Team, outside_pids
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_agent.keeper.processes.cgroup import _own_group
from torchyard_core.booking.model import Login
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.sync.agent_sync import sync_agents

pytestmark = pytest.mark.lab

NAMED_XORG = f"open('/proc/self/comm', 'w').write('Xorg'); {SLEEPER}"
SAYS_IT_SLEEPS = "echo $$; exec"
DRAWING = "/run/drawing/Xorg"
SUDO = """
#include <unistd.h>
int main(int count, char **arguments) { return setgid(0) || setuid(0) || execvp(arguments[1], arguments + 1); }
"""
CONTAINER = os.urandom(32).hex()


@pytest.fixture
def site(lab: Callable[..., Lab], make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[Site]:
    with booked_host(lab, make_desktop, tmp_path) as made:
        yield made


@pytest.fixture
def root(site: Site) -> Team:
    """Returns a team whose agent runs as root, on a host whose GPU Lee has booked."""
    site.booked_by("lee")
    return site.team("root")


def shell(site: Site, user: str, script: str, *under: str) -> int:
    """Runs a script in a user's shell; returns the PID that the script prints."""
    process = site.host.start([*under, "sh", "-c", script], user)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    site.watch(process, pid)
    return pid


def reported(team: Team, pid: int) -> dict[str, Any]:
    """Waits until the process has been reported; returns its audit entry."""

    def found() -> list[dict[str, Any]]:
        acts = team.call("gpu-a", "audit.read")
        return [act for act in acts if act["what"] == "enforcement" and act["pid"] == pid and act["act"] == "reported"]

    wait_until(found)
    (act,) = found()
    return act


def wait_for_checks(root: Team) -> None:
    """Waits while the agent checks the GPUs a few more times."""
    for _ in range(3):
        root.call("gpu-a", "bookings.status")
        time.sleep(0.2)


def test_a_process_that_names_itself_xorg_is_ended(site: Site, root: Team) -> None:
    _, pid = site.run("ann", NAMED_XORG)
    copy = shell(site, "ann", f"cp /bin/sleep ~/Xorg && {SAYS_IT_SLEEPS} ~/Xorg 600")
    site.host.exec(["sh", "-c", f"mkdir {Path(DRAWING).parent} && cp /bin/sleep {DRAWING}"], check=True)
    mount = f"mount --bind /bin/sleep {DRAWING} && {SAYS_IT_SLEEPS} {DRAWING} 600"
    mounted = shell(site, "ann", mount, "unshare", "--user", "--map-root-user", "--mount")
    genuine = shell(site, "ann", f"{SAYS_IT_SLEEPS} {DRAWING} 600")
    loaded = shell(site, "ann", f"{SAYS_IT_SLEEPS} {DRAWING} 600")
    site.on_gpu(pid, loaded, drawing=(copy, mounted, genuine))

    site.exchange(root, "stop")

    for ended in (pid, copy, mounted):
        wait_until(lambda ended=ended: not site.is_alive(ended))
    wait_until(lambda: "warned" in site.acts(root, loaded))
    wait_for_checks(root)
    assert (site.is_alive(genuine), site.acts(root, genuine)) == (True, [])
    assert (site.is_alive(loaded), site.acts(root, loaded)) == (True, ["observed", "warned"])


def test_a_job_that_restarts_all_the_time_gets_one_grace(site: Site, root: Team) -> None:
    site.exchange(root, "stop", grace_s=2.0)
    began = time.monotonic()
    ended = None
    while time.monotonic() - began < 60 and ended is None:
        process, pid = site.run("ann")
        site.on_gpu(pid)
        time.sleep(0.7)  # Less than the grace period.
        ended = process.poll()
        process.kill()

    assert ended == 128 + signal.SIGTERM or ended == -signal.SIGTERM
    assert time.monotonic() - began >= 2.0


def test_a_container_of_a_user_is_that_users_whatever_uids_it_maps(site: Site, root: Team) -> None:
    remapped = f"print(os.getpid(), flush=True); input(); os.setgid(999); os.setuid(999); {SLEEPER.partition('; ')[2]}"
    process, pid = site.run("ann", f"import os, signal, sys, time; {remapped}", "unshare", "--user", "--keep-caps")
    own = site.uid("ann")
    for name in ("uid_map", "gid_map"):  # newuidmap(1) writes the same mapping from /etc/subuid.
        mapped = f"printf '0 {own} 1\\n1 100000 65535\\n' >/proc/{pid}/{name}"
        site.host.exec(["sh", "-c", mapped], check=True)
    assert process.stdin is not None
    print(file=process.stdin, flush=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert site.uid_of(pid) == 100998
    site.on_gpu(pid)

    site.exchange(root, "stop")

    wait_until(lambda: not site.is_alive(pid))
    (act,) = [act for act in root.call("gpu-a", "audit.read") if act.get("act") == "terminated" and act["pid"] == pid]
    assert (act["user"], act["persons"], act["origin"]["known_by"]) == ("ann", ["kim"], "namespace")


@contextmanager
def container(site: Site, user_inside: str) -> Iterator[int]:
    """Yields the PID of a process in a container that root has started.

    The process has a separate mount namespace and is in the container's control group. So is its parent, which has the
    same user.
    """
    under = ["unshare", "--mount", "setpriv", f"--reuid={user_inside}", "--clear-groups"]
    pid = shell(site, "root", "sleep 4711 & echo $!; wait", *under)
    own = _own_group()
    assert own is not None, "this test needs cgroup v2, mounted where root may make groups"
    group = Path(own, CONTAINER)
    group.mkdir()
    both = outside_pids(site.host, "4711")
    try:
        assert len(both) == 2
        for outside in both:
            (group / "cgroup.procs").write_text(str(outside))
        yield pid
    finally:
        for outside in both:
            os.kill(outside, signal.SIGKILL)
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_container_that_runs_as_the_bookers_uid_is_not_the_bookers(site: Site, root: Team) -> None:
    with container(site, "bob") as pid:
        site.on_gpu(pid)
        site.exchange(root, "stop")
        act = reported(root, pid)
        assert (act["verdict"], act["owner"], act["persons"]) == ("root", "lee", [])
        assert act["origin"] == {
            "uid": None,
            "user": None,
            "known_by": "",
            "as_root": True,
            "container": CONTAINER,
            "session": "",
        }
        wait_for_checks(root)
        assert site.is_alive(pid)


@pytest.mark.parametrize(("user", "verdict"), [("ann", "root"), ("bob", "own")])
def test_a_process_under_sudo_is_reported_with_its_caller(site: Site, root: Team, user: str, verdict: str) -> None:
    source = site.host.tmp / "sudo.c"
    source.write_text(SUDO)
    subprocess.run(["gcc", "-o", str(source.with_suffix("")), str(source)], check=True)
    site.host.exec(["sh", "-c", "cp /tmp/sudo /run/sudo && chmod 4755 /run/sudo"], check=True)
    pid = shell(site, user, "/run/sudo sh -c 'echo $$; exec sleep 600' & wait")
    assert site.uid_of(pid) == 0
    site.on_gpu(pid)

    site.exchange(root, "stop")

    if verdict == "root":
        origin = reported(root, pid)["origin"]
        assert (origin["user"], origin["known_by"], origin["as_root"]) == (user, "parent", True)
    wait_until(lambda: [one["verdict"] for one in root.call("gpu-a", "bookings.status")["findings"]] == [verdict])
    wait_for_checks(root)
    assert site.is_alive(pid)


def test_a_process_outside_its_session_is_reported_with_its_login(site: Site, root: Team) -> None:
    # The PAM module pam_loginuid sets the login user in the same way.
    login = f"echo {site.uid('ann')} >/proc/self/loginuid; {SAYS_IT_SLEEPS} sleep 600"
    pid = shell(site, "root", login, "setsid", "--wait")
    site.on_gpu(pid)

    site.exchange(root, "stop")

    origin = reported(root, pid)["origin"]
    assert (origin["user"], origin["known_by"], origin["as_root"]) == ("ann", "loginuid", True)
    shown = root.desktop.torchyard("hosts", "check", "gpu-a").stdout
    assert f"For admins to look into: sleep (PID {pid}) of root, from a login of ann" in shown
    audit = root.desktop.torchyard("hosts", "audit", "gpu-a").stdout
    assert f"sleep ({pid}) of root, from a login of ann" in audit
    assert site.is_alive(pid)


def test_a_login_in_no_table_is_reported_and_warned(site: Site, root: Team) -> None:
    _, pid = site.run("carl")
    site.on_gpu(pid)

    site.exchange(root, "stop")

    assert (reported(root, pid)["verdict"], reported(root, pid)["owner"]) == ("unknown", "lee")
    wait_until(lambda: site.acts(root, pid) == ["reported", "warned"])
    wait_for_checks(root)
    assert site.is_alive(pid)
    assert f"(PID {pid}) of carl" in root.desktop.torchyard("hosts", "check", "gpu-a").stdout


def test_a_login_that_has_the_bookers_name_on_another_host_is_not_the_booker(site: Site, root: Team) -> None:
    site.store.set_logins([Login("gpu-b", "lee", "lee")])
    _, pid = site.run("lee")
    site.on_gpu(pid)

    site.exchange(root, "stop")

    assert reported(root, pid)["verdict"] == "unknown"


def test_enforcement_resumes_after_a_time_without_a_desktop(site: Site, root: Team) -> None:
    _, pid = site.run("ann")
    site.on_gpu(pid)
    site.exchange(root, "stop", grace_s=1.0)
    wait_until(lambda: site.acts(root, pid) == ["observed", "warned"])
    old = {**site.store.snapshot(), "fresh_s": 0}
    root.fleet.link("gpu-a").call("bookings.snapshot", {"snapshot": old, "host": "gpu-a", "by": "kim@laptop"})
    time.sleep(1.5)  # This time is longer than the grace period.
    _, another = site.run("ann")
    site.on_gpu(pid, another)
    wait_until(lambda: site.acts(root, another) == ["observed"])
    assert site.is_alive(pid)

    site.exchange(root, "stop", grace_s=1.0)

    wait_until(lambda: not site.is_alive(pid) and not site.is_alive(another))
    assert site.acts(root, pid) == ["observed", "warned", "terminated"]
    assert site.acts(root, another) == ["observed", "terminated"]


def test_a_process_that_sleeps_does_not_keep_a_booking(site: Site) -> None:
    site.booked_by("kim")
    root = site.team("root")
    _, pid = site.run("ann")
    site.on_gpu(pid)
    site.exchange(root, "off")

    def idle() -> bool:
        told = root.call("gpu-a", "bookings.evidence")["idle"]
        return bool(told and told[0]["seen"] > told[0]["since"])

    wait_until(idle)
    site.store.set_rules(Rules(idle_release_min=0.01))
    (freed,) = sync_agents(root.fleet, site.store).released
    assert (freed.owner, freed.is_live) == ("kim", False)
    assert site.is_alive(pid)
