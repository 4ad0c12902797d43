"""Tests of the reservations of bookings, with stand-ins for Slurm's commands."""

from __future__ import annotations

import asyncio
import getpass
import time
from pathlib import Path

import pytest

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import reservations

SCONTROL = """\
#!/bin/sh
echo "scontrol $*" >> {folder}/calls
case "$1 $2 $*" in
  "-o show"*) cat {folder}/shown ;;
  *IGNORE_JOBS*) exit 0 ;;
  "create reservation"*) echo "Error creating the reservation: Requested nodes are busy" >&2; exit 1 ;;
  "delete "*) [ -e {folder}/without ] || {{ echo "delete: Requested reservation is in use" >&2; exit 1; }} ;;
  "update JobId"*) [ -e {folder}/fixed ] || touch {folder}/without ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, with their calls in `calls`: all nodes are busy, and job 7 is in the reservation."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "shown").write_text("")
    (tmp_path / "users").write_text(getpass.getuser())
    squeue = f'#!/bin/sh\ncase "$*" in *%u*) cat {tmp_path}/users ;; *) echo 7 ;; esac\n'
    for name, text in {"scontrol": SCONTROL.format(folder=tmp_path), "squeue": squeue, "sacctmgr": "exit 1"}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def calls(slurm: Path) -> list[str]:
    return (slurm / "calls").read_text().splitlines()


def test_jobs_are_taken_out_of_a_reservation_before_it_is_deleted(slurm: Path) -> None:
    asyncio.run(reservations.release("a"))
    assert calls(slurm) == [
        "scontrol delete ReservationName=torchyard_a",
        "scontrol update JobId=7 ReservationName=",
        "scontrol delete ReservationName=torchyard_a",
    ]


def test_a_reservation_that_its_jobs_cannot_leave_stays_and_the_error_says_so(slurm: Path) -> None:
    (slurm / "fixed").touch()
    with pytest.raises(RpcError, match="jobs run in the reservation, and Slurm does not end it before them"):
        asyncio.run(reservations.release("a"))


def test_nodes_are_reserved_while_only_the_user_s_own_jobs_run_there(slurm: Path) -> None:
    end = time.time() + 3600
    asyncio.run(reservations.reserve("a", ["n1"], time.time(), end))
    assert calls(slurm)[-1].endswith("Flags=IGNORE_JOBS")
    (slurm / "users").write_text(f"{getpass.getuser()}\nother\n")
    with pytest.raises(RpcError, match="Requested nodes are busy"):
        asyncio.run(reservations.reserve("b", ["n1"], time.time(), end))


@pytest.mark.parametrize(("left_s", "leaves"), [(30, True), (3600, False), (None, True)])
def test_a_job_leaves_a_reservation_that_ends_soon_before_it_is_requeued(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, left_s: int | None, leaves: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_RESERVATION", "torchyard_a")
    if left_s is not None:
        now = int(time.time())
        line = (
            f"ReservationName=torchyard_a StartTime={now - 60} EndTime={now + left_s} Nodes=n1 Users=x State=ACTIVE\n"
        )
        (slurm / "shown").write_text(line)
    asyncio.run(reservations.leave_if_ending("7"))
    assert ("scontrol update JobId=7 ReservationName=" in calls(slurm)) == leaves


def test_a_job_without_a_reservation_asks_slurm_nothing(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_RESERVATION", raising=False)
    asyncio.run(reservations.leave_if_ending("7"))
    assert not (slurm / "calls").exists()
