"""Tests that the checks of many hosts are shown in few rows, in which equal results are merged."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from torchyard_core.errors import AgentRefused
from torchyard_core.launch.checks.check import CHECKLIST, Check
from torchyard_core.launch.progress import LaunchProgress
from torchyard_gui.launch.checklist_model import Checklist, where
from torchyard_gui.launch.checklist_row import found_in, title_of


def test_what_is_fine_on_many_hosts_is_one_row() -> None:
    checklist = Checklist()
    for number in range(128):
        row = checklist.take(Check("torch", f"n{number:03d}", True, "torch 2.13.0"))
    assert row.state == "passed"
    assert row.hosts == 128
    assert found_in(row) == "torch 2.13.0 · 128 hosts"


def test_rows_stand_in_the_order_of_a_launch_however_checks_come() -> None:
    checklist = Checklist()
    for name in ("disk", "python", "something new", "torch"):
        checklist.take(Check(name, "gpu-a", True, "fine"))
    names = list(checklist.rows)
    assert names == [
        "topology",
        "host",
        "looking",
        "python",
        "torch",
        "disk",
        "something new",
        "sending",
        "preparing",
        "starting",
    ]


def test_every_check_of_the_table_is_shown_under_its_title_and_in_its_place() -> None:
    checklist = Checklist()
    for spec in reversed(CHECKLIST):
        checklist.take(Check(spec.name, "gpu-a", True, "fine"))
    assert list(checklist.rows) == [spec.name for spec in CHECKLIST]
    assert [title_of(name) for name in checklist.rows] == [spec.title for spec in CHECKLIST]


def test_progress_is_shown_until_a_step_is_done() -> None:
    checklist = Checklist()
    row = checklist.progress("sending", 1_500_000, 3_000_000)
    assert row.state == "running"
    assert found_in(row) == "1.5 MB of 3 MB"
    row = checklist.progress("sending", 3_000_000, 3_000_000)
    assert row.state == "passed"
    row = checklist.progress("reaching", 1, 3)
    assert (row.name, row.state, found_in(row)) == ("host", "running", "1 of 3 hosts")


def test_a_failed_check_outranks_passed_checks() -> None:
    checklist = Checklist()
    checklist.take(Check("disk", "gpu-a", True, "400 GB free"))
    row = checklist.take(Check("disk", "gpu-b", False, "the disk of gpu-b is full"))
    assert row.state == "failed"
    assert found_in(row) == "gpu-b"


def test_an_error_without_a_check_belongs_to_the_current_step() -> None:
    checklist = Checklist()
    checklist.progress("reaching", 2, 2)
    checklist.progress("preparing", 1, 2)
    assert checklist.fail("gpu-b", "GPU 3 is held by lee", "", "gpu_held").name == "preparing"
    assert Checklist().fail("", "pools: nothing trains", "", "topology_problems").name == "topology"


def test_a_step_that_a_host_refuses_is_not_passed_and_has_the_error() -> None:
    checklist = Checklist()
    progress = LaunchProgress(lambda event: None, on_progress=checklist.progress)
    refused: Future[None] = Future()
    refused.set_exception(AgentRefused("hpc.1", "the cluster can never start this run", code="never_starts"))
    with pytest.raises(AgentRefused) as raised:
        progress.wait_for_all({"hpc.1": refused}, "starting")
    assert checklist.fail("hpc", raised.value.message, "", raised.value.code).name == "starting"
    checklist.end(started=False)
    assert [name for name, row in checklist.rows.items() if row.state != "pending"] == ["starting"]


def test_a_launch_that_went_well_leaves_no_row_open() -> None:
    checklist = Checklist()
    checklist.take(Check("topology", "", True, "digits"))
    checklist.take(Check("host", "gpu-a", True, "agent 1"))
    checklist.end(started=True)  # Without code to send, no row for sending stays open.
    assert {row.state for row in checklist.rows.values()} == {"passed"}


def test_hosts_with_unknown_keys_are_listed() -> None:
    checklist = Checklist()
    checklist.take(Check("host", "gpu-a", False, "the key of gpu-a is unknown", code="key_unknown"))
    checklist.take(Check("host", "gpu-b", False, "gpu-b refuses", code="unreachable"))
    assert checklist.unknown_keys == ["gpu-a"]


def test_few_hosts_are_named_and_many_counted() -> None:
    assert where(["a", "b"]) == ("a, b", 2)
    assert where([f"n{number}" for number in range(9)]) == ("", 9)
