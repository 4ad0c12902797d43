"""The limit of open files of a keeper and its ranks (`ulimit -n`)."""

from __future__ import annotations

import resource

MAX_OPEN_FILES = 65_536
"""Soft limit of open files of a keeper and its ranks.

Data loaders, shared tensors and connections to peers need more than the usual 1,024 files. The hard limit may be a
billion, which is too much for programs that close all descriptors up to their limit.
"""


def raise_open_file_limit() -> None:
    """Raises the soft limit of this process and its children to MAX_OPEN_FILES or, if lower, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
