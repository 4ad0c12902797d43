"""The resources of a run on a host: its folder with a copy of the code, its GPUs, ports and address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import socket
from typing import Any

from torchyard_agent import network_addresses, snapshot_store
from torchyard_agent.background_threads import in_a_thread, uncancelled
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.processes import gpu_lock
from torchyard_agent.port_reservation import HeldPorts, hold_ports
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Prepare
from torchyard_agent.telemetry.procfs import boot_id

FOLDERS = ("work", "outputs", "logs", "errors")


class RunResources:
    """The resources that are reserved for a run. `release` frees all of them except the folder."""

    def __init__(
        self,
        address: str,
        interface: str,
        locks: gpu_lock.GpuLocks,
        gang: HeldPorts,
        others: HeldPorts,
        checkpoint: str = "",
        gpus: tuple[str, ...] = (),
        port_range: Any = None,
    ):
        self.address = address
        self.interface = interface
        self.gang_port = gang.ports[0]
        self.gang_socket: socket.socket = gang.take(self.gang_port)
        self.checkpoint = checkpoint
        """The name of the checkpoint from which the run resumes, or "" if there is none."""
        self._locks = locks
        self.gpus = gpus
        """The UUIDs of the run's GPUs. A scheduled run locks them only when it starts."""
        self._holder = locks.holder
        self._others = others
        self._port_range = port_range
        self._more: list[HeldPorts] = []

    @property
    def ports(self) -> list[int]:
        return self._others.ports

    async def hold_more(self, count: int) -> list[int]:
        """Reserves `count` additional ports until `release` is called. Raises NoPortFree if too few are free."""
        more = await in_a_thread(hold_ports, count, self._port_range)
        self._more.append(more)
        return more.ports

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts answering clients that ask which run has locked the GPUs."""
        self._locks.serve(loop)

    @property
    def holds_gpus(self) -> bool:
        return bool(self._locks.uuids)

    def release_gpus(self) -> None:
        self._locks.release()

    async def lock_gpus(self) -> None:
        """Locks all GPUs, or none if another process has locked one of them, in which case GpuHeld is raised."""
        self._locks.release()
        self._locks = await in_a_thread(gpu_lock.take, self.gpus, self._holder)
        self._locks.serve(asyncio.get_running_loop())

    def release(self) -> None:
        self._locks.release()
        for held in (self._others, *self._more):
            held.release()
        self.gang_socket.close()

    @staticmethod
    def remove(folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


async def acquire(agent_dir: str, folder: str, prepare: Any) -> RunResources:
    """Creates the run's folder, and reserves its GPUs and ports. If any of these cannot be reserved, none is reserved.

    The GPUs of a scheduled run are locked later, by `RunResources.lock_gpus`.

    Raises:
        RpcError: For example, GPUs are in use, no port is free, or the primary is unreachable.
        OSError: The folder cannot be created.
    """
    acquiring = asyncio.ensure_future(in_a_thread(_acquire, agent_dir, folder, prepare))
    try:
        resources = await uncancelled(acquiring)
    except asyncio.CancelledError:  # The client has disconnected, so the resources are no longer needed.
        if not acquiring.cancelled() and acquiring.exception() is None:
            acquiring.result().release()
        raise
    resources.serve(asyncio.get_running_loop())
    return resources


def _acquire(agent_dir: str, folder: str, prepare: Prepare) -> RunResources:
    holder = {"run_id": prepare["run_id"], "name": prepare["name"], "host": prepare["host"]}
    with contextlib.ExitStack() as acquired:
        # The GPUs are locked first: if one is in use, the call fails before it has created anything. A scheduled run
        # locks its GPUs only when it starts.
        locks = gpu_lock.take(() if prepare.get("later") else prepare["gpus"], holder)
        acquired.callback(locks.release)
        address, interface = _data_network(prepare)
        gang = hold_ports(1, prepare["port_range"], address if network_addresses.interface_of(address) else "")
        acquired.callback(gang.release)
        others = hold_ports(prepare["ports"], prepare["port_range"])
        acquired.callback(others.release)
        try:
            checkpoint = _create_folder(agent_dir, folder, prepare)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            hint = "Free some space there."
            raise RpcError(f"the disk of {agent_dir} is full", "disk_full", hint) from error
        acquired.pop_all()
    gpus = tuple(prepare["gpus"])
    return RunResources(address, interface, locks, gang, others, checkpoint, gpus, prepare["port_range"])


def _data_network(prepare: Prepare) -> tuple[str, str]:
    """Returns this host's address and interface on the data network. Values from the fleet file take precedence."""
    address = prepare["data_address"]
    if address is None:
        towards = prepare["towards"]
        address = "127.0.0.1" if towards is None else network_addresses.address_towards(towards)
    return address, prepare["interface"] or network_addresses.interface_of(address) or ""


def _create_folder(agent_dir: str, folder: str, prepare: Prepare) -> str:
    """Creates the run's folder with a copy of the code and `run.json`.

    Returns the name of the checkpoint from which the run resumes, or "" if there is none.
    """
    record = os.path.join(folder, "run.json")
    continues = bool(prepare.get("continues"))
    if os.path.exists(record) and not continues:
        raise RpcError(f"there is a run {prepare['run_id']} on {prepare['host']} already", "run_exists")
    for name in FOLDERS:
        os.makedirs(os.path.join(folder, name), 0o700, exist_ok=True)
    complete = os.path.join(folder, "work-complete")
    if continues and os.path.exists(complete):
        with contextlib.suppress(FileNotFoundError):  # An earlier start of the job may have left a stop file.
            os.unlink(os.path.join(folder, "stop"))
    elif prepare["snapshot"] is not None:
        work = os.path.join(folder, "work")
        if continues:  # An earlier start of the job may have ended while it copied the code.
            shutil.rmtree(work)
            os.makedirs(work, 0o700)
        try:
            snapshot_store.materialize(agent_dir, prepare["snapshot"], work)
        except snapshot_store.SnapshotProblem as problem:
            raise RpcError(str(problem), "snapshot", "Start the run again.") from problem
    own = checkpoint_folders.newest(checkpoint_folders.checkpoints_dir(folder)) if continues else ""
    checkpoint = own or _resume(folder, prepare.get("resume_from"))
    if continues:
        with open(complete, "w"):
            pass
    public = {name: value for name, value in prepare.items() if name != "secret"}
    public["boot_id"] = boot_id()
    with open(f"{record}.new", "w", encoding="utf-8") as file:
        json.dump(public, file)
    os.rename(f"{record}.new", record)
    return checkpoint


def _resume(folder: str, resume_from: str | None) -> str:
    """Links the newest checkpoint of the run `resume_from` into the run's folder.

    Returns the checkpoint's name, or "" if there is none.
    """
    if resume_from is None:
        return ""
    if os.path.basename(resume_from) != resume_from or resume_from in ("", ".", ".."):
        raise RpcError(f"{resume_from!r} is no run ID", "params")
    return checkpoint_folders.seed(os.path.join(os.path.dirname(folder), resume_from), folder)
