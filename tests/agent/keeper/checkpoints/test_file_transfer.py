"""Tests of checkpoint transfers when connections break or disks are full."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.agent.keeper.checkpoints.sample_checkpoints import same, save, there
from tests.agent.keeper.keeper_cluster import SECRET
from tests.waiting import eventually
from torchyard_agent.keeper.checkpoints import checkpoint_folders, file_transfer
from torchyard_agent.keeper.checkpoints.checkpoint_replication import CheckpointReceiver
from torchyard_agent.keeper.checkpoints.file_transfer import TransferError
from torchyard_agent.keeper.link import gang_link
from torchyard_agent.keeper.link.gang_link import Message, Stream
from torchyard_agent.keeper.link.messages import CheckpointFetched, FromMember
from torchyard_agent.protocol import authenticated_transport

KEY = bytes.fromhex(SECRET)


class Pair:
    """A listener on this machine, and the connections that it has accepted."""

    async def __aenter__(self) -> Pair:
        self.met: asyncio.Queue[Stream] = asyncio.Queue()
        self._streams: list[Stream] = []

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream, _, _ = await gang_link.admit(reader, writer, KEY)
            stream.send({"welcome": True})
            self._streams.append(stream)
            self.met.put_nowait(stream)

        self._server = await asyncio.start_server(meet, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.abort()
        self._server.close()
        await asyncio.sleep(0.01)  # The event loop needs one iteration to close the aborted connections.

    async def dial(self, introduction: Message) -> tuple[Stream, Message]:
        return await gang_link.call("127.0.0.1", self._port, KEY, introduction)


class Cut(Stream):
    """A stream whose connection breaks once the stream has sent a given number of blocks."""

    pieces = 0
    left = 0

    async def send_piece(self, data: bytes) -> None:
        self.pieces += 1
        if self.pieces > self.left:
            self.abort()
            raise ConnectionResetError(errno.ECONNRESET, "cut")
        await super().send_piece(data)


class Stuck(Stream):
    """A stream that stops after five blocks, until the other end disconnects."""

    pieces = 0

    async def send_piece(self, data: bytes) -> None:
        self.pieces += 1
        if self.pieces > 5:
            await self.receive_piece()
        await super().send_piece(data)


def test_an_interrupted_transfer_is_resumed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    name = save(source, 1, 10 * file_transfer.PIECE, files=("model.pt",))
    pieces: list[int] = []

    async def scenario() -> None:
        sent: list[FromMember] = []
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            receiver.fetch(name)
            for left in (6, 100):
                stream = await asyncio.wait_for(pair.met.get(), 10)
                stream.__class__ = Cut
                assert isinstance(stream, Cut)
                stream.left = left
                try:
                    await file_transfer.send(stream, str(source / name))
                except gang_link.NETWORK_ERRORS:
                    assert left == 6
                pieces.append(min(stream.pieces, left))
            await eventually(lambda: sent)
            receiver.close()
        assert sent == [CheckpointFetched(name, "")]

    asyncio.run(scenario())
    assert same(source / name, target / name)
    assert there(target) == [name]
    # One block, checkpoint.json, is not counted. Blocks that were in the buffer of the broken socket are sent again.
    assert 10 <= sum(pieces) - 1 <= 14


def test_a_checkpoint_marked_as_final_is_copied_again_with_its_mark_only(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    name = save(source, 1, 10 * file_transfer.PIECE)
    shutil.copytree(source / name, target / name)
    about = json.loads((source / name / "checkpoint.json").read_text())
    (source / name / "checkpoint.json").write_text(json.dumps({**about, "final": True, "run": "run"}))
    label = checkpoint_folders.newest(str(source), "run")
    assert (label, checkpoint_folders.newest(str(source), "other")) == (f"{name}-final", name)

    async def scenario() -> None:
        sent: list[FromMember] = []
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            assert receiver.newest().name == name
            receiver.fetch(label)
            stream = await asyncio.wait_for(pair.met.get(), 10)
            stream.__class__ = Cut
            assert isinstance(stream, Cut)
            stream.left = 1
            await file_transfer.send(stream, str(source / name))
            await eventually(lambda: sent)
            assert receiver.newest().name == label
        assert sent == [CheckpointFetched(label, "")]

    asyncio.run(scenario())
    assert same(source / name, target / name)
    assert there(target) == [name]


def test_another_save_of_the_same_step_is_copied_completely(tmp_path: Path) -> None:
    """With asynchronous worker groups, the chief may save a step twice; the second save has the final state of all
    groups.
    """
    source, target = tmp_path / "source", tmp_path / "target"
    name = save(source, 1, 3 * file_transfer.PIECE)
    shutil.copytree(source / name, target / name)
    (source / name / "model.pt").write_bytes(bytes(3 * file_transfer.PIECE))

    async def scenario() -> None:
        sent: list[FromMember] = []
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            receiver.fetch(name)
            while not sent:
                stream = await asyncio.wait_for(pair.met.get(), 10)
                with suppress(*gang_link.NETWORK_ERRORS):
                    await file_transfer.send(stream, str(source / name))
                await eventually(lambda: sent or not pair.met.empty())
        assert sent == [CheckpointFetched(name, "")]

    asyncio.run(scenario())
    assert same(source / name, target / name)
    assert there(target) == [name]


def test_a_newer_checkpoint_replaces_the_transfer_under_way(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    old = save(source, 1, 20 * file_transfer.PIECE)
    new = save(source, 2, 3 * file_transfer.PIECE)

    async def scenario() -> None:
        sent: list[FromMember] = []
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            receiver.fetch(old)
            first = await asyncio.wait_for(pair.met.get(), 10)
            first.__class__ = Stuck
            giving = asyncio.get_running_loop().create_task(file_transfer.send(first, str(source / old)))
            await eventually(lambda: (target / f".carried-{old}" / "model.pt").exists())
            receiver.fetch(new)
            second = await asyncio.wait_for(pair.met.get(), 10)
            await file_transfer.send(second, str(source / new))
            with pytest.raises(gang_link.NETWORK_ERRORS):
                await giving
            await eventually(lambda: sent)
        assert sent == [CheckpointFetched(new, "")]

    asyncio.run(scenario())
    assert there(target) == [new]


def test_a_newer_transfer_waits_for_the_disk_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    old, new = save(source, 1), save(source, 2)
    writes, is_written, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(handle: int) -> None:
        writes.set()
        is_written.wait(10)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)

    async def scenario() -> None:
        sent: list[FromMember] = []
        unheard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            receiver.fetch(old)
            first = await asyncio.wait_for(pair.met.get(), 10)
            giving = asyncio.get_running_loop().create_task(file_transfer.send(first, str(source / old)))
            await eventually(writes.is_set)
            receiver.fetch(new)
            await asyncio.sleep(0.05)
            assert pair.met.empty()
            is_written.set()
            await file_transfer.send(await asyncio.wait_for(pair.met.get(), 10), str(source / new))
            await giving
            await eventually(lambda: sent)
        assert sent == [CheckpointFetched(new, "")]
        assert unheard == []

    asyncio.run(scenario())
    assert there(target) == [old, new]
    assert same(source / old, target / old)


def test_a_full_disk_is_reported_and_nothing_incomplete_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    name = save(source, 1, 3 * file_transfer.PIECE)

    def full(handle: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)

    async def scenario() -> None:
        sent: list[FromMember] = []
        async with Pair() as pair:
            receiver = CheckpointReceiver(str(target), "run", "gpu-b", pair.dial, sent.append)
            receiver.fetch(name)
            stream = await asyncio.wait_for(pair.met.get(), 10)
            with pytest.raises((TransferError, *gang_link.NETWORK_ERRORS)):
                await file_transfer.send(stream, str(source / name))
            await eventually(lambda: sent)
        assert sent == [CheckpointFetched(name, sent[0].problem)]
        assert "is full" in sent[0].problem

    asyncio.run(scenario())
    assert there(target) == []


def test_a_checkpoint_with_files_outside_its_folder_is_incomplete(tmp_path: Path) -> None:
    name = save(tmp_path, 1)
    (tmp_path / name / "checkpoint.json").write_text('{"files": {"../../secret": 3}}')
    assert checkpoint_folders.newest(str(tmp_path)) == ""
    (tmp_path / name / "checkpoint.json").write_text('{"files": {"model.pt": {"bytes": 1000, "sha256": "00"}}}')
    assert checkpoint_folders.newest(str(tmp_path)) == name


def test_a_sender_that_offers_a_file_outside_is_disconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Pair() as pair:
            stream, _ = await pair.dial({"carry": "x"})
            other = await pair.met.get()
            other.send({"files": {"../evil": 3}})
            with pytest.raises(authenticated_transport.AuthenticationError):
                await file_transfer.receive(stream, str(tmp_path / "target"), "step-000000000001")
            stream.abort()
            other.abort()

    asyncio.run(scenario())
    assert there(tmp_path / "target") == []
