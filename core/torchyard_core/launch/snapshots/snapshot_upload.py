"""Uploads a snapshot to hosts. A host receives only the files whose content it lacks."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Event
from typing import Any

from torchyard_core.background_thread import in_background
from torchyard_core.errors import AgentRefused, HostError, RunFailed, Unreachable
from torchyard_core.formatting import size
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.progress import Cancelled, LaunchProgress
from torchyard_core.launch.snapshots.snapshot import Snapshot
from torchyard_core.next_steps import CheckHosts, SetField, SetHostField

PIECE = 1 << 20
"""Maximum number of bytes of file content in one message."""
IN_FLIGHT = 4
"""Maximum number of messages in flight: enough to keep the connection busy, but few enough to cancel quickly."""
ANSWER_TIMEOUT_S = 300.0
ASK_AGAIN_S = 0.25
"""Interval in seconds between two requests of an upload that waits for another upload to the same snapshot store."""
TRIES = 3
"""Maximum number of attempts to upload a snapshot.

An attempt fails if garbage collection removes files of the snapshot before the snapshot is complete.
"""
ROOM = 100_000_000
"""Number of free bytes that a host's disk must have for logs and outputs, in addition to the code."""

OnProgress = Callable[[int, int], None]
"""A callback that is called with (bytes sent, bytes to send)."""


def upload_snapshot(snapshot: Snapshot, link: AgentLink, on_progress: OnProgress, cancelled: Event) -> None:
    """Uploads `snapshot` to the host of `link`, unless the host already has it.

    If several hosts share a home folder, one of them receives the snapshot, and the uploads to the others wait.

    Files that have arrived completely are kept, so a later upload can continue an interrupted one.

    Raises:
        RunFailed: A file changed during the upload or cannot be read, or the host has too little free disk space.
        Cancelled: The user cancelled the launch.
        AgentRefused, HostError: The host refused the request, or the connection was lost.
    """
    for last_try in (*[False] * (TRIES - 1), True):
        answer = _offer(snapshot, link, cancelled)
        if answer["have"]:
            on_progress(0, 0)
            return
        _send_files(snapshot, answer["missing"], link, on_progress, cancelled)
        try:
            link.call("snapshot.seal", {"manifest": snapshot.manifest}, ANSWER_TIMEOUT_S)
            return
        except AgentRefused as refusal:
            if refusal.code != "incomplete" or last_try:
                raise


def _offer(snapshot: Snapshot, link: AgentLink, cancelled: Event) -> dict[str, Any]:
    """Asks the host whether it has the snapshot, after other uploads to its snapshot store have ended.

    The manifest is sent only if the host does not have the snapshot.

    Returns:
        The host's answer, which contains the hashes of the files that the host lacks.

    Raises:
        RunFailed: The host's disk has too little free space.
        Cancelled: The launch was cancelled.
    """
    while True:
        answer: dict[str, Any] = link.call("snapshot.offer", {"root": snapshot.root}, ANSWER_TIMEOUT_S)
        if not answer["have"] and not answer["busy"]:
            offer = {"root": snapshot.root, "manifest": snapshot.manifest}
            answer = link.call("snapshot.offer", offer, ANSWER_TIMEOUT_S)
        if not answer["busy"]:
            break
        if cancelled.wait(ASK_AGAIN_S):
            raise Cancelled
    sizes = _sizes(snapshot)
    needed = snapshot.size + sum(sizes[sha256] for sha256 in answer["missing"]) + ROOM
    if answer["free"] < needed:
        raise RunFailed(
            f"the disk of {link.host} has {size(answer['free'])} free for the agent's folder, and this run needs "
            f"{size(needed)}: its code, a copy of its own, and {size(ROOM)} for logs.",
            code="disk",
            hint=(
                "Free disk space there, choose another folder, or exclude what a run does not need.",
                SetHostField(link.host, "agent_dir"),
                SetField("program.exclude"),
            ),
        )
    return answer


def _sizes(snapshot: Snapshot) -> dict[str, int]:
    return {entry["sha256"]: entry["size"] for entry in snapshot.manifest if "sha256" in entry}


def _send_files(
    snapshot: Snapshot, missing: list[str], link: AgentLink, on_progress: OnProgress, cancelled: Event
) -> None:
    paths, sizes = snapshot.paths(), _sizes(snapshot)
    total = sum(sizes[sha256] for sha256 in missing)
    sent = 0
    waiting: deque[tuple[Future[Any], int]] = deque()

    def settle() -> None:
        nonlocal sent
        future, length = waiting.popleft()
        future.result(ANSWER_TIMEOUT_S)
        sent += length
        on_progress(sent, total)

    on_progress(0, total)
    for pieces, length in _messages([(sha256, paths[sha256], sizes[sha256]) for sha256 in missing]):
        if cancelled.is_set():
            raise Cancelled
        waiting.append((link.submit("snapshot.put", {"pieces": pieces}), length))
        if len(waiting) >= IN_FLIGHT:
            settle()
    while waiting:
        settle()


def _messages(files: list[tuple[str, Path, int]]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yields messages, each with the size of its content. A message has at most PIECE bytes, from one or more files.

    Raises RunFailed for a file that cannot be read or that has become shorter.
    """
    pieces: list[dict[str, Any]] = []
    size = 0
    for sha256, path, expected in files:
        left = expected
        try:
            with path.open("rb") as file:
                while True:
                    data = file.read(min(PIECE - size, left) if left else 0)
                    left -= len(data)
                    if expected and not data:
                        raise RunFailed(f"{path} changed while it was sent.", code="changed", hint="Run it again.")
                    pieces.append({"sha256": sha256, "data": base64.b64encode(data).decode(), "last": left == 0})
                    size += len(data)
                    if size >= PIECE or len(pieces) >= 1000:
                        yield pieces, size
                        pieces, size = [], 0
                    if left == 0:
                        break
        except OSError as error:
            raise RunFailed(f"{path} cannot be read: {error.strerror}.", code="workdir") from error
    if pieces:
        yield pieces, size


RECONNECTS = 2
"""Maximum number of times that a lost connection to a host is opened again during an upload."""
PAUSE_S = 1.0


def upload_to_all(snapshot: Snapshot, links: dict[str, AgentLink], hosts: Hosts, progress: LaunchProgress) -> None:
    """Uploads `snapshot` to every host of `links`. Replaces lost links in `links` by new ones.

    Raises the errors of `upload_snapshot`.
    """
    sent: dict[str, tuple[int, int]] = {}

    def send(host: str) -> None:
        for tries in range(RECONNECTS + 1):
            try:
                upload_snapshot(snapshot, links[host], note(host), progress.cancelled)
                return
            except Unreachable as lost:
                if tries == RECONNECTS or links[host].is_open:
                    raise _broke_off(host) from lost
                links[host] = _reconnect(host, hosts, progress)

    def note(host: str) -> Callable[[int, int], None]:
        return lambda done, total: sent.__setitem__(host, (done, total))

    sending = {host: in_background(send, host) for host in links}
    reported = (-1, -1)
    while True:
        finished = wait(sending.values(), timeout=0.1).not_done == set()
        now = (sum(done for done, _ in sent.values()), sum(total for _, total in sent.values()))
        if now != reported and now[1]:
            reported = now
            progress.emit("progress", what="sending", done=now[0], total=now[1])
            progress.on_progress("sending", *now)
        if finished:
            break
    progress.wait_for_all(sending)
    progress.stop_if_cancelled()


def _reconnect(host: str, hosts: Hosts, progress: LaunchProgress) -> AgentLink:
    """Opens a new link after a pause. Raises HostError if this fails, and Cancelled if the launch was cancelled."""
    if progress.cancelled.wait(PAUSE_S):
        raise Cancelled
    link = hosts.reach([host], lambda name, found: None)[host]
    if isinstance(link, HostError):
        raise _broke_off(host) from link
    return link


def _broke_off(host: str) -> Unreachable:
    message = f"the connection to {host} was lost while the code was sent, and could not be restored."
    hint = ("Launch again once it is up: files that have arrived are not sent again.", CheckHosts((host,)))
    return Unreachable(host, message, hint=hint)
