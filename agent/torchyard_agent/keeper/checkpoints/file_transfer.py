"""Transfers checkpoints over separate authenticated connections, so that the transfers do not delay heartbeats.

The sender lists its files with their sizes. For each file, the receiver sends the offset up to which it has the data.
It then receives the remaining data as frames of at most `PIECE` bytes, and the SHA-256 of the whole file. The sender
waits while its send buffer is full.

    sender                                  receiver
      | -- {"files": {name: bytes}} --------> |
      | <- {"file": name, "from": offset} --- |  for each
      | == pieces =========================> |
      | -- {"sha256"} ----------------------> |
      | <- {"done": true} | {"problem"} ----- |

Pieces are read, hashed and written in the event loop, because each takes only about a millisecond, and because a
keeper, which forks, should have no thread pool. fsync runs in a temporary thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

from torchyard_agent.background_threads import in_a_thread, uncancelled
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream
from torchyard_agent.protocol.authenticated_transport import AuthenticationError

PIECE = 256 * 1024
STALLED_S = 15.0
"""A transfer is aborted after this many seconds without progress."""
RESERVED = 64 * 1024 * 1024
"""Number of bytes on the receiver's disk that are left free for its logs."""


class TransferError(Exception):
    """Raised if a transfer fails and retrying is useless, for example if a disk is full or a checkpoint was removed."""


async def send(stream: Stream, folder: str) -> int:
    """Sends the complete checkpoint in `folder` and returns its size in bytes.

    All files are opened first, because the chief may remove them during the transfer.

    Raises:
        TransferError: The checkpoint cannot be sent, or the receiver reported a problem.
        NETWORK_ERRORS: The connection broke.
    """
    files = checkpoint_folders.files_of(folder)
    with contextlib.ExitStack() as opened:
        try:
            if files is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            handles = {name: _opened(opened, os.path.join(folder, name)) for name in files}
        except OSError as error:
            why = f"{os.path.basename(folder)} cannot be read: {error.strerror}"
            stream.send({"problem": why})
            raise TransferError(why) from error
        stream.send({"files": files})
        sent: set[object] = set()
        while True:
            try:
                request = await _within(stream, stream.receive())
            except NETWORK_ERRORS:
                if sent == set(files):  # The receiver has all files. It is syncing its disk, or it has disconnected.
                    return sum(files.values())
                raise
            if "problem" in request:
                raise TransferError(str(request["problem"]))
            if "done" in request:
                return sum(files.values())
            name, start = request.get("file"), request.get("from")
            if name not in handles or not isinstance(start, int) or not 0 <= start <= files[name]:
                raise AuthenticationError("the receiver requested a file that is not offered")
            await _send_file(stream, handles[name], start, files[name])
            sent.add(name)


def _opened(opened: contextlib.ExitStack, path: str) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    opened.callback(os.close, handle)
    return handle


async def _send_file(stream: Stream, handle: int, start: int, size: int) -> None:
    digest, done = hashlib.sha256(), 0
    while done < size:
        # Data that the receiver already has is hashed, but not sent.
        data = os.pread(handle, min(PIECE, size - done if done >= start else start - done), done)
        if not data:
            raise AuthenticationError("a file of a checkpoint was truncated during its transfer")
        digest.update(data)
        if done >= start:
            await _within(stream, stream.send_piece(data))
        else:
            await asyncio.sleep(0)
        done += len(data)
    stream.send({"sha256": digest.hexdigest()})


async def receive(stream: Stream, folder: str, name: str) -> int:
    """Receives the checkpoint `name` into `folder`, and returns its size in bytes. Resumes an interrupted transfer.

    The checkpoint's folder gets its final name when it is complete and synced to disk.

    Raises:
        TransferError: The checkpoint cannot be stored.
        NETWORK_ERRORS: The connection broke, or received data is invalid.
    """
    try:
        size = await _receive(stream, folder, name)
    except TransferError as problem:
        checkpoint_folders.clear_scratch(folder)
        with contextlib.suppress(OSError, ValueError):
            stream.send({"problem": str(problem)})
        raise
    stream.send({"done": True})
    return size


async def _receive(stream: Stream, folder: str, name: str) -> int:
    files = _offered(await _within(stream, stream.receive()))
    with _disk(folder):
        scratch = checkpoint_folders.scratch(folder, name)
        _reuse(os.path.join(folder, name), scratch, files)
        here = sum(os.path.getsize(os.path.join(scratch, file)) for file in os.listdir(scratch))
        about = os.statvfs(folder)
        free, needed = about.f_bavail * about.f_frsize, sum(files.values()) - here
    if free < needed + RESERVED:
        raise TransferError(f"the disk of {folder} has {free >> 20} MiB free, and {name} needs {needed >> 20} MiB")
    for file, size in files.items():
        await _receive_file(stream, os.path.join(scratch, file), file, size)
    with _disk(folder):
        if checkpoint_folders.files_of(scratch) is None:
            raise TransferError(f"{name} is incomplete on the host that sent it")
        await uncancelled(in_a_thread(_publish, scratch, os.path.join(folder, name)))
    return sum(files.values())


def _offered(offer: Message) -> dict[str, int]:
    if "problem" in offer:
        raise TransferError(str(offer["problem"]))
    files: Any = offer.get("files")
    if not isinstance(files, dict) or not files or len(files) > checkpoint_folders.MAX_FILES + 1:
        raise AuthenticationError("the sender does not list the checkpoint's files")
    for name, size in files.items():
        if not checkpoint_folders.is_file_name(name) or not isinstance(size, int) or size < 0:
            raise AuthenticationError("the sender offers a file that no checkpoint has")
    return files


async def _receive_file(stream: Stream, path: str, name: str, size: int) -> None:
    with _disk(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    digest, done = hashlib.sha256(), 0
    try:
        with _disk(path):
            here = os.fstat(handle).st_size
            if here > size:
                os.ftruncate(handle, 0)
                here = 0
        while done < here:
            with _disk(path):
                data = os.pread(handle, PIECE, done)
            digest.update(data)
            done += len(data)
            await asyncio.sleep(0)
        stream.send({"file": name, "from": done})
        while done < size:
            data = await _within(stream, stream.receive_piece())
            if not data or len(data) > size - done:
                raise AuthenticationError("the sender sent more of a file than it announced")
            with _disk(path):
                _write(handle, data, done)
            digest.update(data)
            done += len(data)
        digest_sent = (await _within(stream, stream.receive())).get("sha256")
    finally:
        os.close(handle)
    if digest_sent != digest.hexdigest():
        with contextlib.suppress(OSError):
            # The file is damaged, or belongs to another save of the same step. The next attempt must receive all of it.
            # The file is replaced by an empty one and not truncated, because it may be a hard link to an older copy,
            # which must not change. An existing file also prevents `_reuse` from linking the older copy again.
            os.unlink(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        raise AuthenticationError(f"{name} does not match the SHA-256 that was sent with it")


def _write(handle: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(handle, left, at)
        left, at = left[written:], at + written


def _publish(scratch: str, target: str) -> None:
    """Syncs the files to disk, and then renames their folder to its final name."""
    for path in (*(os.path.join(scratch, name) for name in os.listdir(scratch)), scratch):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    try:
        os.rename(scratch, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        # The folder is an existing older copy. Its files are replaced one by one, `checkpoint.json` last.
        for name in sorted(os.listdir(scratch), key=lambda name: name == checkpoint_folders.ABOUT):
            os.replace(os.path.join(scratch, name), os.path.join(target, name))
        shutil.rmtree(scratch, ignore_errors=True)


def _reuse(target: str, scratch: str, files: Mapping[str, int]) -> None:
    """Hard-links the files of an older copy whose sizes have not changed into the folder of the transfer.

    A linked file is hashed and not received. If its hash differs from that of the sender's file, the next attempt
    receives the file. `checkpoint.json` is never linked.
    """
    for name, size in files.items():
        old, new = os.path.join(target, name), os.path.join(scratch, name)
        with contextlib.suppress(OSError):
            if name != checkpoint_folders.ABOUT and os.path.getsize(old) == size and not os.path.exists(new):
                os.link(old, new)


@contextlib.contextmanager
def _disk(path: str) -> Iterator[None]:
    """Converts disk errors to TransferError, which distinguishes them from network errors."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise TransferError(f"the disk of {path} is full" if full else f"{path}: {error.strerror}") from error


async def _within(stream: Stream, doing: Awaitable[Any]) -> Any:
    """Awaits `doing`. After STALLED_S the connection is aborted, and `doing` then ends with an error.

    wait_for() is not used, because before Python 3.12 it loses a cancellation that arrives together with the result.
    """
    stalled = asyncio.get_running_loop().call_later(STALLED_S, stream.abort)
    try:
        return await doing
    finally:
        stalled.cancel()
