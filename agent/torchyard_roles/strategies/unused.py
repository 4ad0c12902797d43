"""Parameters that a step leaves unused: DDP looks for them, and must not complain where there are none.

It looks only if `find_unused_parameters` is set, and then says in a warning, once a process, that the search was in
vain. The user has not asked for it and cannot turn it off. The warning is C++'s own, straight to fd 2, where no
filter of Python's sees it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist

_spent = False


def spend_warning(group: Any) -> None:
    """Let DDP's warning come now, once and for all, and keep it from fd 2; whatever else is written there stays.

    It comes from a reducer of one parameter that nobody trains, which exchanges nothing with `group`.
    """
    global _spent
    if _spent:
        return
    _spent = True
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        stderr = os.dup(2)
    except OSError:
        return  # there is nobody whom it could confuse
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            _search_in_vain(group)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        caught.seek(0)
        others = [line for line in caught if b"find_unused_parameters=True" not in line]
    if others:
        os.write(2, b"".join(others))


def _search_in_vain(group: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    try:
        reducer = dist.Reducer([parameter], [[0]], [4], group, [False], 4, True)
        reducer.prepare_for_backward([parameter * 1])
    except (AttributeError, RuntimeError, TypeError):
        return  # a torch whose DDP is built otherwise: then the warning stays
