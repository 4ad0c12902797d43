"""Paths of the agent's files on a host, and names of its abstract Unix sockets.

Homes are often shared between hosts (NFS), so only the content-addressed store is common to them; all other files are
in a folder named after the host. Abstract sockets leave no stale files, but any user of the host may bind any name. The
names of the daemon and of GPUs are fixed, since binding such a name is a lock; all other names are random, so that no
other user can bind them first. If tests run several hosts on one machine, each host has its own network namespace, and
hence its own sockets.
"""

from __future__ import annotations

import hashlib
import os

DEFAULT_AGENT_DIR = "~/.torchyard"


def agent_dir(configured: str | None = None) -> str:
    """Returns the agent's folder on this host as an absolute path."""
    return os.path.realpath(os.path.expanduser(configured or DEFAULT_AGENT_DIR))


def store_dir(agent_dir: str) -> str:
    """Returns the folder of archives and snapshots by content hash, shared by all hosts that share the home."""
    return os.path.join(agent_dir, "store")


def archive_dir(agent_dir: str, sha256: str) -> str:
    """Returns the folder of the unpacked agent archive with this hash."""
    return os.path.join(store_dir(agent_dir), sha256)


def snapshot_dir(agent_dir: str, root: str) -> str:
    """Returns the folder of the snapshot with this root hash."""
    return os.path.join(store_dir(agent_dir), "snapshots", root)


def host_dir(agent_dir: str, node: str) -> str:
    return os.path.join(agent_dir, "hosts", node)


def runs_dir(agent_dir: str, node: str) -> str:
    return os.path.join(host_dir(agent_dir, node), "runs")


def run_dir(agent_dir: str, node: str, run_id: str) -> str:
    """Returns a run's folder on a host, with `work/` (a copy of the code), `outputs/`, `logs/` and `journal.jsonl`."""
    return os.path.join(runs_dir(agent_dir, node), run_id)


def is_run(run_dir: str) -> bool:
    """Returns whether the folder belongs to a run. A script may have created other folders there (`../../data`)."""
    return any(os.path.exists(os.path.join(run_dir, name)) for name in ("keeper.log", "run.json", "journal.jsonl"))


def archive_note(run_dir: str) -> str:
    """Returns the file that contains the SHA-256 of the archive from which the run's keeper runs."""
    return os.path.join(run_dir, "archive")


def gc_state(agent_dir: str, node: str) -> str:
    """Returns the file with the sizes of ended runs. Its modification time records the last garbage collection."""
    return os.path.join(host_dir(agent_dir, node), "housekeeping.json")


def log_name(replica: str, local_rank: int) -> str:
    """Returns a log's file name. Each rank has its own file, so that the lines of ranks are never mixed."""
    return f"{replica}.log" if local_rank == 0 else f"{replica}.{local_rank}.log"


def scope(agent_dir: str) -> str:
    """Returns the part of socket names that distinguishes several agent folders of one user, for example in tests."""
    return hashlib.sha256(os.fsencode(agent_dir)).hexdigest()[:12]


def daemon_socket(agent_dir: str, uid: int) -> str:
    """Returns the daemon's abstract address."""
    return f"\0torchyard/{uid}/{scope(agent_dir)}/daemon"


def random_socket(uid: int) -> str:
    """Returns an abstract address that cannot be guessed."""
    return f"\0torchyard/{uid}/{os.urandom(16).hex()}"


def keeper_note(run_dir: str) -> str:
    """Returns the path of a symbolic link, whose target is the name of the keeper's socket without its leading NUL."""
    return os.path.join(run_dir, "keeper.socket")


def gpu_socket(uuid: str) -> str:
    """Returns the abstract address that is bound as the lock on a GPU, for all users of the host."""
    return f"\0torchyard/gpu/{uuid}"
