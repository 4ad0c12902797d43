"""Where things lie on a host: folders below the agent's, and names of abstract Unix sockets.

Homes are often shared between hosts (NFS), so only the content-addressed store is common to them; all else
lies below a folder named after the host. Abstract sockets leave nothing stale behind, and any user of the host may
bind any name. The daemon's and the GPUs' names are fixed, since binding one is the lock against a second owner; all
others are random, so that no other user can bind them first. Hosts that share a machine have network namespaces of
their own, hence sockets too.
"""

from __future__ import annotations

import hashlib
import os

DEFAULT_AGENT_DIR = "~/.torchyard"


def agent_dir(configured: str | None = None) -> str:
    """The agent's folder on this host, absolute."""
    return os.path.realpath(os.path.expanduser(configured or DEFAULT_AGENT_DIR))


def store_dir(agent_dir: str) -> str:
    """Archives and snapshots by content hash, shared by all hosts that share the home."""
    return os.path.join(agent_dir, "store")


def archive_dir(agent_dir: str, sha256: str) -> str:
    """Where the agent's archive with this hash is unpacked."""
    return os.path.join(store_dir(agent_dir), sha256)


def snapshot_dir(agent_dir: str, root: str) -> str:
    """Where the working folder with this root hash is kept."""
    return os.path.join(store_dir(agent_dir), "snapshots", root)


def host_dir(agent_dir: str, node: str) -> str:
    """What belongs to this host alone."""
    return os.path.join(agent_dir, "hosts", node)


def runs_dir(agent_dir: str, node: str) -> str:
    return os.path.join(host_dir(agent_dir, node), "runs")


def run_dir(agent_dir: str, node: str, run_id: str) -> str:
    """A run on one host: `work/` (its copy of the code), `outputs/`, `logs/`, `errors/`, `journal.jsonl`."""
    return os.path.join(runs_dir(agent_dir, node), run_id)


def is_run(run_dir: str) -> bool:
    """Whether the folder is a run's. A script that writes to `../../data` from its working folder puts that beside the
    runs."""
    return any(os.path.exists(os.path.join(run_dir, name)) for name in ("keeper.log", "run.json", "journal.jsonl"))


def archive_note(run_dir: str) -> str:
    """File that holds the SHA-256 of the archive that the run's keeper runs out of."""
    return os.path.join(run_dir, "archive")


def housekeeping_state(agent_dir: str, node: str) -> str:
    """File whose time says when housekeeping was last done; it holds the sizes of ended runs, by ID."""
    return os.path.join(host_dir(agent_dir, node), "housekeeping.json")


def log_name(replica: str, local_rank: int) -> str:
    """The log's file name: one file per rank, so that ranks never garble each other's lines."""
    return f"{replica}.log" if local_rank == 0 else f"{replica}.{local_rank}.log"


def scope(agent_dir: str) -> str:
    """One user may keep several agent folders (tests do); each has sockets of its own."""
    return hashlib.sha256(os.fsencode(agent_dir)).hexdigest()[:12]


def daemon_socket(agent_dir: str, uid: int) -> str:
    """Abstract address of the daemon."""
    return f"\0torchyard/{uid}/{scope(agent_dir)}/daemon"


def random_socket(uid: int) -> str:
    """An abstract address that cannot be guessed."""
    return f"\0torchyard/{uid}/{os.urandom(16).hex()}"


def keeper_note(run_dir: str) -> str:
    """Symbolic link to the name of the socket at which the run's keeper is, without its leading NUL."""
    return os.path.join(run_dir, "keeper.socket")


def gpu_socket(uuid: str) -> str:
    """Abstract address whose bind is the lock on a GPU, for all users of the host."""
    return f"\0torchyard/gpu/{uuid}"
