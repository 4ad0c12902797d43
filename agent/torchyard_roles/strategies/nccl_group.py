"""An NCCL communicator that can be aborted at any time, for workers on GPUs that continue without lost workers.

NCCL does not report every lost rank. The kernels of the other ranks then wait on the GPU for the lost rank, and every
call that synchronizes with the GPU blocks. Therefore any thread can abort the communicator, which ends these kernels.
The communicator is aborted when the keeper announces a new membership. An aborted operation looks complete, so its
result is valid only if nothing was aborted in the meantime.

Operations are issued in NCCL's own stream. wait() polls until they are complete, because no step may use a result
before all ranks have voted that they have this result.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchyard_roles.errors import EnvironmentProblem

OLDEST_NCCL = (2, 25)
"""The oldest version of NCCL that aborts communicators reliably, as in torchft."""
CONNECT_S = 60.0
ABORT_S = 30.0
"""Longest time in seconds that an abort may take. If it takes longer, the worker exits."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 500e-6
"""The shortest and the longest delay in seconds between two polls of an operation."""
SETTINGS = {
    # By default, torch ends the process after an NCCL error, or if a thread waits too long for the GPU.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": f"{CONNECT_S:g}",
    # All connections are made at the start, so no later call waits for another rank.
    "NCCL_RUNTIME_CONNECT": "0",
}
"""Environment variables that torch and NCCL read when a communicator is created."""


def prepare_nccl() -> None:
    """Configures NCCL for this process. Raises EnvironmentProblem if its version cannot abort communicators."""
    version = tuple(torch.cuda.nccl.version()) if dist.is_nccl_available() else ()
    if version[:2] < OLDEST_NCCL:
        found = f"NCCL {'.'.join(map(str, version))}" if version else "no NCCL"
        raise EnvironmentProblem(
            f"torch {torch.__version__} on this host has {found}, and strategy.on_worker_loss: continue needs 2.25 or "
            "newer.",
            "Install a newer torch on this host, or set strategy.on_worker_loss to restart.",
        )
    os.environ.update(SETTINGS)


class NcclGroup:
    """A communicator of ranks with one GPU each.

    The constructor connects to all ranks. It raises RuntimeError if this fails.

    Args:
        timeout_s: The timeout of an operation in seconds.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        self.device = device
        self._lock = threading.Lock()
        """Held while operations are issued, and during an abort, which frees the objects that operations use."""
        self._is_aborted = False
        with torch.cuda.device(device):
            options = dist.ProcessGroupNCCL.Options()
            options.config.blocking = 0  # A communicator in blocking mode could not be aborted while it connects.
            options._timeout = timedelta(seconds=timeout_s)
            options.global_ranks_in_group = list(range(size))
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
            try:
                self._group.eager_connect_single_device(device)
                self._check_connections()
            except RuntimeError:
                self.abort()
                raise

    def _check_connections(self) -> None:
        deadline = time.monotonic() + CONNECT_S
        probe = torch.zeros(1, device=self.device)

        def check() -> None:
            if time.monotonic() > deadline:
                raise RuntimeError("the members' GPUs could not connect in time")

        self.wait(self.start(lambda group: group.allreduce([probe])), check)

    def start(self, operation: Callable[[Any], Any]) -> Any:
        """Starts an operation on the process group, and returns its Work object. Raises RuntimeError after an abort."""
        with self._lock:
            if self._is_aborted:
                raise RuntimeError("the group has ended")
            return operation(self._group)

    def wait(self, work: Any, check: Callable[[], None]) -> None:
        """Waits until an operation is complete, and lets the current stream use its result.

        Args:
            check: Called while the operation is not complete. May raise an exception, which ends the wait.

        Raises:
            RuntimeError: The operation failed or may have been aborted.
        """
        pause_s = FIRST_PAUSE_S
        while not work.is_completed():
            check()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        with self._lock:
            if self._is_aborted:
                raise RuntimeError("the group has ended")
            work.wait()

    @property
    def is_aborted(self) -> bool:
        return self._is_aborted

    def abort(self) -> bool:
        """Ends all operations, including those on the GPU. Any thread may call this method, and may call it repeatedly.

        Returns:
            Whether all operations ended within ABORT_S.
        """
        self._is_aborted = True
        thread = threading.Thread(target=self._abort, name="torchyard-abort", daemon=True)
        thread.start()
        thread.join(ABORT_S)
        return not thread.is_alive()

    def _abort(self) -> None:
        with self._lock:
            group, self._group = self._group, None
            if group is not None:
                group.abort()
                del group  # The destructor waits for torch's watchdog thread of the communicator.
