"""What nobody needs any more leaves the host: folders of ended runs, snapshots, archives, the daemon's own old log.

A process of its own, which the daemon starts now and then (`daemon.tidying`): it may look at a hundred thousand files
without the daemon growing or answering late. Never touched: a run whose keeper lives, an archive that a keeper or a
daemon runs out of, and what any run of any host that shares the home refers to. Each host removes its own runs only,
for only there one sees whether a keeper lives. What is removed is renamed away first: it is there whole, or not at all.
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

from torchyard_agent import snapshot_store
from torchyard_agent.daemon import audit, installed_version
from torchyard_agent.daemon.upload_locks import Turns
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths

DAY_S = 86400.0
GB = 1e9
KEEP_DAYS = 30.0
KEEP_GB = 50.0
ALWAYS_KEPT = 10
"""The newest runs that have ended stay, however old and large."""
QUIET_S = 3600.0
"""A run whose journal was written within this time is left alone: its keeper may be starting, or just leaving."""
ARCHIVES_S = 30 * DAY_S
SCRATCH_S = DAY_S
"""Halves of an archive that was interrupted on its way."""
LOG_LIMIT = 10_000_000
LOG_KEPT = 1_000_000
REMOVED = "removed"
"""In the host's folder: what is being removed."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_END = b'"event":"run_ended"'
_TAIL = 1 << 20
"""Bytes at the end of a journal in which its `run_ended` is looked for; it names all replicas."""

log = logging.getLogger("torchyard_agent.daemon.garbage_collection")


@dataclass(frozen=True)
class Limits:
    """How much of ended runs is kept on this host."""

    days: float = KEEP_DAYS
    bytes: float = KEEP_GB * GB

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Limits:
        """TORCHYARD_KEEP_DAYS and TORCHYARD_KEEP_GB; `inf` is for ever. What is no number ≥ 0 is told and ignored."""
        return cls(
            _number(environment, "TORCHYARD_KEEP_DAYS", KEEP_DAYS),
            _number(environment, "TORCHYARD_KEEP_GB", KEEP_GB) * GB,
        )


@dataclass(frozen=True)
class OverRun:
    """A run that has no keeper here any more."""

    run_id: str
    last_at: float
    """When its journal was last written, in seconds since 1970."""
    size: int
    """Bytes on the disk."""
    has_end: bool
    """False where its keeper died, or the host did."""


def surplus(runs: Sequence[OverRun], limits: Limits, now: float) -> dict[str, str]:
    """Runs that are to go, by ID, each with the reason. One that has no end goes by its age only."""
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


def tidy(agent_dir: str, node: str, sha256: str, limits: Limits, now: float | None = None) -> None:
    """Does it all, of which each part may fail alone. `sha256` is the archive of the daemon here."""
    now = time.time() if now is None else now
    removed = {
        "runs": _part("runs", lambda: tidy_runs(agent_dir, node, limits, now)),
        "snapshots": _part("snapshots", lambda: tidy_snapshots(agent_dir, node, now)),
        "archives": _part("archives", lambda: tidy_archives(agent_dir, node, sha256, now)),
    }
    _part("log", lambda: shorten_log(os.path.join(paths.host_dir(agent_dir, node), "daemon.log")))
    if any(removed.values()):
        audit.note(agent_dir, node, "housekeeping", **{kind: count for kind, count in removed.items() if count})


def _part(what: str, work: Callable[[], int]) -> int:
    try:
        return work()
    except OSError as error:
        log.warning("housekeeping: %s: %s", what, error)
        return 0


# -- runs


def tidy_runs(agent_dir: str, node: str, limits: Limits, now: float) -> int:
    """Removes folders of runs that have ended here; returns how many went."""
    _empty_removed(agent_dir, node)
    state = paths.housekeeping_state(agent_dir, node)
    known = _read_sizes(state)
    runs = over_runs(agent_dir, node, known, now)
    count = 0
    for run_id, reason in surplus(runs, limits, now).items():
        if control_socket.is_alive(paths.run_dir(agent_dir, node, run_id)):
            continue
        try:
            _remove(paths.run_dir(agent_dir, node, run_id), os.path.join(paths.host_dir(agent_dir, node), REMOVED))
        except OSError as error:
            log.warning("housekeeping: run %s cannot be removed: %s", run_id, error)
            continue
        log.info("housekeeping: removed run %s: %s", run_id, reason)
        known.pop(run_id, None)
        count += 1
    here = {run.run_id for run in runs}
    with contextlib.suppress(OSError), open(state, "w", encoding="utf-8") as file:
        json.dump({run_id: size for run_id, size in known.items() if run_id in here}, file)
    return count


def over_runs(agent_dir: str, node: str, known: dict[str, list[int]], now: float) -> list[OverRun]:
    """Runs here that have been quiet for a while and have no keeper. `known`: sizes, looked up and added to."""
    found = []
    for name in _names(paths.runs_dir(agent_dir, node)):
        folder = paths.run_dir(agent_dir, node, name)
        if not _RUN_ID.fullmatch(name) or os.path.islink(folder) or not os.path.isdir(folder):
            continue
        last_ns = _last_written(folder)
        if now - last_ns / 1e9 < QUIET_S or control_socket.is_alive(folder):
            continue
        if known.get(name, [0])[0] != last_ns:  # an ended run does not change
            known[name] = [last_ns, size_of(folder)]
        found.append(OverRun(name, last_ns / 1e9, known[name][1], has_end(folder)))
    return found


def has_end(folder: str) -> bool:
    """Whether the run's journal tells how it ended."""
    try:
        with open(os.path.join(folder, "journal.jsonl"), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            return _END in file.read()
    except FileNotFoundError:
        return False


def size_of(folder: str) -> int:
    """Bytes that a folder takes on the disk, symbolic links not followed."""
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
    """{run ID: [time of its journal in ns, bytes]}."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {str(run_id): [int(last_ns), int(size)] for run_id, (last_ns, size) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# -- the store, which several hosts may share


def tidy_snapshots(agent_dir: str, node: str, now: float) -> int:
    """Removes snapshots that no run of any host refers to, unless one is being sent just now; how many went."""
    if Turns(agent_dir, node).others():
        return 0
    count = prune(agent_dir, now)
    if count:
        log.info("housekeeping: removed %d snapshots that no run uses", count)
    return count


def tidy_archives(agent_dir: str, node: str, sha256: str, now: float) -> int:
    """Removes agents that nobody ran for long, and halves that were forgotten; how many agents went."""
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
            log.info("housekeeping: removed the agent %s: unused for %.0f days", name[:12], (now - used_at) / DAY_S)
    return count


def archives_in_use(agent_dir: str, node: str, now: float) -> set[str] | None:
    """Archives that daemons and keepers run out of, on all hosts that share the store. None: who knows.

    On this host its processes say so themselves; of other hosts, notes of daemons and runs that may still live do.
    """
    found = _named_by_processes(paths.store_dir(agent_dir))
    hosts = os.path.join(agent_dir, "hosts")
    for host in _names(hosts):
        noted = installed_version.noted(os.path.join(hosts, host, installed_version.NOTE))[1]
        if noted:
            found.add(noted)
        elif host != node:
            return None  # a daemon may run there that is older than these notes
        for run_id in _names(paths.runs_dir(agent_dir, host)):
            folder = paths.run_dir(agent_dir, host, run_id)
            if not paths.is_run(folder):
                continue
            if has_end(folder) and now - _last_written(folder) / 1e9 > DAY_S:
                continue
            try:
                with open(paths.archive_note(folder), encoding="utf-8") as file:
                    found.add(file.read().strip())
            except FileNotFoundError:  # of an older agent, which did not note it
                if host != node:
                    return None
    return found


def _named_by_processes(store: str) -> set[str]:
    """Archives of this store that command lines of this user's processes here name."""
    mark = os.fsencode(store) + b"/"
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
            for piece in file.read().split(mark)[1:]:
                found.add(piece[:64].decode("ascii", "replace"))
    return found


# -- files


def shorten_log(path: str, limit: int = LOG_LIMIT, keep: int = LOG_KEPT) -> int:
    """Cuts a log that others append to down to its end; whether it was cut."""
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
    """Sorted; none where there is no folder. Raises OSError where nobody can tell what is in it."""
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
    """What could not be removed at once last time: over NFS, files that somebody has open stay for a while."""
    folder = os.path.join(paths.host_dir(agent_dir, node), REMOVED)
    for name in _names(folder):
        _remove_tree(os.path.join(folder, name))


def _remove_tree(path: str) -> None:
    """All that can be removed of it, folders that are not writable included."""

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
    log.warning("housekeeping: %s must be a number of 0 or more, not %r; it is %g", name, text, default)
    return default


@contextlib.contextmanager
def _alone(path: str) -> Iterator[bool]:
    """Whether nobody else does this on this host just now."""
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
        with _alone(paths.housekeeping_state(agent_dir, node)) as alone:
            if alone:
                tidy(agent_dir, node, sha256, Limits.read(os.environ))
    except OSError as error:  # undeployed meanwhile, or a disk that is full
        print(f"housekeeping: {error}", file=sys.stderr)
        return 1
    return 0


KEEP_S = 7 * 86400.0
KEEP_WHEN_SHORT_S = 86400.0
SHORT_SHARE = 0.1
"""With less of the disk free than this, snapshots are kept for a day only."""
FRESH_S = 86400.0
"""So long a file that no snapshot has may still be wanted by one on its way."""


def prune(agent_dir: str, now: float | None = None) -> int:
    """Removes what nobody needs; returns how many snapshots went. What cannot be removed stays."""
    now = time.time() if now is None else now
    store = paths.store_dir(agent_dir)
    try:
        about = os.statvfs(store)
        names = os.listdir(os.path.join(store, "snapshots"))
    except OSError:
        return 0
    keep_s = KEEP_WHEN_SHORT_S if about.f_bavail < SHORT_SHARE * about.f_blocks else KEEP_S
    try:
        used = used_by_runs(agent_dir)
    except OSError:
        return 0  # some host's runs cannot be looked at just now
    old = [root for root in names if root not in used and now - _used_at(agent_dir, root) > keep_s]
    for root in old:
        _remove_folder(paths.snapshot_dir(agent_dir, root))
    _prune_files(agent_dir, set(names) - set(old), now)
    return len(old)


def used_by_runs(agent_dir: str) -> set[str]:
    """Roots that any run of any host refers to, by its record. Raises OSError where it cannot be read."""
    found = set()
    for run in _folders(os.path.join(agent_dir, "hosts")):
        try:
            with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
                root = json.load(file).get("snapshot")
        except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
            continue
        if root:
            found.add(str(root))
    return found


def _folders(hosts: str) -> Iterator[str]:
    for host in _names(hosts):
        runs = os.path.join(hosts, host, "runs")
        for run in _names(runs):
            yield os.path.join(runs, run)


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
            return  # not to be read just now: nothing of it may go
        wanted.update(entry["sha256"] for entry in manifest or [] if "sha256" in entry)
    for parent, _, names in os.walk(os.path.join(paths.store_dir(agent_dir), "files")):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if name not in wanted and now - os.stat(path).st_mtime > FRESH_S:
                    os.unlink(path)


def _remove_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
