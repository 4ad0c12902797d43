"""What a run holds on a host before and while it runs: its folder, its copy of the code, GPUs, ports, an address."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import Awaitable
from typing import Any, Callable, TypeVar

from torchyard_agent import network_addresses, snapshot_store
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.keeper.processes import gpu_lock
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Prepare
from torchyard_agent.telemetry.procfs import boot_id

Result = TypeVar("Result")
FOLDERS = ("work", "outputs", "logs", "errors")


async def in_a_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Runs what would block the loop in a thread that ends with it: no pool is left when the ranks are forked.

    Whoever awaits it may be cancelled; `function` then still runs to its end, and nobody hears how.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # it was cancelled
            settle(outcome)

    def work() -> None:
        try:
            result = function(*arguments)
        except BaseException as error:  # raised again by who awaits it
            loop.call_soon_threadsafe(tell, future.set_exception, error)
        else:
            loop.call_soon_threadsafe(tell, future.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return await future


async def to_its_end(doing: Awaitable[Result]) -> Result:
    """A cancellation waits until it is done: files must not be cleared away beneath a thread that works on them."""
    done = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        if not done.cancelled():
            done.exception()  # that it failed as well is nobody's matter any more
        raise


class Ground:
    """What a run holds here. `release` gives back all of it but the folder."""

    def __init__(
        self,
        address: str,
        interface: str,
        locks: gpu_lock.GpuLocks,
        gang: network_addresses.HeldPorts,
        others: network_addresses.HeldPorts,
        checkpoint: str = "",
        gpus: tuple[str, ...] = (),
    ):
        self.address = address
        self.interface = interface
        self.gang_port = gang.ports[0]
        self.gang_socket: socket.socket = gang.take(self.gang_port)
        self.checkpoint = checkpoint
        """What the run begins with here; empty where it begins afresh."""
        self._locks = locks
        self.gpus = gpus
        """UUIDs, whether they are locked by now or only at a scheduled start."""
        self._holder = locks.holder
        self._others = others

    @property
    def ports(self) -> list[int]:
        return self._others.ports

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, whoever asks is told who holds the GPUs."""
        self._locks.serve(loop)

    @property
    def holds_gpus(self) -> bool:
        """Whether they are locked now; those of a scheduled run are not before its time."""
        return bool(self._locks.uuids)

    def let_go_of_gpus(self) -> None:
        """Others may have them while this host is cut off from its run."""
        self._locks.release()

    async def retake_gpus(self) -> None:
        """Takes them, all or none. Raises GpuHeld where somebody was quicker."""
        self._locks.release()
        self._locks = await in_a_thread(gpu_lock.take, self.gpus, self._holder)
        self._locks.serve(asyncio.get_running_loop())

    def release(self) -> None:
        self._locks.release()
        self._others.release()
        self.gang_socket.close()

    @staticmethod
    def remove(folder: str) -> None:
        """Removes a run's folder, whatever is in it."""
        for parent, folders, names in os.walk(folder, topdown=False):
            for name in names:
                os.unlink(os.path.join(parent, name))
            for name in folders:
                path = os.path.join(parent, name)
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)
        if os.path.isdir(folder):
            os.rmdir(folder)


async def lay_out(agent_dir: str, folder: str, prepare: Any) -> Ground:
    """Makes the folder, and takes the GPUs and ports, all or nothing of them.

    Raises RpcError (GPUs that somebody holds, no port left, no way to the primary) or OSError.
    """
    laying = asyncio.ensure_future(in_a_thread(_lay_out, agent_dir, folder, prepare))
    try:
        ground = await to_its_end(laying)
    except asyncio.CancelledError:  # whoever asked has gone: what was taken for him is given back
        if not laying.cancelled() and laying.exception() is None:
            laying.result().release()
        raise
    ground.serve(asyncio.get_running_loop())
    return ground


def _lay_out(agent_dir: str, folder: str, prepare: Prepare) -> Ground:
    holder = {"run_id": prepare["run_id"], "name": prepare["name"], "host": prepare["host"]}
    # First of all: whoever comes too late leaves no trace. A scheduled run takes them at its start.
    locks = gpu_lock.take(() if prepare.get("later") else prepare["gpus"], holder)
    held: list[network_addresses.HeldPorts] = []
    try:
        address, interface = _data_network(prepare)
        gang = network_addresses.hold_ports(
            1, prepare["port_range"], address if network_addresses.interface_of(address) else ""
        )
        held.append(gang)
        others = network_addresses.hold_ports(prepare["ports"], prepare["port_range"])
        held.append(others)
        try:
            checkpoint = _fill(agent_dir, folder, prepare)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            hint = "Make room there, or set `agent_dir` of the host in the fleet file."
            raise RpcError(f"the disk of {agent_dir} is full", "disk_full", hint) from error
        return Ground(address, interface, locks, gang, others, checkpoint, tuple(prepare["gpus"]))
    except BaseException:
        locks.release()
        for ports in held:
            ports.release()
        raise


def _data_network(prepare: Prepare) -> tuple[str, str]:
    """(address, interface) of this host on the data network; the fleet file's word first."""
    address = prepare["data_address"]
    if address is None:
        towards = prepare["towards"]
        address = "127.0.0.1" if towards is None else network_addresses.address_towards(towards)
    return address, prepare["interface"] or network_addresses.interface_of(address) or ""


def _fill(agent_dir: str, folder: str, prepare: Prepare) -> str:
    """The run's folder: its own copy of the code, which it may change, and what is known of it.

    Returns the checkpoint that it begins with; empty where there is none.
    """
    record = os.path.join(folder, "run.json")
    if os.path.exists(record):
        raise RpcError(f"there is a run {prepare['run_id']} on {prepare['host']} already", "run_exists")
    for name in FOLDERS:
        os.makedirs(os.path.join(folder, name), 0o700, exist_ok=True)
    if prepare["snapshot"] is not None:
        try:
            snapshot_store.materialize(agent_dir, prepare["snapshot"], os.path.join(folder, "work"))
        except snapshot_store.SnapshotProblem as problem:
            raise RpcError(str(problem), "snapshot", "Start the run again.") from problem
    checkpoint = _resume(folder, prepare.get("resume_from"))
    public = {name: value for name, value in prepare.items() if name != "secret"}
    public["boot_id"] = boot_id()
    with open(f"{record}.new", "w", encoding="utf-8") as file:
        json.dump(public, file)
    os.rename(f"{record}.new", record)
    return checkpoint


def _resume(folder: str, resume_from: str | None) -> str:
    """The name of the checkpoint that an older run left here for this one; empty where it left none."""
    if resume_from is None:
        return ""
    if os.path.basename(resume_from) != resume_from or resume_from in ("", ".", ".."):
        raise RpcError(f"{resume_from!r} is no run ID", "params")
    return checkpoint_folders.seed(os.path.join(os.path.dirname(folder), resume_from), folder)
