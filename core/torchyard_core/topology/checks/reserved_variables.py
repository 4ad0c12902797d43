"""Environment variables that Torchyard sets for replicas. A topology may not set them."""

from __future__ import annotations

import re

_NAMES = frozenset((
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CLUSTER_SPEC", "TF_CONFIG", "CUDA_VISIBLE_DEVICES",
))  # fmt: skip
_PREFIXES = ("TORCHELASTIC_", "TORCHYARD_")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_reserved(variable: str) -> bool:
    """Returns whether Torchyard reserves the variable. Another value could break rendezvous or GPU assignment."""
    return variable in _NAMES or variable.startswith(_PREFIXES)


def is_variable_name(word: str) -> bool:
    return _VARIABLE.fullmatch(word) is not None
