"""Tests of requests to the primary whose answers are lost, both at the start of a run and later."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.core.cli.command_runner import answer, torchyard
from tests.end_to_end.running import kill_keepers, programs_on, topology
from tests.faults.runs import keeper_of
from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until
from torchyard_core.app.launch_run import LaunchRun
from torchyard_core.booking.model import Booking
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.cli.commands.run import callbacks_for, launch_and_follow, view_for
from torchyard_core.cli.context import CommandContext
from torchyard_core.cli.interrupts import counting_interrupts
from torchyard_core.errors import Unreachable
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.home import Home
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.launch import StartUnknown
from torchyard_core.launch.runs.history import History
from torchyard_core.topology.file import read_topology

pytestmark = pytest.mark.lab


@pytest.fixture
def calendar(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'team.sqlite3'}"


@pytest.fixture
def kim(gpu_lab: Lab, make_desktop: Callable[..., Desktop], calendar: str) -> Desktop:
    return of_kim(make_desktop(gpu_lab, python=None), calendar)


@pytest.fixture
def store(calendar: str) -> Iterator[BookingStore]:
    opened = open_store(calendar, "the test")
    yield opened
    opened.close()


def of_kim(desktop: Desktop, calendar: str) -> Desktop:
    """Configures a desktop for the user Kim and checks the hosts; returns the desktop."""
    (desktop.home / "settings.yaml").write_text(f"bookings_url: {calendar}\nperson: kim\n")
    torchyard(desktop, "hosts", "check", code=1)  # The exit code is 1 because the hosts have no torch.
    return desktop


def sleeping(folder: Path, *hosts: str) -> Path:
    """Writes a topology with one sleeping worker on a GPU of each host."""
    pools = "".join(
        f"  - {{name: on-{host}, role: worker, replicas: 1, gpus: 1, hosts: [{host}]}}\n" for host in hosts or ["gpu-a"]
    )
    program = "program: {launcher: command, command: [python3, work.py], stop_grace_s: 1}\n"
    return topology(folder, f"pools:\n{pools}{program}", work_py="import time; time.sleep(600)")


def live(store: BookingStore) -> tuple[Booking, ...]:
    """Returns the active bookings of the next five hours."""
    return store.bookings(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=5), live=True)


def launch_here(desktop: Desktop, file: Path) -> None:
    """Runs `run FILE --book 4h --detach` in the test's process, so that a test can patch `DaemonClient`."""
    home = Home(desktop.home)
    chosen = CommandContext(home, home.fleet_file, False)
    source = read_topology(file)
    booking = BookingOptions(timedelta(hours=4))
    with chosen.fleet(chosen.inventory().hosts) as fleet, counting_interrupts() as interrupts:
        view = view_for(as_json=True)
        callbacks = callbacks_for(chosen, view, as_json=True)
        launch = LaunchRun(chosen.desktop(fleet), source, callbacks, name="lost", booking=booking)
        launch_and_follow(launch, chosen, fleet, view, interrupts, [], detach=True, as_json=True)
    chosen.close()


def losing(host: LabHost, *, asked: bool = True, back: bool = False) -> Callable[..., Any]:
    """Returns a replacement for `DaemonClient.call` that disconnects a host when `run.start` is called.

    Args:
        asked: Whether the request `run.start` arrives, so that only its answer is lost.
        back: Whether the host becomes reachable again afterwards.
    """
    call = DaemonClient.call

    def calling(link: DaemonClient, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        if method != "run.start":
            return call(link, method, params, timeout_s)
        if asked:
            call(link, method, params, timeout_s)
        host.stop_sshd(sessions=True)
        wait_until(lambda: not link.is_open)
        if back:
            host.start_sshd()
        return call(link, method, params, timeout_s)

    return calling


def test_a_start_without_an_answer_is_cancelled_if_the_host_is_reachable_again(
    kim: Desktop,
    tmp_path: Path,
    store: BookingStore,
    gpu_lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = sleeping(tmp_path / "run")
    before = set(gpu_lab["gpu-a"].home.glob(".torchyard/hosts/*/runs/*"))

    with monkeypatch.context() as patch:
        patch.setattr(DaemonClient, "call", losing(gpu_lab["gpu-a"], back=True))
        with pytest.raises(Unreachable):
            launch_here(kim, file)

    wait_until(lambda: not programs_on(gpu_lab))
    assert set(gpu_lab["gpu-a"].home.glob(".torchyard/hosts/*/runs/*")) == before
    assert live(store) == ()
    assert History(Home(kim.home).history).records() == []


@pytest.mark.parametrize("asked", [True, False])
def test_a_start_without_an_answer_keeps_its_booking_until_the_host_reports_its_state(
    kim: Desktop,
    tmp_path: Path,
    store: BookingStore,
    gpu_lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    asked: bool,
) -> None:
    file = sleeping(tmp_path / "run")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(DaemonClient, "call", losing(gpu_lab["gpu-a"], asked=asked))
            with pytest.raises(StartUnknown, match="it may have begun") as unknown:
                launch_here(kim, file)

        run_id = unknown.value.started.run_id
        assert unknown.value.exit_code == 3
        assert f"torchyard runs stop {run_id}" in unknown.value.hint
        listed = {run["run_id"]: run for run in answer(kim, "runs", "list", code=3)}
        assert (listed[run_id]["state"], listed[run_id]["fresh"]) == ("starting", False)
        assert listed[run_id]["reason"] == "gpu-a has not said whether it has begun"
        (booking,) = live(store)
        assert booking.run_id == run_id
    finally:
        gpu_lab["gpu-a"].start_sshd()

    if asked:
        assert {run["run_id"]: run["fresh"] for run in answer(kim, "runs", "list")}[run_id]
        assert live(store) == (booking,)
        assert answer(kim, "runs", "stop", run_id, "--force")["state"] == "stopped"
    else:
        # The connection over which the run was prepared is closed, so the host ends the run.
        wait_until(lambda: not programs_on(gpu_lab))
        shown = {run["run_id"]: run for run in answer(kim, "runs", "list")}[run_id]
        assert (shown["state"], shown["fresh"]) == ("stopped", True)
        assert "it did not begin" in shown["reason"]
    wait_until(lambda: not programs_on(gpu_lab))
    assert live(store) == ()


def test_a_cancelled_start_on_a_slow_host_is_not_reported_as_undone(
    kim: Desktop,
    tmp_path: Path,
    store: BookingStore,
    gpu_lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = sleeping(tmp_path / "run")
    call, is_over, stalled = DaemonClient.call, Event(), list[int]()

    def stalling(link: DaemonClient, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        answer = call(link, method, params, timeout_s)
        if method == "run.start":
            stalled.append(keeper_of(gpu_lab["gpu-a"]))
            os.kill(stalled[0], signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGINT)
            is_over.wait(60)
        return answer

    try:
        with monkeypatch.context() as patch:
            patch.setattr("torchyard_core.launch.submission.TAKE_BACK_S", 0.5)
            patch.setattr(DaemonClient, "call", stalling)
            with pytest.raises(StartUnknown) as unknown:
                launch_here(kim, file)
    finally:
        is_over.set()
        for pid in stalled:
            os.kill(pid, signal.SIGCONT)

    run_id = unknown.value.started.run_id
    assert [one.run_id for one in live(store)] == [run_id]
    assert answer(kim, "runs", "stop", run_id, "--force")["state"] == "stopped"
    assert live(store) == ()


def test_a_host_that_lost_its_part_of_a_live_run_does_not_end_the_booking(
    kim: Desktop,
    make_desktop: Callable[..., Desktop],
    tmp_path: Path,
    calendar: str,
    store: BookingStore,
    gpu_lab: Lab,
) -> None:
    elsewhere = of_kim(make_desktop(gpu_lab, python=None), calendar)
    file = sleeping(tmp_path / "run", "gpu-a", "gpu-b")
    run_id = torchyard(kim, "run", file, "--book", "4h", "--detach").stdout.strip()
    booked = live(store)
    assert [one.run_id for one in booked] == [run_id]
    kill_keepers(gpu_lab["gpu-b"])

    gpu_lab["gpu-a"].stop_sshd()
    try:
        (shown,) = [run for run in answer(elsewhere, "runs", "list", code=3) if run["run_id"] == run_id]
        table = torchyard(elsewhere, "runs", "list", code=3).stdout
    finally:
        gpu_lab["gpu-a"].start_sshd()
    assert (shown["state"], shown["fresh"], shown["primary"]) == ("failed", False, "gpu-a")
    assert "failed (as of " in next(line for line in table.splitlines() if line.startswith(run_id))
    assert live(store) == booked

    (shown,) = [run for run in answer(elsewhere, "runs", "list") if run["run_id"] == run_id]
    assert shown["fresh"]
    assert shown["state"] not in ("failed", "stopped", "succeeded")
    assert live(store) == booked
    kill_keepers(gpu_lab["gpu-a"])  # No keeper of the run is left, so the run has failed.
    (shown,) = [run for run in answer(elsewhere, "runs", "list") if run["run_id"] == run_id]
    assert (shown["state"], shown["fresh"]) == ("failed", True)
    (kept,) = live(store)
    assert kept.end < booked[0].end
    torchyard(kim, "bookings", "release", kept.id)
