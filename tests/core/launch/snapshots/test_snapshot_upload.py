"""Tests of uploading a snapshot to an agent's store, without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from torchyard_agent import snapshot_store
from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, RunFailed
from torchyard_core.launch.progress import Cancelled
from torchyard_core.launch.snapshots import snapshot_upload
from torchyard_core.launch.snapshots.snapshot import take_snapshot
from torchyard_core.launch.snapshots.snapshot_upload import upload_snapshot


class StoreLink:
    """A link to an agent whose snapshot store is a local folder."""

    host, archive, python, ssh_address, is_open = "gpu-a", "", "", "", True

    def __init__(self, store: Path):
        self.store = str(store)
        self.hello: dict[str, Any] = {}
        self.messages = 0
        self.asked: list[tuple[str, int]] = []
        self.incoming = snapshot_store.Incoming(self.store, "test")
        self.busy = 0
        self.free = 10**12
        self.before_seal: Callable[[], None] = lambda: None

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.call(method, params))
        return future

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        assert params is not None
        self.asked.append((method, len(json.dumps(params))))
        if method == "snapshot.offer":
            have = snapshot_store.has(self.store, params["root"])
            busy = not have and self.busy > 0
            self.busy -= busy
            manifest = params.get("manifest")
            missing = [] if have else None if manifest is None else snapshot_store.missing(self.store, manifest)
            return {"have": have, "missing": missing, "busy": busy, "free": self.free}
        if method == "snapshot.put":
            self.messages += 1
            for piece in params["pieces"]:
                self.incoming.put(piece["sha256"], base64.b64decode(piece["data"]), last=piece["last"])
            return {}
        assert method == "snapshot.seal"
        self.before_seal()
        try:
            return {"root": snapshot_store.seal(self.store, params["manifest"])}
        except snapshot_store.Incomplete as problem:
            raise AgentRefused(self.host, str(problem), code="incomplete") from problem

    def listen(self, method: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        raise NotImplementedError

    def on_close(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError


def quiet(done: int, total: int) -> None:
    """A progress callback that does nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "empty").write_bytes(b"")
    (place / "large").write_bytes(os_pattern(int(2.5 * snapshot_upload.PIECE)))
    for number in range(30):
        (place / f"small-{number}").write_text(str(number))
    return place


def os_pattern(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


def test_what_arrives_is_what_was_there(folder: Path, tmp_path: Path) -> None:
    link, reported = StoreLink(tmp_path / "store"), []
    snapshot = take_snapshot(folder)

    upload_snapshot(snapshot, link, lambda done, total: reported.append((done, total)), Event())
    snapshot_store.materialize(link.store, snapshot.root, str(tmp_path / "copy"))

    for file in folder.iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()
    assert reported[0] == (0, snapshot.size)
    assert reported[-1] == (snapshot.size, snapshot.size)
    assert link.messages < 6  # Several small files are sent in one message.


def test_only_what_is_new_is_sent(folder: Path, tmp_path: Path) -> None:
    link = StoreLink(tmp_path / "store")
    upload_snapshot(take_snapshot(folder), link, quiet, Event())
    link.messages = 0

    upload_snapshot(take_snapshot(folder), link, quiet, Event())
    assert link.messages == 0

    (folder / "small-3").write_text("changed")
    reported: list[tuple[int, int]] = []
    upload_snapshot(take_snapshot(folder), link, lambda done, total: reported.append((done, total)), Event())
    assert reported[-1] == (7, 7)


def test_a_cancelled_send_stops(folder: Path, tmp_path: Path) -> None:
    cancelled = Event()
    cancelled.set()

    with pytest.raises(Cancelled):
        upload_snapshot(take_snapshot(folder), StoreLink(tmp_path / "store"), quiet, cancelled)


def test_a_file_that_shrinks_meanwhile_is_named(folder: Path, tmp_path: Path) -> None:
    snapshot = take_snapshot(folder)
    (folder / "large").write_bytes(b"short")

    with pytest.raises(RunFailed, match="large changed while it was sent"):
        upload_snapshot(snapshot, StoreLink(tmp_path / "store"), quiet, Event())


def test_the_root_alone_decides_whether_anything_moves(folder: Path, tmp_path: Path) -> None:
    link = StoreLink(tmp_path / "store")
    upload_snapshot(take_snapshot(folder), link, quiet, Event())
    link.asked.clear()

    upload_snapshot(take_snapshot(folder), link, quiet, Event())

    [(method, size)] = link.asked
    assert method == "snapshot.offer"
    assert size < 200


def test_who_comes_second_waits_and_then_sends_what_is_left(folder: Path, tmp_path: Path) -> None:
    link = StoreLink(tmp_path / "store")
    link.busy = 2

    upload_snapshot(take_snapshot(folder), link, quiet, Event())

    assert [method for method, _ in link.asked].count("snapshot.offer") == 4
    assert snapshot_store.has(link.store, take_snapshot(folder).root)


def test_a_waiting_send_can_be_cancelled(folder: Path, tmp_path: Path) -> None:
    link, cancelled = StoreLink(tmp_path / "store"), Event()
    link.busy = 10**9
    waiting = in_background(upload_snapshot, take_snapshot(folder), link, quiet, cancelled)

    cancelled.set()

    with pytest.raises(Cancelled):
        waiting.result(60)


def test_what_the_store_lost_meanwhile_is_sent_again(folder: Path, tmp_path: Path) -> None:
    link, snapshot = StoreLink(tmp_path / "store"), take_snapshot(folder)
    lost = Path(snapshot_store.blob(link.store, next(entry["sha256"] for entry in snapshot.manifest)))

    def lose_once() -> None:
        lost.unlink()
        link.before_seal = lambda: None

    link.before_seal = lose_once
    upload_snapshot(snapshot, link, quiet, Event())

    assert lost.exists()
    assert snapshot_store.has(link.store, snapshot.root)


def test_a_disk_without_room_is_named_before_anything_is_sent(folder: Path, tmp_path: Path) -> None:
    link = StoreLink(tmp_path / "store")
    link.free = 5_000_000

    with pytest.raises(RunFailed, match=r"the disk of gpu-a has 5 MB free .* needs 10\d\.\d MB") as refused:
        upload_snapshot(take_snapshot(folder), link, quiet, Event())

    assert "exclude" in refused.value.hint
    assert link.messages == 0
