"""Garbage collection of ended runs, snapshots, agent archives and old log text, by age and size.

The collection runs in a separate process (see `garbage_collection_trigger`), because it may scan a hundred thousand
files. It keeps runs whose keeper is alive, archives from which a keeper or daemon runs, and snapshots that are used by
a run on any host with the same home folder. Each host removes only its own runs, because only this host can find out
whether their keepers are alive. Folders of runs and agents are renamed before they are removed, so each folder is
complete or absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from torchyard_agent import installed_version, snapshot_store
from torchyard_agent.daemon import audit
from torchyard_agent.daemon.upload_locks import UploadLocks
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths
from torchyard_agent.telemetry.procfs import each_process

DAY_S = 86400.0
GB = 1e9
KEEP_DAYS = 30.0
KEEP_GB = 50.0
ALWAYS_KEPT = 10
"""Number of the newest ended runs that are always kept, regardless of their age and size."""
QUIET_S = 3600.0
"""Number of seconds for which a run is kept after the last write to its journal.

During this time, the run's keeper may be starting or exiting.
"""
ARCHIVES_S = 30 * DAY_S
SCRATCH_S = DAY_S
"""Age in seconds at which temporary files and folders, such as incomplete uploads of archives, are removed."""
SNAPSHOTS_S = 7 * DAY_S
SNAPSHOTS_WHEN_SHORT_S = DAY_S
SHORT_SHARE = 0.1
"""Fraction of free disk space below which unused snapshots are kept for only one day."""
FILES_S = DAY_S
"""Number of seconds for which a file that belongs to no snapshot is kept, because its upload may be in progress."""
LOG_LIMIT = 10_000_000
LOG_KEPT = 1_000_000
REMOVED = "removed"
"""Subfolder of the host's folder to which the folders of runs are moved before they are removed."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_END = b'"event":"run_ended"'
_TAIL = 1 << 20
"""Number of bytes at the end of a journal that are searched for the entry `run_ended`.

The entry is long, because it lists all replicas.
"""

log = logging.getLogger("torchyard_agent.daemon.garbage_collection")


@dataclass(frozen=True)
class Limits:
    """Limits on the age and size of ended runs on this host."""

    days: float = KEEP_DAYS
    bytes: float = KEEP_GB * GB

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Limits:
        """Reads TORCHYARD_KEEP_DAYS and TORCHYARD_KEEP_GB.

        The value `inf` means that there is no limit. Invalid values are logged and ignored.
        """
        return cls(
            _number(environment, "TORCHYARD_KEEP_DAYS", KEEP_DAYS),
            _number(environment, "TORCHYARD_KEEP_GB", KEEP_GB) * GB,
        )


@dataclass(frozen=True)
class EndedRun:
    """A run on this host whose keeper has exited."""

    run_id: str
    last_at: float
    """The time, in seconds since 1970, of the last write to the run's journal or, if there is none, to its log."""
    size: int
    """The size on disk in bytes."""
    has_end: bool
    """Whether the journal contains the end of the run. The end is missing, for example, if the keeper crashed."""


def surplus(runs: Sequence[EndedRun], limits: Limits, now: float) -> dict[str, str]:
    """Returns the IDs of the runs to remove, with reasons.

    A run whose end is not recorded is removed only because of its age.
    """
    gone: dict[str, str] = {}
    kept = 0
    for place, run in enumerate(sorted(runs, key=lambda run: run.last_at, reverse=True)):
        days = (now - run.last_at) / DAY_S
        if place < ALWAYS_KEPT:
            kept += run.size
        elif days > limits.days:
            gone[run.run_id] = f"it was over {days:.0f} days ago"
        elif run.has_end and kept + run.size > limits.bytes:
            gone[run.run_id] = f"ended runs would take more than {limits.bytes / GB:g} GB"
        else:
            kept += run.size
    return gone


def collect(agent_dir: str, node: str, sha256: str, limits: Limits, now: float | None = None) -> None:
    """Removes unneeded runs, snapshots, archives and log text. An error in one part does not affect the others.

    Args:
        sha256: The hash of the archive that this host's daemon runs from.
    """
    now = time.time() if now is None else now
    removed = {
        "runs": _part("runs", lambda: collect_runs(agent_dir, node, limits, now)),
        "snapshots": _part("snapshots", lambda: collect_snapshots(agent_dir, node, now)),
        "archives": _part("archives", lambda: collect_archives(agent_dir, node, sha256, now)),
    }
    _part("log", lambda: shorten_log(os.path.join(paths.host_dir(agent_dir, node), "daemon.log")))
    if any(removed.values()):
        audit.note(agent_dir, node, "housekeeping", **{kind: count for kind, count in removed.items() if count})


def _part(what: str, work: Callable[[], int]) -> int:
    try:
        return work()
    except OSError as error:
        log.warning("garbage collection: %s: %s", what, error)
        return 0


def collect_runs(agent_dir: str, node: str, limits: Limits, now: float) -> int:
    """Removes the folders of ended runs that exceed the limits, and returns the number of removed folders."""
    _empty_removed(agent_dir, node)
    state = paths.gc_state(agent_dir, node)
    known = _read_sizes(state)
    runs = ended_runs(agent_dir, node, known, now)
    count = 0
    for run_id, reason in surplus(runs, limits, now).items():
        if control_socket.is_alive(paths.run_dir(agent_dir, node, run_id)):
            continue
        try:
            _remove(paths.run_dir(agent_dir, node, run_id), os.path.join(paths.host_dir(agent_dir, node), REMOVED))
        except OSError as error:
            log.warning("garbage collection: run %s cannot be removed: %s", run_id, error)
            continue
        log.info("garbage collection: removed run %s: %s", run_id, reason)
        known.pop(run_id, None)
        count += 1
    here = {run.run_id for run in runs}
    with contextlib.suppress(OSError), open(state, "w", encoding="utf-8") as file:
        json.dump({run_id: size for run_id, size in known.items() if run_id in here}, file)
    return count


def ended_runs(agent_dir: str, node: str, known: dict[str, list[int]], now: float) -> list[EndedRun]:
    """Returns the runs on this host that have no keeper and whose journal was not written within the last QUIET_S.

    Args:
        known: A cache of the runs' sizes, which this function updates.
    """
    found = []
    for name in _names(paths.runs_dir(agent_dir, node)):
        folder = paths.run_dir(agent_dir, node, name)
        if not _RUN_ID.fullmatch(name) or os.path.islink(folder) or not os.path.isdir(folder):
            continue
        last_ns = _last_written(folder)
        if now - last_ns / 1e9 < QUIET_S or control_socket.is_alive(folder):
            continue
        if known.get(name, [0])[0] != last_ns:  # The size of an ended run does not change, so it is measured only once.
            known[name] = [last_ns, size_of(folder)]
        found.append(EndedRun(name, last_ns / 1e9, known[name][1], has_end(folder)))
    return found


def has_end(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "journal.jsonl"), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            return _END in file.read()
    except FileNotFoundError:
        return False


def size_of(folder: str) -> int:
    """Returns the size of a folder on disk in bytes. Symbolic links are not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in (*names, "."):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _last_written(folder: str) -> int:
    for name in ("journal.jsonl", "keeper.log", ""):
        with contextlib.suppress(OSError):
            return os.stat(os.path.join(folder, name)).st_mtime_ns
    return time.time_ns()


def _read_sizes(path: str) -> dict[str, list[int]]:
    """Reads the cache of sizes: {run ID: [modification time of the journal in ns, bytes]}."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {str(run_id): [int(last_ns), int(size)] for run_id, (last_ns, size) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def collect_snapshots(agent_dir: str, node: str, now: float) -> int:
    """Removes old snapshots that no run on any host uses, and returns their number. Does nothing during an upload."""
    if UploadLocks(agent_dir, node).are_held():
        return 0
    count = prune(agent_dir, now)
    if count:
        log.info("garbage collection: removed %d snapshots that no run uses", count)
    return count


def prune(agent_dir: str, now: float | None = None) -> int:
    """Removes old unused snapshots and files, and returns the number of removed snapshots. Errors are ignored."""
    now = time.time() if now is None else now
    store = paths.store_dir(agent_dir)
    try:
        about = os.statvfs(store)
        names = os.listdir(os.path.join(store, "snapshots"))
    except OSError:
        return 0
    keep_s = SNAPSHOTS_WHEN_SHORT_S if about.f_bavail < SHORT_SHARE * about.f_blocks else SNAPSHOTS_S
    try:
        used = used_by_runs(agent_dir)
    except OSError:
        return 0  # The runs of at least one host cannot be read at the moment, so nothing may be removed.
    old = [root for root in names if root not in used and now - _used_at(agent_dir, root) > keep_s]
    for root in old:
        shutil.rmtree(paths.snapshot_dir(agent_dir, root), ignore_errors=True)
    _prune_files(agent_dir, set(names) - set(old), now)
    return len(old)


def used_by_runs(agent_dir: str) -> set[str]:
    """Returns the root hashes of the snapshots that runs on any host use. Raises OSError if a record cannot be read.

    A run that has no record, or an invalid one, uses no snapshot.
    """
    found = set()
    for host in _names(os.path.join(agent_dir, "hosts")):
        for run_id in _names(paths.runs_dir(agent_dir, host)):
            try:
                with open(os.path.join(paths.run_dir(agent_dir, host, run_id), "run.json"), encoding="utf-8") as file:
                    root = json.load(file).get("snapshot")
            except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
                continue
            if root:
                found.add(str(root))
    return found


def _used_at(agent_dir: str, root: str) -> float:
    folder = paths.snapshot_dir(agent_dir, root)
    for path in (os.path.join(folder, snapshot_store.MANIFEST), folder):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return float("inf")


def _prune_files(agent_dir: str, roots: set[str], now: float) -> None:
    wanted: set[str] = set()
    for root in roots:
        manifest = snapshot_store.read_manifest(agent_dir, root)
        if manifest is None and os.path.exists(
            os.path.join(paths.snapshot_dir(agent_dir, root), snapshot_store.MANIFEST)
        ):
            return  # The manifest cannot be read at the moment, so its files must be kept.
        wanted.update(entry["sha256"] for entry in manifest or [] if "sha256" in entry)
    for parent, _, names in os.walk(os.path.join(paths.store_dir(agent_dir), "files")):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if name not in wanted and now - os.stat(path).st_mtime > FILES_S:
                    os.unlink(path)


def collect_archives(agent_dir: str, node: str, sha256: str, now: float) -> int:
    """Removes agents that have not been used for ARCHIVES_S, and old temporary files.

    Returns the number of removed agents.
    """
    store = paths.store_dir(agent_dir)
    in_use = archives_in_use(agent_dir, node, now)
    count = 0
    for name in _names(store):
        found = _SHA256.match(name)
        path = os.path.join(store, name)
        if found is None or (name == found[0] and not os.path.isdir(path)):
            continue
        if name not in (found[0], f"{found[0]}.archive"):
            if now - os.lstat(path).st_mtime > SCRATCH_S:
                _remove_tree(path)
            continue
        used_at = max(_time_of(os.path.join(store, found[0])), _time_of(os.path.join(store, f"{found[0]}.archive")))
        if found[0] == sha256 or in_use is None or found[0] in in_use or now - used_at <= ARCHIVES_S:
            continue
        gone = f"{path}.removed.{os.urandom(4).hex()}"
        os.rename(path, gone)
        _remove_tree(gone)
        if name == found[0]:
            count += 1
            log.info(
                "garbage collection: removed the agent %s: unused for %.0f days", name[:12], (now - used_at) / DAY_S
            )
    return count


def archives_in_use(agent_dir: str, node: str, now: float) -> set[str] | None:
    """Returns the hashes of the archives that daemons and keepers on any host with this store may use.

    Returns None if the archives of another host are unknown.

    The archives are found in the command lines of this host's processes, and in the records of daemons and runs on all
    hosts.
    """
    found = _named_by_processes(paths.store_dir(agent_dir))
    hosts = os.path.join(agent_dir, "hosts")
    for host in _names(hosts):
        noted = installed_version.noted(os.path.join(hosts, host, installed_version.NOTE))[1]
        if noted:
            found.add(noted)
        elif host != node:
            return None  # The other host may run a daemon of an older agent, which does not record its archive.
        for run_id in _names(paths.runs_dir(agent_dir, host)):
            folder = paths.run_dir(agent_dir, host, run_id)
            if not paths.is_run(folder):
                continue
            if has_end(folder) and now - _last_written(folder) / 1e9 > DAY_S:
                continue
            try:
                with open(paths.archive_note(folder), encoding="utf-8") as file:
                    found.add(file.read().strip())
            except FileNotFoundError:  # The run belongs to an older agent, which did not record the run's archive.
                if host != node:
                    return None
    return found


def _named_by_processes(store: str) -> set[str]:
    """Returns the hashes of this store's archives that appear in the command lines of running processes."""
    mark = os.fsencode(store) + b"/"
    pieces = (piece for _, line in each_process("cmdline") for piece in line.split(mark)[1:])
    return {piece[:64].decode("ascii", "replace") for piece in pieces}


def shorten_log(path: str, limit: int = LOG_LIMIT, keep: int = LOG_KEPT) -> int:
    """Removes the beginning of a log that is longer than `limit`. Returns 1 if the log was shortened, otherwise 0.

    Other processes may append to the log at the same time.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= limit:
            return 0
        file.seek(size - keep)
        file.readline()
        rest = file.read()
        file.seek(0)
        file.write(rest)
        file.truncate()
        return 1
    return 0


def _names(folder: str) -> list[str]:
    """Returns the sorted names in a folder, or [] if it does not exist. Raises OSError if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _time_of(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(folder: str, removed: str) -> None:
    os.makedirs(removed, 0o700, exist_ok=True)
    gone = os.path.join(removed, f"{os.path.basename(folder)}.{os.urandom(4).hex()}")
    os.rename(folder, gone)
    _remove_tree(gone)


def _empty_removed(agent_dir: str, node: str) -> None:
    """Removes folders that an earlier collection could not remove, for example because their files were open (NFS)."""
    folder = os.path.join(paths.host_dir(agent_dir, node), REMOVED)
    for name in _names(folder):
        _remove_tree(os.path.join(folder, name))


def _remove_tree(path: str) -> None:
    """Removes a file, or as much of a folder as possible, including its read-only subfolders."""

    def open_up(function: Callable[[str], Any], place: str, error: object) -> None:
        parent = os.path.dirname(place)
        with contextlib.suppress(OSError):
            os.chmod(parent, os.stat(parent).st_mode | stat.S_IRWXU)
            if os.path.isdir(place) and not os.path.islink(place):
                os.chmod(place, os.stat(place).st_mode | stat.S_IRWXU)
                shutil.rmtree(place, ignore_errors=True)
            else:
                os.unlink(place)

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, onerror=open_up)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value >= 0:
        return value
    log.warning("garbage collection: %s must be a number of 0 or more, not %r; it is %g", name, text, default)
    return default


@contextlib.contextmanager
def _alone(path: str) -> Iterator[bool]:
    """Yields True if no other garbage collection is running on this host, otherwise False.

    Updates the modification time of `path`, which is the time of the last collection.
    """
    with open(path, "a", encoding="utf-8") as file:
        os.utime(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def main(agent_dir: str, node: str, sha256: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with _alone(paths.gc_state(agent_dir, node)) as alone:
            if alone:
                collect(agent_dir, node, sha256, Limits.read(os.environ))
    except OSError as error:  # The agent may have been undeployed, or the disk may be full.
        print(f"garbage collection: {error}", file=sys.stderr)
        return 1
    return 0
