"""Folders of files over an authenticated connection of their own, beside the gang link: heartbeats never wait for them.

The end that gives says which files there are and how large; the end that takes asks for one after the other, from where
it stopped before, and gets it in frames of `PIECE` bytes, then the SHA-256 of the whole file. Nothing is sent that was
not asked for, and no more than the sockets' buffers is under way: a slow receiver slows the sender down.

    gives                                   takes
      | -- {"files": {name: bytes}} --------> |
      | <- {"file": name, "from": offset} --- |  for each
      | == pieces =========================> |
      | -- {"sha256"} ----------------------> |
      | <- {"done": true} | {"problem"} ----- |

Pieces are read, hashed and written on the loop: each takes about a millisecond, and keepers fork, so no pool of
threads is kept. What waits for the disk itself (fsync) has a thread of its own.
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

from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream
from torchyard_agent.keeper.resources import in_a_thread, to_its_end
from torchyard_agent.protocol.authenticated_transport import AuthenticationError

PIECE = 256 * 1024
STALLED_S = 15.0
"""A transfer in which nothing moves for so long has ended."""
ROOM = 64 * 1024 * 1024
"""Bytes of a receiver's disk that are left to its logs."""


class CarryProblem(Exception):
    """It cannot be carried, and trying again at once would not help: a full disk, a checkpoint that has gone."""


async def give(stream: Stream, folder: str) -> int:
    """Serves the complete checkpoint in `folder` until the other end has it; returns its size in bytes.

    Its files are opened at once: the chief may remove it meanwhile. Raises CarryProblem, one of gang.NETWORK_ERRORS.
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
            raise CarryProblem(why) from error
        stream.send({"files": files})
        given: set[object] = set()
        while True:
            try:
                asked = await _within(stream, stream.receive())
            except NETWORK_ERRORS:
                if given == set(files):  # it has all, and is busy with its disk or has hung up
                    return sum(files.values())
                raise
            if "problem" in asked:
                raise CarryProblem(str(asked["problem"]))
            if "done" in asked:
                return sum(files.values())
            name, start = asked.get("file"), asked.get("from")
            if name not in handles or not isinstance(start, int) or not 0 <= start <= files[name]:
                raise AuthenticationError("it was asked for a file that is not offered")
            await _give_file(stream, handles[name], start, files[name])
            given.add(name)


def _opened(opened: contextlib.ExitStack, path: str) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    opened.callback(os.close, handle)
    return handle


async def _give_file(stream: Stream, handle: int, start: int, size: int) -> None:
    digest, done = hashlib.sha256(), 0
    while done < size:
        # What the other end has already is only hashed.
        data = os.pread(handle, min(PIECE, size - done if done >= start else start - done), done)
        if not data:
            raise AuthenticationError("a checkpoint's file was cut short while it was carried")
        digest.update(data)
        if done >= start:
            await _within(stream, stream.send_piece(data))
        else:
            await asyncio.sleep(0)
        done += len(data)
    stream.send({"sha256": digest.hexdigest()})


async def take(stream: Stream, folder: str, name: str) -> int:
    """Brings the checkpoint `name` into `folder`, from where an earlier try stopped; returns its size in bytes.

    It lies beside its place until it is whole and on the disk. Raises CarryProblem, one of gang.NETWORK_ERRORS.
    """
    try:
        size = await _take(stream, folder, name)
    except CarryProblem as problem:
        checkpoint_folders.clear_scratch(folder)
        with contextlib.suppress(OSError, ValueError):
            stream.send({"problem": str(problem)})
        raise
    stream.send({"done": True})
    return size


async def _take(stream: Stream, folder: str, name: str) -> int:
    files = _offered(await _within(stream, stream.receive()))
    with _disk(folder):
        scratch = checkpoint_folders.scratch(folder, name)
        _reuse(os.path.join(folder, name), scratch, files)
        here = sum(os.path.getsize(os.path.join(scratch, file)) for file in os.listdir(scratch))
        about = os.statvfs(folder)
        free, needed = about.f_bavail * about.f_frsize, sum(files.values()) - here
    if free < needed + ROOM:
        raise CarryProblem(f"the disk of {folder} has {free >> 20} MiB free, and {name} needs {needed >> 20} MiB")
    for file, size in files.items():
        await _take_file(stream, os.path.join(scratch, file), file, size)
    with _disk(folder):
        if checkpoint_folders.files_of(scratch) is None:
            raise CarryProblem(f"{name} is not whole where it came from")
        await to_its_end(in_a_thread(_settle, scratch, os.path.join(folder, name)))
    return sum(files.values())


def _offered(told: Message) -> dict[str, int]:
    if "problem" in told:
        raise CarryProblem(str(told["problem"]))
    files: Any = told.get("files")
    if not isinstance(files, dict) or not files or len(files) > checkpoint_folders.MAX_FILES + 1:
        raise AuthenticationError("the other side does not say which files a checkpoint has")
    for name, size in files.items():
        if not checkpoint_folders.is_file_name(name) or not isinstance(size, int) or size < 0:
            raise AuthenticationError("the other side offers a file that no checkpoint has")
    return files


async def _take_file(stream: Stream, path: str, name: str, size: int) -> None:
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
                raise AuthenticationError("more of a file came than was announced")
            with _disk(path):
                _write(handle, data, done)
            digest.update(data)
            done += len(data)
        told = await _within(stream, stream.receive())
    finally:
        os.close(handle)
    if told.get("sha256") != digest.hexdigest():
        with contextlib.suppress(OSError):
            # Whichever end's disk it was, or another save of the same step: the next try begins with it afresh. What
            # lies there now may be a link to the copy of before, which stays as it is; and no such link is made again.
            os.unlink(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        raise AuthenticationError(f"{name} has not the SHA-256 that it was sent with")


def _write(handle: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(handle, left, at)
        left, at = left[written:], at + written


def _settle(scratch: str, target: str) -> None:
    """On the disk, then in its place."""
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
        # It was here before, and what it says of itself has changed (that it is the last): that comes last.
        for name in sorted(os.listdir(scratch), key=lambda name: name == checkpoint_folders.ABOUT):
            os.replace(os.path.join(scratch, name), os.path.join(target, name))
        shutil.rmtree(scratch, ignore_errors=True)


def _reuse(target: str, scratch: str, files: Mapping[str, int]) -> None:
    """Of one that is here already, only what has changed is sent: the rest is hashed where it lies."""
    for name, size in files.items():
        old, new = os.path.join(target, name), os.path.join(scratch, name)
        with contextlib.suppress(OSError):
            if name != checkpoint_folders.ABOUT and os.path.getsize(old) == size and not os.path.exists(new):
                os.link(old, new)


@contextlib.contextmanager
def _disk(path: str) -> Iterator[None]:
    """A disk's errors, which are no network's."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CarryProblem(f"the disk of {path} is full" if full else f"{path}: {error.strerror}") from error


async def _within(stream: Stream, doing: Awaitable[Any]) -> Any:
    """Waits for it; a connection on which nothing moves any more is ended, which ends the waiting.

    Not by wait_for(): until Python 3.12 it loses a cancellation that comes together with the result, and an overtaken
    transfer then went on.
    """
    stalled = asyncio.get_running_loop().call_later(STALLED_S, stream.abort)
    try:
        return await doing
    finally:
        stalled.cancel()
