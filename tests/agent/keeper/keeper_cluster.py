"""Several simulated hosts on one machine: keepers as real processes, each with its own agent folder and address."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.agent.enforcement.calendars import snapshot
from tests.waiting import eventually
from torchyard_agent import unix_socket_rpc
from torchyard_agent.keeper import control_socket as keeper_address
from torchyard_agent.keeper.processes import cgroup
from torchyard_agent.protocol import paths
from torchyard_agent.unix_socket_rpc import Connection

AGENT = Path(unix_socket_rpc.__file__).parent.parent
SECRET = "5e" * 32
MARK = "YARD_TEST_MARK"
"""An environment variable that every process of a cluster has, by which tests find leftover processes."""
_LAUNCH = (
    "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['ssl'] = None\n"
    "from torchyard_agent.keeper.main import main\n"
    "sys.exit(main(*sys.argv[2:]))"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def shell(code: str) -> list[str]:
    return ["/bin/sh", "-c", code]


def replica(name: str, host: str, *commands: list[str], **changes: Any) -> dict[str, Any]:
    """Returns a planned replica with one rank per command, or with one rank if there is no command."""
    role, _, index = name.rpartition("-")
    trains = role in ("chief", "worker")
    argv = commands[0] if commands else []
    if len(commands) > 1:
        cases = "".join(f"*.{number}.json) exec {shlex.join(each)};; " for number, each in enumerate(commands))
        argv = ["/bin/sh", "-c", f"case $TORCHELASTIC_ERROR_FILE in {cases}esac"]
    plan = {
        "name": name,
        "role": role,
        "index": int(index),
        "pool": role,
        "gang": "trainers" if trains else name,
        "host": host,
        "trainer": trains,
        "gpus": [],
        "processes": max(1, len(commands)),
        "address": f"{host}:1",
        "run_dir": "",
        "argv": argv,
        "env": {"TORCHYARD_REPLICA": name},
    }
    return {**plan, **changes}


CLUSTER = {
    "run_id": "run",
    "launcher": "command",
    "max_restarts": 0,
    "tf_master_name": "chief",
    "trial": None,
    "several": True,
    "job": {},
    "masters": {},
}


class Host:
    """A simulated host: its keeper process and a connection to the keeper."""

    def __init__(self, name: str, folder: Path, run_id: str, interpreter: str, environment: dict[str, str]):
        self.name = name
        self.run_id = run_id
        self.agent_dir = str(folder)
        self.notifications = 0
        self.prepared: dict[str, Any] = {}
        self.connection: Connection | None = None
        self.run_dir = Path(paths.run_dir(self.agent_dir, name, run_id))
        self.run_dir.mkdir(parents=True, exist_ok=True)
        with (self.run_dir.parent / "keeper.log").open("ab") as log:
            self.process = subprocess.Popen(
                [interpreter, "-I", "-S", "-c", _LAUNCH, str(AGENT), self.agent_dir, name, run_id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    async def connect(self) -> None:
        def address() -> str | None:
            assert self.process.poll() is None, self.log()
            return keeper_address.read(str(self.run_dir))

        self.connection = await unix_socket_rpc.connect(await eventually(address), self._on_notification)

    def _on_notification(self, method: str, params: dict[str, Any]) -> None:
        self.notifications += method == "journal"

    async def call(self, method: str, **params: Any) -> Any:
        assert self.connection is not None
        return await self.connection.call(method, params)

    async def prepare(self, **changes: Any) -> dict[str, Any]:
        wanted = {
            "run_id": self.run_id,
            "name": "test",
            "host": self.name,
            "secret": SECRET,
            "snapshot": None,
            "gpus": [],
            "ports": 1,
            "port_range": None,
            "data_address": "127.0.0.1",
            "interface": None,
            "towards": None,
            "record": {"who": "a test"},
        }
        self.prepared = await self.call("prepare", **{**wanted, **changes})
        return self.prepared

    async def send_calendar(self, *bookings: dict[str, Any], taken: float | None = None) -> None:
        """Sends a calendar to the keeper as the daemon would. `taken` is the time at which the calendar was copied, by
        default the current time.
        """
        calendar = snapshot(*bookings, taken=time.time() if taken is None else taken)
        await self.call("calendar", snapshot=calendar)

    @property
    def member(self) -> dict[str, Any]:
        return {"host": self.name, "address": self.prepared["address"], "gang_port": self.prepared["gang_port"]}

    def journal(self) -> list[dict[str, Any]]:
        """Returns the complete lines of the host's journal."""
        path = self.run_dir / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def states(self) -> list[str]:
        return [event["state"] for event in self.journal() if event["event"] == "run_state"]

    def reason(self) -> str:
        """Returns the reason for the run's last state, or an empty string if no reason was given."""
        reasons = [event.get("reason", "") for event in self.journal() if event["event"] == "run_state"]
        return reasons[-1] if reasons else ""

    def ended(self) -> dict[str, Any]:
        """Returns the last event if it is `run_ended`; otherwise returns an empty dictionary."""
        events = self.journal()
        return events[-1] if events and events[-1]["event"] == "run_ended" else {}

    def log(self) -> str:
        return (self.run_dir.parent / "keeper.log").read_text()

    def output(self, replica: str, local_rank: int = 0) -> str:
        """Returns the content of a rank's log so far, or an empty string if the log does not exist."""
        path = self.run_dir / "logs" / paths.log_name(replica, local_rank)
        return path.read_text() if path.exists() else ""

    async def exit_code(self, within_s: float = 60.0) -> int:
        """Waits until the keeper has exited; returns its exit code."""
        await eventually(lambda: self.process.poll() is not None, within_s)
        return int(self.process.returncode)


class KeeperCluster:
    """The hosts of one run."""

    def __init__(self, folder: Path, mark: str):
        self.folder = folder
        self.mark = mark
        self.process = (sys.executable, {MARK: mark})
        """Interpreter and environment of a keeper that a test starts itself."""
        self.python = sys.executable
        """Interpreter of training scripts."""
        self.run_id = f"run-{mark}"
        self.hosts: dict[str, Host] = {}

    async def add(
        self,
        *names: str,
        interpreter: str = sys.executable,
        timeouts: dict[str, float] | None = None,
        environment: dict[str, str] | None = None,
        warm: Callable[[str], dict[str, Any]] | None = None,
        **prepare: Any,
    ) -> list[Host]:
        """Starts and prepares a keeper on each host.

        Args:
            warm: The parameters of the `warm` call for each host; if given, the hosts are not prepared.
        """
        waits = {f"TORCHYARD_KEEPER_{name.upper()}": str(value) for name, value in (timeouts or {}).items()}
        for name in names:
            host = Host(
                name, self.folder / name, self.run_id, interpreter, {MARK: self.mark, **waits, **(environment or {})}
            )
            self.hosts[name] = host
        for number, name in enumerate(names):
            await self.hosts[name].connect()
            if warm is not None:
                await self.hosts[name].call("warm", run_id=self.run_id, host=name, **warm(name))
                continue
            await self.hosts[name].prepare(**{"data_address": f"127.0.0.{number + 1}", **prepare})
        return [self.hosts[name] for name in names]

    async def begin(
        self,
        *replicas: dict[str, Any],
        setup: list[str] | None = None,
        through: dict[str, Any] | None = None,
        joining: bool = True,
        notify: str | None = None,
        carry: bool = False,
        options: dict[str, Any] | None = None,
        start_at: float | str | None = None,
        booking: dict[str, Any] | None = None,
        spare_imports: list[str] | None = None,
        sweep: dict[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        """Sends `join` to the members and `start` to the primary, which is the first host.

        Args:
            through: The primary's address as given to the members, if it differs from the real one.
        """
        primary, *others = self.hosts.values()
        for other in others if joining else []:
            await other.call("join", primary=through or primary.member)
        patient = {
            "ends_with": "trainers",
            "stop_grace_s": 5.0,
            "failure_grace_s": 2.0,
            "host_wait_s": 600.0,
            "max_restarts": 0,
            "min_replicas": {},
        }
        await primary.call(
            "start",
            members=[host.member for host in self.hosts.values()],
            cluster={**CLUSTER, "run_id": self.run_id, "options": options or {}},
            replicas=list(replicas),
            policy={**patient, **policy},
            setup=setup or [],
            secrets={"TOKEN": "hush"},
            notify=notify,
            carry=carry,
            start_at=start_at,
            booking=booking,
            spare_imports=spare_imports or [],
            sweep=sweep,
        )

    async def end(self, within_s: float = 60.0) -> dict[str, Any]:
        """Waits until every keeper has exited and no process of the run remains; returns the primary's `run_ended`
        event.
        """
        for host in self.hosts.values():
            assert await host.exit_code(within_s) == 0, host.log()
            assert "Traceback" not in host.log(), host.log()
        assert self.left() == []
        return next(iter(self.hosts.values())).ended()

    def left(self) -> list[int]:
        """Returns the live processes of the run except for the keepers."""
        keepers = {host.process.pid for host in self.hosts.values()}
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) not in keepers:
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        for host in self.hosts.values():
            if host.connection is not None:
                host.connection.close()
            if host.process.poll() is None:
                host.process.kill()
            host.process.wait()
            cgroup.end_leftovers(self.run_id, host.name)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
