"""A keeper that runs as a task of a job on one node. The batch program, not a daemon, sends it the run's plan."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from torchyard_agent.keeper.link import gang_link
from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm.batch_program import GROUP, LEAVES, PORT, SECRET, SLOTS, TAKEN

if TYPE_CHECKING:
    from torchyard_agent.keeper.keeper import Keeper

CONNECT_WITHIN_S = 60.0
KEPT = frozenset(
    f"SLURM_{name}"
    for name in ("CONF", "JOB_ID", "JOB_NAME", "JOB_PARTITION", "JOB_ACCOUNT", "JOB_NODELIST", "RESTART_COUNT")
)
"""The environment variables of Slurm that ranks inherit.

The other variables describe the step that runs the keepers. Libraries such as Lightning would take them for a
description of the ranks.
"""

_NO_CONNECTION: Any = None
"""Passed to the keeper's methods in place of a daemon's connection, which they do not use."""

log = logging.getLogger(__name__)


def main(agent_dir: str, run_id: str) -> int:
    """Runs the keeper of this node until the run is over. Returns the exit status of the task."""
    slot = json.loads(os.environ[SLOTS])[os.environ["SLURMD_NODENAME"]]
    batch = BatchLink(slot, os.environ["SLURM_LAUNCH_NODE_IPADDR"], int(os.environ[PORT]), os.environ[SECRET])
    for name in list(os.environ):
        if name.startswith(("SLURM", "SRUN_", "SBATCH_", "PMI_", "TORCHYARD_SLURM_")) and name not in KEPT:
            del os.environ[name]
    os.makedirs(paths.run_dir(agent_dir, slot, run_id), 0o700, exist_ok=True)
    from torchyard_agent.keeper.main import main as keep

    return keep(agent_dir, slot, run_id, batch)


class BatchLink:
    """A keeper's connection to the batch program, over which the batch program calls the keeper's methods."""

    def __init__(self, slot: str, address: str, port: int, secret: str):
        self._slot = slot
        self._address = address
        self._port = port
        self._secret = bytes.fromhex(secret)
        self._gpus = visible_gpus()
        self._is_of_group = bool(os.environ.get(GROUP))
        self._stream: Stream | None = None

    async def launch(self, keeper: Keeper) -> None:
        """Connects to the batch program, and executes the program's requests until the connection ends."""
        stream, request = await self._connect()
        self._stream = stream
        with contextlib.suppress(*NETWORK_ERRORS):
            while True:
                try:
                    await self._execute(keeper, request)
                except (RpcError, OSError) as error:
                    log.exception("%s failed", request.get("op"))
                    stream.send({"error": error.message if isinstance(error, RpcError) else str(error)})
                request = await stream.receive()

    def on_sigterm(self, keeper: Keeper) -> None:
        """Pauses the run, and reports Slurm's signal to the batch program, which finds out how much time is left.

        The keeper of a group job leaves the run, without pausing it.
        """
        if self._is_of_group:
            keeper.leave(LEAVES)
        else:
            keeper.end_run(TAKEN, is_pause=True)
        self._report({"signalled": True})

    async def _connect(self) -> tuple[Stream, Message]:
        deadline = asyncio.get_running_loop().time() + CONNECT_WITHIN_S
        introduction = {"slot": self._slot, "gpus": self._gpus}
        while True:
            try:
                return await gang_link.call(self._address, self._port, self._secret, introduction)
            except NETWORK_ERRORS as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                log.info("the batch program does not answer yet: %s", error)
                await asyncio.sleep(0.5)

    async def _execute(self, keeper: Keeper, request: Message) -> None:
        op, params = request["op"], request.get("params", {})
        if op == "prepare":
            if not params.get("data_address"):
                params["towards"] = self._address
            self._report({"prepared": await keeper.prepare(_NO_CONNECTION, params)})
        elif op == "start":
            await keeper.start(_NO_CONNECTION, params)
        elif op == "join":
            await keeper.join(_NO_CONNECTION, params)
        elif op == "metrics":
            self._report({"metrics": (await keeper.status(_NO_CONNECTION, {}))["metrics"]})
        elif op == "leave":
            keeper.leave(str(request["reason"]))
        elif op in ("stop", "pause"):
            keeper.end_run(str(request["reason"]), is_pause=op == "pause", within_s=request.get("within_s"))
        elif op == "abort":
            asyncio.get_running_loop().create_task(keeper.abort(_NO_CONNECTION, {}))

    def _report(self, report: Message) -> None:
        if self._stream is not None:
            self._stream.send(report)

    async def finish(self, outcome: dict[str, Any] | None) -> None:
        """Reports the end of the run to the batch program."""
        if self._stream is None or outcome is None:
            return
        self._report({"ended": outcome})
        await asyncio.sleep(0)  # Lets the event loop write the frame.
        for _ in range(100):
            if not self._stream.backlog:
                return
            await asyncio.sleep(0.02)


def visible_gpus() -> list[str]:
    """Returns the GPUs that Slurm allocated to this task: their UUIDs, or their indices if NVML cannot be used."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if not names or not all(name.isdigit() for name in names):
        return names
    from torchyard_agent.telemetry.nvml import Nvml

    nvml = Nvml.open()
    if nvml is None:
        return names
    try:
        by_index = {str(gpu.index): gpu.uuid for gpu in nvml.gpus}
        return [by_index.get(name) or name for name in names]
    finally:
        nvml.close()
