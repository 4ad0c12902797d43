"""A lab host with one GPU, several Unix users and the team's calendar, for tests of enforcement."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.faults.runs import Team
from tests.lab import Desktop, HostSpec, Lab, LabHost
from torchyard_core.booking.model import Draft, Login, Slot
from torchyard_core.booking.rules.enforcement import Enforcement
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.agent_sync import AgentSync, sync_agents

UUID = "GPU-11111111-2222-3333-4444-555555555555"
USERS = ("ann", "bob", "carl", "lee")
"""User names in the calendar, by Unix account. Other Unix accounts have no user in the calendar."""
SLEEPER = "import os, signal, sys, time; print(os.getpid(), flush=True); time.sleep(600)"


class Site:
    """A host with one GPU and several users other than root, and the team's calendar."""

    def __init__(self, there: Lab, desktop: Callable[..., Desktop], folder: Path):
        self.host: LabHost = there["gpu-a"]
        self._there = there
        self._desktop = desktop
        self._folder = folder
        self._started: dict[int, subprocess.Popen[str]] = {}
        self._teams: list[Team] = []
        self.store: BookingStore = open_store(f"sqlite:///{folder / 'bookings.sqlite3'}", "kim")
        self.store.remember_slots([Slot(UUID, "gpu-a", 0)])
        self.store.set_logins([Login("gpu-*", "ann", "kim"), Login("gpu-*", "bob", "lee")])

    def team(self, user: str) -> Team:
        """Returns a team whose desktop logs in as `user`; the agent runs as this Unix user."""
        folder = self._folder / user
        folder.mkdir()
        made = Team(self._there, self._desktop(self._there, python=None, user=user), folder)
        self._teams.append(made)
        made.fleet.link("gpu-a")
        return made

    def run(self, user: str, program: str = SLEEPER, *under: str) -> tuple[subprocess.Popen[str], int]:
        """Starts a Python program as a Unix user, through the command `under` if given. Returns the process and the PID
        that it prints.
        """
        process = self.host.start([*under, "python3", "-c", program], user)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        self.watch(process, pid)
        return process, pid

    def watch(self, process: subprocess.Popen[str], pid: int) -> None:
        """Registers a process that `close` will kill; `pid` is the PID of the process on the host."""
        self._started[pid] = process

    def uid(self, user: str) -> int:
        return int(self.host.exec(["id", "-u", user], check=True).stdout)

    def uid_of(self, pid: int) -> int:
        return int(self.host.exec(["stat", "-c", "%u", f"/proc/{pid}"], check=True).stdout)

    def on_gpu(self, *pids: int, drawing: tuple[int, ...] = ()) -> None:
        """Makes the fake NVML library report that `pids` compute and `drawing` draw on the GPU."""
        compute, graphics = ([(pid, 1000) for pid in found] for found in (pids, drawing))
        gpu = FakeGpu(UUID, compute=compute, graphics=graphics, utilisation=0)
        write_gpus(self.host.tmp / "nvml" / "gpus", [gpu])

    def booked_by(self, person: str) -> None:
        now = self.store.now()
        self.store.book(Draft("tune", (UUID,), now, now + timedelta(hours=1), "UTC", owner=person))

    def exchange(self, team: Team, level: str, grace_s: float = 0.5, *, dry_run: bool = False) -> AgentSync:
        self.store.set_rules(Rules(enforcement=(Enforcement("gpu-*", level, grace_s, dry_run),)))
        done = sync_agents(team.fleet, self.store)
        assert done.problems == {}
        assert done.hosts == ("gpu-a",)
        return done

    def acts(self, team: Team, pid: int) -> list[str]:
        told = team.call("gpu-a", "audit.read")
        return [act["act"] for act in told if act["what"] == "enforcement" and act["pid"] == pid]

    def is_alive(self, pid: int) -> bool:
        return any(process.pid == pid and "<defunct>" not in process.argv[0] for process in self.host.processes())

    def close(self) -> None:
        for team in self._teams:
            team.close()
        for pid, process in self._started.items():
            self.host.exec(["kill", "-KILL", str(pid)])
            process.wait(60)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        self.store.close()


@contextmanager
def booked_host(lab: Callable[..., Lab], make_desktop: Callable[..., Desktop], tmp_path: Path) -> Iterator[Site]:
    """Yields the site. No agent runs on the host before the first call of `Site.team`."""
    inside = "/tmp/nvml"
    environment = {
        "LD_LIBRARY_PATH": inside,
        "FAKE_NVML_FILE": f"{inside}/gpus",
        "TORCHYARD_BOOKINGS_ENFORCE_S": "0.1",
        "TORCHYARD_BOOKINGS_EVIDENCE_S": "0.1",
    }
    there = lab(hosts=[HostSpec("gpu-a", users=USERS, ssh_environment=environment)])
    build_fake_nvml(there["gpu-a"].tmp / "nvml")
    made = Site(there, make_desktop, tmp_path)
    made.on_gpu()
    yield made
    made.close()
