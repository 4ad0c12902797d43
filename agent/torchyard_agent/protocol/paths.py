"""The paths of the agent's files on a host, and the names of its abstract Unix sockets.

Hosts often share home folders (NFS). Only the content-addressed store is common to these hosts, and all other files are
in a folder named after the host. Abstract sockets leave no stale files, but any user of the host may bind any name. The
names for the daemon and for GPUs are fixed, because binding such a name is a lock. All other names are random, because
other users could otherwise bind them first. If tests run several hosts on one machine, each host has its own network
namespace, and therefore its own abstract sockets.
"""

from __future__ import annotations

import hashlib
import os

DEFAULT_AGENT_DIR = "~/.torchyard"


def agent_dir(configured: str | None = None) -> str:
    """Returns the agent's folder on this host as an absolute path."""
    return os.path.realpath(os.path.expanduser(configured or DEFAULT_AGENT_DIR))


def store_dir(agent_dir: str) -> str:
    """Returns the folder of archives and snapshots by content hash. Hosts with a shared home have the same store."""
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
    """Returns a run's folder on a host.

    It contains `work/` (a copy of the code), `outputs/`, `logs/` and `journal.jsonl`.
    """
    return os.path.join(runs_dir(agent_dir, node), run_id)


def is_run(run_dir: str) -> bool:
    """Returns whether the folder belongs to a run.

    Scripts may create other folders next to those of runs, for example `../../data`.
    """
    return any(os.path.exists(os.path.join(run_dir, name)) for name in ("keeper.log", "run.json", "journal.jsonl"))


def archive_note(run_dir: str) -> str:
    """Returns the path of the file with the SHA-256 of the archive that the run's keeper was started from."""
    return os.path.join(run_dir, "archive")


def gc_state(agent_dir: str, node: str) -> str:
    """Returns the path of the file with the sizes of ended runs.

    Its modification time is the time of the last garbage collection.
    """
    return os.path.join(host_dir(agent_dir, node), "housekeeping.json")


def log_name(replica: str, local_rank: int) -> str:
    """Returns the file name of a rank's log.

    Each rank has its own file, so lines of different ranks are never mixed.
    """
    return f"{replica}.log" if local_rank == 0 else f"{replica}.{local_rank}.log"


def scope(agent_dir: str) -> str:
    """Returns the part of socket names that differs between several agent folders of one user, for example in tests."""
    return hashlib.sha256(os.fsencode(agent_dir)).hexdigest()[:12]


def daemon_socket(agent_dir: str, uid: int) -> str:
    """Returns the abstract address of the daemon's socket."""
    return f"\0torchyard/{uid}/{scope(agent_dir)}/daemon"


def random_socket(uid: int) -> str:
    """Returns a random abstract address, which other users cannot guess."""
    return f"\0torchyard/{uid}/{os.urandom(16).hex()}"


def keeper_note(run_dir: str) -> str:
    """Returns the path of a symbolic link, whose target is the name of the keeper's socket without its leading NUL."""
    return os.path.join(run_dir, "keeper.socket")


def gpu_socket(uuid: str) -> str:
    """Returns the abstract address of a GPU's lock. Binding this address locks the GPU for all users of the host."""
    return f"\0torchyard/gpu/{uuid}"
