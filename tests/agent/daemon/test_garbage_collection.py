"""Tests of garbage collection by age and size, on real folders with real file times."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until
from torchyard_agent import installed_version
from torchyard_agent.daemon import garbage_collection
from torchyard_agent.daemon.garbage_collection import GB, EndedRun, Limits, collect, surplus
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths

DAY = 86400.0
OURS, THEIRS, OLD = "a" * 64, "b" * 64, "c" * 64
USUAL = Limits()
UNLIMITED = Limits(float("inf"), float("inf"))


def old(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then), follow_symlinks=False)


def a_run(
    base: Path, run_id: str, *, days: float, node: str = "gpu-a", size: int = 0, has_end: bool = True, archive: str = ""
) -> Path:
    """Creates a run folder whose journal is the given number of days old."""
    folder = base / "hosts" / node / "runs" / run_id
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "worker-0.log").write_bytes(os.urandom(size))
    (folder / "run.json").write_text("{}")
    if archive:
        (folder / "archive").write_text(archive)
    journal = folder / "journal.jsonl"
    journal.write_text('{"epoch":"e","seq":1,"event":"run_ended"}\n' if has_end else '{"event":"run_state"}\n')
    old(journal, days)
    return folder


def ten_newer(base: Path) -> None:
    for number in range(10):
        a_run(base, f"new-{number}", days=0.5)


def an_archive(base: Path, sha256: str, *, days: float, packed: bool = True) -> Path:
    folder = base / "store" / sha256
    (folder / "torchyard_agent").mkdir(parents=True)
    if packed:
        (base / "store" / f"{sha256}.archive").write_bytes(b"x")
        old(base / "store" / f"{sha256}.archive", days)
    old(folder, days)
    return folder


@contextmanager
def a_keeper(base: Path, run_id: str) -> Iterator[None]:
    """Listens on an address, and records it as the address of the run's keeper."""
    name = paths.random_socket(os.getuid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
        keeper.bind(name)
        keeper.listen()
        assert control_socket.publish(paths.run_dir(str(base), "gpu-a", run_id), name)
        yield


def left(base: Path, node: str = "gpu-a") -> set[str]:
    return {path.name for path in (base / "hosts" / node / "runs").iterdir()}


def do(base: Path, limits: Limits = USUAL) -> None:
    (base / "hosts" / "gpu-a").mkdir(parents=True, exist_ok=True)
    collect(str(base), "gpu-a", OURS, limits)


def test_runs_are_removed_a_month_after_their_end_except_the_newest_ten(tmp_path: Path) -> None:
    ten_newer(tmp_path)
    a_run(tmp_path, "fresh", days=29)
    a_run(tmp_path, "old", days=31)

    do(tmp_path)

    assert left(tmp_path) == {*(f"new-{number}" for number in range(10)), "fresh"}
    assert list((tmp_path / "hosts" / "gpu-a" / "removed").iterdir()) == []


def test_the_newest_ten_runs_are_always_kept(tmp_path: Path) -> None:
    for number in range(10):
        a_run(tmp_path, f"old-{number}", days=400 + number)
    a_run(tmp_path, "older", days=500)

    do(tmp_path, Limits(days=1, bytes=0))

    assert left(tmp_path) == {f"old-{number}" for number in range(10)}


def test_the_oldest_runs_are_removed_if_all_together_are_too_large() -> None:
    runs = [EndedRun(f"{age}", -age * DAY, 1000, True) for age in range(1, 21)]

    gone = surplus(runs, Limits(days=30, bytes=12_500), now=0)

    assert sorted(gone, key=int) == [f"{age}" for age in range(13, 21)]


def test_sizes_are_those_on_the_disk_and_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ten_newer(tmp_path)
    a_run(tmp_path, "small", days=2, size=10_000)
    a_run(tmp_path, "large", days=3, size=2_000_000)

    do(tmp_path, Limits(bytes=1_000_000))

    assert "small" in left(tmp_path)
    assert "large" not in left(tmp_path)
    assert "small" in json.loads((tmp_path / "hosts" / "gpu-a" / "housekeeping.json").read_text())

    def never(folder: str) -> int:
        raise AssertionError(f"{folder} was looked through again")

    monkeypatch.setattr(garbage_collection, "size_of", never)
    do(tmp_path, Limits(bytes=1_000_000))


def test_a_run_with_a_live_or_starting_keeper_is_kept(tmp_path: Path) -> None:
    ten_newer(tmp_path)
    a_run(tmp_path, "alive", days=90, has_end=False)
    (tmp_path / "hosts" / "gpu-a" / "runs" / "starting").mkdir()

    with a_keeper(tmp_path, "alive"):
        do(tmp_path, Limits(days=0, bytes=0))
        assert {"alive", "starting"} <= left(tmp_path)

    do(tmp_path)
    assert "alive" not in left(tmp_path)
    assert "starting" in left(tmp_path)


def test_a_run_that_lost_its_keeper_is_removed_by_age_only(tmp_path: Path) -> None:
    ten_newer(tmp_path)
    a_run(tmp_path, "crashed", days=2, has_end=False, size=100_000)

    do(tmp_path, Limits(days=30, bytes=0))

    assert "crashed" in left(tmp_path)


def test_runs_of_other_hosts_and_symbolic_links_are_kept(tmp_path: Path) -> None:
    base, elsewhere = tmp_path / "agent", tmp_path / "data"
    ten_newer(base)
    a_run(base, "over-there", days=300, node="gpu-b")
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    run = a_run(base, "old", days=300)
    (run / "checkpoints").symlink_to(elsewhere)
    (run / "sealed").mkdir()
    (run / "sealed" / "file").touch()
    (run / "sealed").chmod(0o500)

    do(base)

    assert "old" not in left(base)
    assert left(base, "gpu-b") == {"over-there"}
    assert (elsewhere / "precious").exists()


def test_a_snapshot_is_kept_while_a_run_of_any_host_refers_to_it(tmp_path: Path) -> None:
    roots = {name: name[0] * 64 for name in ("d-here", "e-there", "f-nobody")}
    for root in roots.values():
        folder = tmp_path / "store" / "snapshots" / root
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("[]")
        old(folder / "manifest.json", 40)
    ten_newer(tmp_path)
    for run, root in ((a_run(tmp_path, "old", days=300), roots["d-here"]), (tmp_path, roots["e-there"])):
        folder = run if run != tmp_path else a_run(tmp_path, "over-there", days=300, node="gpu-b")
        (folder / "run.json").write_text(json.dumps({"snapshot": root}))

    do(tmp_path)

    assert {path.name for path in (tmp_path / "store" / "snapshots").iterdir()} == {roots["e-there"]}


def test_no_snapshot_is_removed_during_an_upload(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "snapshots" / OLD
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("[]")
    old(folder / "manifest.json", 40)
    lock = tmp_path / "store" / "sending" / OURS
    lock.parent.mkdir()
    lock.write_text("gpu-b 1")

    do(tmp_path)
    assert folder.exists()

    old(lock, 1)  # The lock file is so old that its upload counts as abandoned.
    do(tmp_path)
    assert not folder.exists()


def test_archives_are_removed_after_a_month_except_that_of_a_daemon(tmp_path: Path) -> None:
    an_archive(tmp_path, OURS, days=90)
    an_archive(tmp_path, THEIRS, days=90)
    an_archive(tmp_path, OLD, days=31)
    recent = an_archive(tmp_path, "d" * 64, days=29)
    half = tmp_path / "store" / f"{OLD}.archive.123.abcd"
    half.touch()
    old(half, 2)
    (tmp_path / "hosts" / "gpu-b").mkdir(parents=True)
    installed_version.note(str(tmp_path), "gpu-b", "0.0.9", THEIRS)

    do(tmp_path, UNLIMITED)

    old(tmp_path / "store" / THEIRS, 90)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == sorted(
        name for sha256 in (OURS, THEIRS, recent.name) for name in (sha256, f"{sha256}.archive")
    )
    do(tmp_path, UNLIMITED)
    assert (tmp_path / "store" / THEIRS).exists()


def test_a_scripts_folder_beside_the_runs_of_another_host_keeps_no_archive(tmp_path: Path) -> None:
    archive = an_archive(tmp_path, OLD, days=90)
    (tmp_path / "hosts" / "gpu-b" / "runs" / "data" / "mnist").mkdir(parents=True)
    installed_version.note(str(tmp_path), "gpu-b", "0.0.9", THEIRS)
    do(tmp_path, UNLIMITED)
    assert not archive.exists()


@pytest.mark.parametrize("where", ["process", "run there", "unknown there"])
def test_the_archive_of_a_live_keeper_is_kept(tmp_path: Path, where: str) -> None:
    archive = an_archive(tmp_path, OLD, days=90)
    (tmp_path / "hosts" / "gpu-b").mkdir(parents=True)
    installed_version.note(str(tmp_path), "gpu-b", "0.0.9", THEIRS)
    keeper = None
    if where == "process":
        command = [sys.executable, "-c", "input()", str(archive)]
        keeper = subprocess.Popen(command, stdin=subprocess.PIPE)
        wait_until(lambda: str(archive).encode() in Path(f"/proc/{keeper.pid}/cmdline").read_bytes())
    else:
        known = {"archive": OLD} if where == "run there" else {}
        a_run(tmp_path, "long", days=60, node="gpu-b", has_end=False, **known)
    try:
        do(tmp_path, UNLIMITED)
        assert archive.exists()
    finally:
        if keeper is not None:
            keeper.communicate(b"\n")
        shutil.rmtree(tmp_path / "hosts" / "gpu-b" / "runs", ignore_errors=True)
    do(tmp_path, UNLIMITED)
    assert not archive.exists()


def test_limits_are_read_from_the_environment_and_invalid_ones_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert Limits.read({}) == Limits(30, 50 * GB)
    assert Limits.read({"TORCHYARD_KEEP_DAYS": "7", "TORCHYARD_KEEP_GB": "0.5"}) == Limits(7, 0.5 * GB)
    assert Limits.read({"TORCHYARD_KEEP_GB": "inf"}).bytes == float("inf")
    assert caplog.messages == []

    for nonsense in ("a week", "-1", "nan"):
        assert Limits.read({"TORCHYARD_KEEP_DAYS": nonsense}).days == 30

    assert "TORCHYARD_KEEP_DAYS must be a number of 0 or more, not 'a week'; it is 30" in caplog.messages[0]
    assert len(caplog.messages) == 3


def test_removals_are_logged_and_audited(tmp_path: Path) -> None:
    ten_newer(tmp_path)
    a_run(tmp_path, "old", days=45)
    code = "import sys; from torchyard_agent.daemon.garbage_collection import main; sys.exit(main(*sys.argv[1:]))"
    agent = Path(garbage_collection.__file__).parents[2]

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "gpu-a", OURS],
        env={"PYTHONPATH": str(agent)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "removed run old: it was over 45 days ago" in done.stderr
    [noted] = (tmp_path / "hosts" / "gpu-a" / "audit.jsonl").read_text().splitlines()
    assert json.loads(noted)["runs"] == 1


def test_a_long_log_of_the_daemon_is_cut_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    with path.open("ab", buffering=0) as daemon:
        for number in range(1000):
            daemon.write(b"%04d %s\n" % (number, b"x" * 94))
        assert garbage_collection.shorten_log(str(path), limit=50_000, keep=10_000) == 1
        daemon.write(b"the next line\n")

    lines = path.read_text().splitlines()
    assert lines[-2:] == ["0999 " + "x" * 94, "the next line"]
    assert all(len(line) == 99 for line in lines[:-1])
    assert garbage_collection.shorten_log(str(path), limit=50_000, keep=10_000) == 0
