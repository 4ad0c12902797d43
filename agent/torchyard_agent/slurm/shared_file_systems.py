"""The network file systems on which a home folder is shared by several hosts."""

from __future__ import annotations

NAMES = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "afs", "panfs", "smb", "9p", "v9fs", "gfs", "ocfs2")
"""The names that `stat -f` prints for these file systems."""


def is_shared(file_system: str) -> bool:
    """Returns whether a file system with this name is shared."""
    return any(name in file_system for name in NAMES)
