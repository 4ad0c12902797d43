"""Placeholders such as `{rank}` in `args` and `command`. Other text in braces is not changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAMES = (
    *("job_name", "task_index", "ps_hosts", "worker_hosts", "rank", "world_size", "nnodes", "node_rank", "nproc"),
    *("master_addr", "master_port", "trial", "run_dir"),
)
_PLACEHOLDER = re.compile(r"\{(" + "|".join(NAMES) + r")\}")


def fill(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Replaces each placeholder by its value. Placeholders in a value are not replaced."""
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words]
