"""Download of a run's files from its hosts. If several hosts have a checkpoint, one of them provides it."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.launch.agent_interface import AgentLink

LIST_TIMEOUT_S = 120.0
Files = list[dict[str, Any]]
"""Files as returned by `files.list`, each with `path` and `size`."""
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]")
"""Matches control characters, and surrogates that do not encode a byte of a file name."""
_CHECKPOINT = re.compile(r"(outputs/checkpoints/step-\d{12})/[^/]+")


def list_files(
    run_id: str, pattern: str, hosts: Sequence[str], links: Mapping[str, AgentLink]
) -> tuple[dict[str, Files], dict[str, TorchyardError]]:
    """Lists the files to download from each host. A replicated checkpoint is listed for the first host that has it.

    Returns:
        The files and the errors, both by host. Hosts that do not know the run or are not in `links` are in neither.
    """
    pending: dict[str, Future[Any]] = {
        host: links[host].submit("files.list", {"run_id": run_id, "pattern": pattern})
        for host in hosts
        if host in links
    }
    found: dict[str, Files] = {}
    problems: dict[str, TorchyardError] = {}
    for host, future in pending.items():
        try:
            found[host] = _files(host, future.result(LIST_TIMEOUT_S))
        except TimeoutError:
            problems[host] = HostError(host, f"{host} did not list the run's files in time.")
        except TorchyardError as error:
            if not isinstance(error, AgentRefused) or error.code != "no_run":
                problems[host] = error
    return without_copies(found), problems


def _files(host: str, answer: Any) -> Files:
    """Returns the files in a host's answer. Raises HostError for a malformed answer."""
    try:
        files: Files = [{"path": str(file["path"]), "size": int(file["size"])} for file in answer]
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise HostError(host, f"{host} sent a malformed list of the run's files: {error!r}.") from None
    if any(file["size"] < 0 for file in files):
        raise HostError(host, f"{host} sent a malformed list of the run's files: a size is below 0.")
    return files


def without_copies(found: Mapping[str, Files]) -> dict[str, Files]:
    """Keeps each checkpoint only for the first host that has it."""
    seen: set[str] = set()
    left: dict[str, Files] = {}
    for host, files in found.items():
        here = {name for file in files if (name := _checkpoint_of(file)) is not None}
        left[host] = [file for file in files if _checkpoint_of(file) not in seen]
        seen |= here
    return left


def _checkpoint_of(file: Mapping[str, Any]) -> str | None:
    found = _CHECKPOINT.fullmatch(str(file["path"]))
    return found[1] if found else None


def fetch_files(
    run_id: str, files: Files, target: Path, link: AgentLink, progress: Callable[[str, int, int], None]
) -> list[Path]:
    """Downloads the files of a host into `target`/HOST and returns their paths.

    If the run has removed a file in the meantime, the file is skipped. If it belongs to a checkpoint, the whole
    checkpoint is skipped. `progress` is called with (host, bytes downloaded, total bytes).
    """
    host = link.host
    written: list[Path] = []
    gone: set[Path] = set()
    total, done = sum(int(file["size"]) for file in files), 0
    for file in files:
        place = _inside(target / host, str(file["path"]))
        if place.parent in gone:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        before = done
        try:
            for size in fetch_file(run_id, str(file["path"]), int(file["size"]), place, link):
                done += size
                progress(host, min(done, total), total)
        except AgentRefused as refusal:
            if refusal.code != "no_file":
                raise
            done = before
            if _checkpoint_of(file) is not None:
                gone.add(place.parent)
                shutil.rmtree(place.parent, ignore_errors=True)
        else:
            written.append(place)
    return [path for path in written if path.parent not in gone]


def fetch_file(run_id: str, path: str, size: int, place: Path, link: AgentLink) -> Iterator[int]:
    """Downloads a file to a temporary file, which is renamed at the end. Yields the size of each received block.

    Bytes after the announced `size` are ignored, because a log may have grown. Raises HostError for malformed data, and
    the errors of `AgentLink.call`.
    """
    scratch = place.with_name(place.name + ".part")
    offset = 0
    try:
        with scratch.open("wb") as output:
            while offset < size:
                piece = link.call("files.read", {"run_id": run_id, "path": path, "offset": offset})
                try:
                    data = base64.b64decode(piece["data"], validate=True)[: size - offset]
                except (TypeError, KeyError, ValueError) as error:
                    raise HostError(link.host, f"{link.host} sent malformed data of {path}: {error!r}.") from None
                if not data:
                    break
                output.write(data)
                offset += len(data)
                yield len(data)
    except BaseException:  # No partial file may remain, even after KeyboardInterrupt.
        scratch.unlink(missing_ok=True)
        raise
    scratch.replace(place)


def _inside(folder: Path, path: str) -> Path:
    """Returns `path` below `folder`. Raises HostError for a path outside of `folder`.

    Surrogates that cannot be encoded are escaped as in `%1b`, and so are control characters, which a terminal could
    interpret.
    """
    place = (folder / _UNSAFE.sub(_percent, path)).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise HostError(folder.name, f"{folder.name} offered a file outside the run's folder: {path}.")
    return place


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))
