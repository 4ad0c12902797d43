"""Tests, over a real connection, that the daemon releases the upload locks of a desktop that disconnects."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.waiting import eventually
from torchyard_agent import unix_socket_rpc
from torchyard_agent.daemon.upload_locks import UploadLocks
from torchyard_agent.daemon.uploads import Uploads
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.snapshot_manifest import root_of

MANIFEST = [{"path": "train.py", "mode": 0o644, "size": 1, "sha256": "a" * 64}]
ROOT = root_of(MANIFEST)


def test_a_lock_taken_for_a_disconnected_desktop_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    take = UploadLocks.take

    def take_on_a_slow_disk(self: UploadLocks, root: str, sender: str) -> bool:
        begun.set()
        assert go_on.wait(60)
        try:
            return take(self, root, sender)
        finally:
            over.set()

    async def story() -> None:
        address = f"\0torchyard-test-{os.urandom(8).hex()}"
        connections: set[unix_socket_rpc.Connection] = set()
        server = await unix_socket_rpc.serve(
            unix_socket_rpc.bind(address), Uploads(str(tmp_path), "gpu-a").table(), connections
        )
        monkeypatch.setattr(UploadLocks, "take", take_on_a_slow_disk)
        one = await unix_socket_rpc.connect(address)
        asking = asyncio.ensure_future(one.call("snapshot.offer", {"root": ROOT, "manifest": MANIFEST}))
        await eventually(begun.is_set)
        one.close()
        with pytest.raises(RpcError):
            await asking
        await eventually(lambda: not connections)
        go_on.set()
        await eventually(over.is_set)

        other = await unix_socket_rpc.connect(address)
        await eventually(lambda: not UploadLocks(str(tmp_path), "gpu-b").are_held())
        assert not (await other.call("snapshot.offer", {"root": ROOT, "manifest": MANIFEST}))["busy"]
        other.close()
        await eventually(lambda: not connections)
        server.close()

    asyncio.run(story())
