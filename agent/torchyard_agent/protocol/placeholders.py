"""Placeholders such as `{rank}` in `args` and `command`. Other text in braces is not changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAMES = (
    *("job_name", "task_index", "ps_hosts", "worker_hosts", "rank", "world_size", "nnodes", "node_rank", "nproc"),
    *("master_addr", "master_port", "trial", "run_dir"),
)
PARAMETERS = "params."
"""Prefix of the parameters of a sweep's trial: `{params.lr}`."""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(NAMES) + r"|params\.[A-Za-z_][A-Za-z0-9_]*)\}")


def fill(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Replaces each placeholder by its value. Placeholders in a value, and unknown parameters, are not replaced."""
    return [_PLACEHOLDER.sub(lambda match: _value(match, values), word) for word in words]


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    name = match[1]
    return values.get(name, match[0]) if name.startswith(PARAMETERS) else values[name]
