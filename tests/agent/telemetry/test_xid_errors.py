"""Tests of reading XID errors from the kernel log."""

from __future__ import annotations

from pathlib import Path

from torchyard_agent.telemetry import xid_errors

LOG = """\
6,16415,12271316426,-;switch: port 11 entered blocking state
4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
4,2,3,-;NVRM: Xid (PCI:0000:5E:00): 48, pid=7, DBE (double bit error)
4,3,4,-;NVRM: Xid (PCI:0000:5e:00.0): 31, pid=8, name=python, MMU Fault
4,4,5,-;NVRM: Xid (PCI:0000:5E:00): 94, Contained ECC error
"""


def test_errors_of_the_hardware_are_found_by_gpu(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)

    assert xid_errors.xids(str(tmp_path / "kmsg")) == {"0000:3b:00": [79], "0000:5e:00": [48, 94]}


def test_a_log_without_them(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("6,1,2,-;all is well\n")

    assert xid_errors.xids(str(tmp_path / "kmsg")) == {}


def test_an_unreadable_log_is_not_an_empty_one(tmp_path: Path) -> None:
    assert xid_errors.xids(str(tmp_path / "nothing")) is None
    assert xid_errors.xids(str(tmp_path)) is None
