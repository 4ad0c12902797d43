"""Tests of the daemon's booking support: calendar snapshots, GPU samples and enforcement."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, A, B, booking, enforcement, login, snapshot
from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.waiting import wait_until
from torchyard_agent.daemon import audit
from torchyard_agent.daemon.bookings import Bookings, Pace, next_sample
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.daemon.subscriptions import Telemetry
from torchyard_agent.keeper.processes import cgroup
from torchyard_agent.protocol.calendar import Calendar, parse
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.timestamps import rfc3339
from torchyard_agent.telemetry.process_owners import user_name

AGENT = Path(audit.__file__).parents[2]
NODE = "gpu-a"
ME = user_name(os.getuid())

_DAEMON = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from torchyard_agent import unix_socket_rpc
from torchyard_agent.daemon.lifecycle import serve_until_retired
listener = unix_socket_rpc.bind("\\0" + sys.argv[3])
hello = {"node": "gpu-a", "sha256": "0" * 64, "version": "1", "protocol": 1}
print("ready", flush=True)
asyncio.run(serve_until_retired(sys.argv[2], hello, listener, []))
"""


class Daemon:
    """A daemon process with the fake NVML library and a short sampling interval."""

    def __init__(self, folder: Path):
        self.agent_dir = folder / "agent"
        self.host_dir = self.agent_dir / "hosts" / NODE
        self.host_dir.mkdir(parents=True, exist_ok=True)
        self.gpus_file = folder / "gpus"
        self._name = f"torchyard-test-{os.urandom(6).hex()}"
        nvml = build_fake_nvml(folder / "nvml")
        self.gpus()
        quick = {"TORCHYARD_BOOKINGS_ENFORCE_S": "0.05", "TORCHYARD_BOOKINGS_EVIDENCE_S": "0.05"}
        self._environment = {
            **os.environ,
            **quick,
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(nvml),
            "FAKE_NVML_FILE": str(self.gpus_file),
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        log = (self.host_dir / "daemon.log").open("a")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DAEMON, str(AGENT), str(self.agent_dir), self._name],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (self.host_dir / "daemon.log").read_text()
        return process

    def restart(self) -> None:
        self.close()
        self.process = self._start()

    def gpus(self, *on_a: int, utilisation: int = 0) -> None:
        """Sets the processes and the utilization of the first of two GPUs, as the fake NVML library reports them."""
        used = [(pid, 1000) for pid in on_a]
        write_gpus(self.gpus_file, [FakeGpu(A, compute=used, utilisation=utilisation), FakeGpu(B, utilisation=0)])

    def call(self, method: str, **params: Any) -> Any:
        async def ask() -> Any:
            from torchyard_agent import unix_socket_rpc

            connection = await unix_socket_rpc.connect(f"\0{self._name}")
            try:
                return await connection.call(method, params)
            finally:
                connection.close()

        return asyncio.run(ask())

    def hand(self, *bookings: dict[str, Any], **changes: Any) -> dict[str, Any]:
        data = snapshot(*bookings, **{"taken": time.time(), **changes})
        answer: dict[str, Any] = self.call("bookings.snapshot", snapshot=data, host="gpu-a", by="kim@laptop")
        return answer

    def acts(self) -> list[dict[str, Any]]:
        return [act for act in audit.read(str(self.agent_dir), NODE) if act["what"] == "enforcement"]

    def whats(self) -> list[str]:
        return [act["act"] for act in self.acts()]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    one = Daemon(tmp_path)
    yield one
    one.close()
    assert "Traceback" not in (one.host_dir / "daemon.log").read_text()


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def lees(**changes: Any) -> dict[str, Any]:
    """Returns a booking of the first GPU by Lee that began a minute ago."""
    return booking("lee", time.time() - 60, time.time() + HOUR, A, **changes)


def test_an_unchanged_snapshot_is_confirmed_by_its_revision(daemon: Daemon) -> None:
    now = time.time()

    def confirm(revision: str, taken: float) -> bool:
        answer = daemon.call("bookings.confirm", revision=revision, taken=rfc3339(taken), host="gpu-a", by="kim@laptop")
        return bool(answer["kept"])

    def taken() -> str:
        return str(daemon.call("bookings.status")["taken"])

    assert not confirm("", now)
    data = snapshot(lees(), taken=now - 100)
    daemon.call("bookings.snapshot", snapshot=data, host="gpu-a")
    assert not confirm("", now)
    daemon.call("bookings.snapshot", snapshot=data, host="gpu-a", revision="first", by="kim@laptop")
    assert not confirm("second", now)
    assert taken() == rfc3339(now - 100)
    assert confirm("first", now - 50)
    assert confirm("first", now - 80)
    assert taken() == rfc3339(now - 50)
    kept = json.loads((daemon.host_dir / "bookings.json").read_text())
    assert (kept["revision"], kept["snapshot"]["taken"]) == ("first", rfc3339(now - 50))
    assert [one["owner"] for one in kept["snapshot"]["bookings"]] == ["lee"]
    with pytest.raises(RpcError, match="in the future"):
        confirm("first", now + HOUR)


def test_the_newest_snapshot_is_kept_in_a_private_file(daemon: Daemon) -> None:
    now = time.time()
    assert daemon.hand(lees(), taken=now - 100)["kept"]
    assert daemon.hand(taken=now - 50) == {"kept": True, "taken": rfc3339(now - 50)}
    assert daemon.hand(lees(), taken=now - 80) == {"kept": False, "taken": rfc3339(now - 50)}
    file = daemon.host_dir / "bookings.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["snapshot"]["bookings"] == []
    daemon.restart()
    assert daemon.call("bookings.status")["taken"] == rfc3339(now - 50)
    assert daemon.call("host.facts", python=None)["bookings"]["taken"] == rfc3339(now - 50)


def test_invalid_snapshots_and_those_from_the_future_are_rejected(daemon: Daemon) -> None:
    taken = daemon.hand()["taken"]
    for data, code in (({"version": 1}, "bad_snapshot"), (snapshot(taken=time.time() + HOUR), "clock")):
        with pytest.raises(RpcError) as refused:
            daemon.call("bookings.snapshot", snapshot=data, host="gpu-a")
        assert refused.value.code == code
    assert daemon.call("bookings.status")["taken"] == taken


def test_a_daemon_ignores_unreadable_files(daemon: Daemon) -> None:
    for name in ("bookings.json", "evidence.json"):
        (daemon.host_dir / name).write_text('{"host": 3, "idle": [{}]')
    daemon.restart()
    assert daemon.call("bookings.status")["taken"] is None
    assert daemon.call("bookings.evidence") == {"host": NODE, "idle": [], "uses": []}


def test_use_of_another_owners_booking_is_warned_about_and_then_ended(
    daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    daemon.gpus(sleeper.pid)
    daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("stop", 0.5)])
    assert sleeper.wait(60) == -signal.SIGTERM
    wait_until(lambda: "terminated" in daemon.whats())
    # The fake NVML library still lists the exited process, so further entries may follow these three.
    assert daemon.whats()[:3] == ["observed", "warned", "terminated"]
    last = daemon.acts()[2]
    assert (last["pid"], last["owner"], last["persons"], last["outcome"]) == (sleeper.pid, "lee", ["kim"], "sent")
    assert last["dry_run"] is False
    first, third = daemon.acts()[0], last
    assert third["time"] > first["time"]


def test_a_dry_run_only_reports_acts(daemon: Daemon, sleeper: subprocess.Popen[bytes]) -> None:
    daemon.gpus(sleeper.pid)
    daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("stop", 0.1, dry_run=True)])
    wait_until(lambda: "terminated" in daemon.whats())
    assert {act["dry_run"] for act in daemon.acts()} == {True}
    assert sleeper.poll() is None
    data = daemon.call("bookings.status")
    assert data["enforcement"] == {"level": "stop", "grace_s": 0.1, "dry_run": True}
    assert data["findings"][0]["verdict"] == "others"
    assert data["acts"][-1]["act"] == "terminated"
    assert data["capabilities"]["acts_on"] == ("all" if os.getuid() == 0 else "own")


def test_processes_on_own_bookings_and_at_lower_levels_are_not_ended(
    daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    daemon.gpus(sleeper.pid)
    daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("warn", 0.0)])
    wait_until(lambda: daemon.whats() == ["observed", "warned"])
    daemon.hand(lees(), logins=[login(ME, "kim", "lee")], enforcement=[enforcement("stop", 0.0)])
    wait_until(lambda: [one["verdict"] for one in daemon.call("bookings.status")["findings"]] == ["own"])
    time.sleep(0.3)  # Several samples are taken during this time; none may cause an action.
    assert sleeper.poll() is None
    assert daemon.whats() == ["observed", "warned"]


def test_with_a_stale_calendar_use_is_noted_and_nothing_is_ended(
    daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    daemon.gpus(sleeper.pid)
    stop = {"logins": [login(ME, "kim")], "enforcement": [enforcement("stop", 0.0)]}
    daemon.hand(lees(), taken=time.time() - 2, fresh_s=1, **stop)
    wait_until(daemon.whats)
    time.sleep(0.3)  # Several samples are taken during this time; none may cause an action.
    assert daemon.whats() == ["observed"]
    assert sleeper.poll() is None
    status = daemon.call("bookings.status")
    assert (status["fresh"], [one["verdict"] for one in status["findings"]]) == (False, ["others"])


def test_a_calendar_that_ends_before_now_calls_nothing_unbooked(
    daemon: Daemon, sleeper: subprocess.Popen[bytes]
) -> None:
    daemon.gpus(sleeper.pid)
    over = rfc3339(time.time() - 1)
    daemon.hand(lees(), taken=time.time() - 5000, until=over, enforcement=[enforcement("observe")])
    wait_until(lambda: daemon.call("bookings.evidence")["uses"])
    assert daemon.acts() == []


def test_after_a_dry_run_users_are_warned_first(daemon: Daemon, sleeper: subprocess.Popen[bytes]) -> None:
    daemon.gpus(sleeper.pid)
    daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("stop", 0.0, dry_run=True)])
    wait_until(lambda: "terminated" in daemon.whats())
    dry = len(daemon.acts())
    daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("stop", 3600.0)])
    wait_until(lambda: "warned" in daemon.whats()[dry:])
    assert [act["act"] for act in daemon.acts() if not act["dry_run"]] == ["observed", "warned"]
    assert sleeper.poll() is None


def test_evidence_is_collected_without_a_desktop(daemon: Daemon, busy: subprocess.Popen[bytes]) -> None:
    daemon.gpus(busy.pid)
    mine = booking("kim", time.time() - 60, time.time() + HOUR, B)
    daemon.hand(lees(), mine)

    def grown() -> Any:
        """Returns the evidence once it covers at least a full second, because its times are whole seconds. Until then,
        returns None.
        """
        data = daemon.call("bookings.evidence")
        longer = [one for one in data["idle"] if one["seen"] > one["since"]]
        return data if longer and any(use["end"] > use["start"] for use in data["uses"]) else None

    data = wait_until(grown)
    idle = {one["booking"]: one for one in data["idle"]}
    assert idle["of-kim"]["seen"] > idle["of-kim"]["since"]
    assert idle["of-lee"]["seen"] == idle["of-lee"]["since"]
    (use,) = data["uses"]
    assert (use["gpu"], use["user"]) == (A, ME)
    daemon.restart()
    kept = {one["booking"]: one for one in daemon.call("bookings.evidence")["idle"]}
    assert kept["of-kim"]["since"] >= idle["of-kim"]["since"]
    assert daemon.call("bookings.evidence", since=rfc3339(time.time() + 60))["idle"] == []


def test_gpus_that_a_run_holds_are_never_idle(daemon: Daemon) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as lock:
        lock.bind(f"\0torchyard/gpu/{A}")
        daemon.hand(lees())
        wait_until(lambda: daemon.call("bookings.evidence")["idle"])
        time.sleep(1.1)  # Evidence has times in whole seconds.
        (idle,) = daemon.call("bookings.evidence")["idle"]
        assert idle["since"] == idle["seen"]


def test_a_container_that_a_run_started_belongs_to_the_run(daemon: Daemon) -> None:
    """The test process acts as the run's keeper: it locks the GPU and creates the container's control group."""
    import socket

    group = cgroup.create(os.urandom(6).hex(), "gpu-a")
    assert group is not None, "this test needs cgroup v2, mounted where this user may make groups"
    container = os.urandom(32).hex()
    with socket.socket(socket.AF_UNIX) as lock, subprocess.Popen(["unshare", "--mount", "sleep", "60"]) as process:
        lock.bind(f"\0torchyard/gpu/{A}")
        lock.listen()
        try:
            group.make(container)
            group.join(container, process.pid)
            daemon.gpus(process.pid)
            daemon.hand(lees(), logins=[login(ME, "kim")], enforcement=[enforcement("observe")])
            (found,) = wait_until(lambda: daemon.call("bookings.status")["findings"])
            assert (found["verdict"], found["user"]) == ("others", ME)
            assert (found["origin"]["known_by"], found["origin"]["as_root"]) == ("cgroup", False)
            assert found["origin"]["container"] == container
        finally:
            process.kill()
            process.wait()
            group.remove()


def known(*bookings: dict[str, Any]) -> Calendar:
    return parse(snapshot(*bookings, taken=1000.0))


def test_the_gpus_are_sampled_only_when_needed() -> None:
    pace = Pace()
    assert next_sample(known(), None, False, 1000.0, pace) is None
    later = known(booking("lee", 5000.0, 9000.0, A))
    assert next_sample(later, None, False, 1000.0, pace) == 4000.0
    assert next_sample(later, {B}, False, 6000.0, pace) is None
    assert next_sample(later, {A}, False, 6000.0, pace) == 60.0
    assert next_sample(later, {A}, False, 9000.0, pace) is None
    assert next_sample(later, {A}, True, 1000.0, pace) == 10.0


def test_no_task_is_created_before_the_loop_runs() -> None:
    nothing: Any = None
    runs: Runs = nothing
    telemetry: Telemetry = nothing
    assert set(Bookings("", "", runs, telemetry).table()) == {
        "bookings.snapshot",
        "bookings.confirm",
        "bookings.status",
        "bookings.evidence",
    }
