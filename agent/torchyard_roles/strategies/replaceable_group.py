"""A group of workers that is replaced when a worker is lost. The remaining workers repeat the interrupted operation.

Operations are numbered in the order of their calls, which is the same on all ranks. After its part of an operation, a
rank *votes* in a small all-reduce, which completes only if all members have the result. A result is used only after the
vote, unless a copy of the result can be sent to other members later. In this case, the vote is awaited before the next
operation, while the result still exists. Averaged gradients are such results, so a step does not wait for the vote.

When the keeper announces a new membership, or a connection breaks, a rank shuts down the connections of its group, and
the members connect again as a new group. They first exchange the number of operations whose results they use. If no
member uses the result of an operation, all members repeat the operation. If any member uses the result, all members use
the result, and members that do not have it receive a copy. Therefore no rank is a step ahead of another.

A worker that returns joins at a step boundary. Votes show when all members know that the worker is waiting. The members
then wait at the next boundary until the keeper has made the worker a member, and connect as a new group. One of them
sends its state to the worker.

Only the neighbors of a lost process in gloo's ring detect its loss, so waiting ranks poll for a new membership.

Messages, votes and states are sent over gloo, and gradients on GPUs over NCCL (`nccl_group`). A separate thread aborts
the NCCL communicator as soon as there is a new membership, because the training thread may be waiting for the GPU.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from torchyard_roles.coordination.membership import Members, Membership
from torchyard_roles.coordination.torch_store import TorchStore
from torchyard_roles.errors import PeerLost, StoreTimeout, UsageProblem
from torchyard_roles.strategies.gloo_group import Copies, GlooGroup, Result, packed_bytes, runs_of, unpack_bytes
from torchyard_roles.strategies.nccl_group import NcclGroup

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.environment import Environment

POLL_S = 0.05
"""Interval in seconds at which a waiting rank checks for a new membership."""
STEP_S = 1800.0
"""Longest time in seconds to wait for the other ranks in an operation. This is also the default of torch."""
CONNECT_S = 60.0
"""Longest time in seconds for the connection of a new group, once all members are ready."""
NOTICE_S = 30.0
"""Longest time in seconds to wait for a new membership after a connection broke.

It exceeds the lease of a host.
"""

LOOK_S = 1.0
"""Interval in seconds at which the thread that waits for a new membership checks whether NCCL was aborted."""
BOUNDARY_S = 2.0
"""Interval in seconds at which members that wait at a step boundary repeat their request for a new membership."""

_VOTES, _PASSED = 1, 2
"""The kinds of control messages: votes, and exchanges of the numbers of completed operations."""
_ALL = 1 << 62
"""The number of results that a joining rank reports. The rank receives the whole state, so it needs no results."""


class Interrupted(Exception):
    """Raised when an operation was interrupted by a new membership, a closed connection or a timeout."""


class _Vote(NamedTuple):
    """A vote in progress about an operation whose result this rank already uses.

    Attributes:
        work: The Work object of the vote's all-reduce, or None if the all-reduce could not be started.
        message: The tensor that the all-reduce reduces.
        copy: Returns a copy of the operation's result.
    """

    work: Any
    message: torch.Tensor
    copy: Callable[[], list[torch.Tensor]]


class ReplaceableGroup(GlooGroup):
    """The group of all workers that are not lost.

    Args:
        store: The join store. The caller closes it.
        device: The device of the gradients.

    Attributes:
        on_members: Called with the number of members of each new group.
        on_repeat: Called before an operation is repeated, or its result is replaced by a copy from another member.
    """

    def __init__(self, store: JoinStore, environment: Environment, device: torch.device) -> None:
        # super().__init__() is not called, because it would create a group of torch.distributed's default world.
        self.on_members: Callable[[int], None] = lambda count: None
        self.on_repeat: Callable[[], None] = lambda: None
        self.membership = Membership(store, environment)
        self._store = store
        self._rank = environment.rank or 0
        self._prefix = f"group/{environment.gang}/{environment.generation}"
        self._members = Members(-1, ())
        self._device = device
        self._control: Any = None
        self._data: Any = None
        self._nccl: NcclGroup | None = None
        """The NCCL communicator for tensors on this rank's GPU, or None on CPUs."""
        self._sockets: list[int] = []
        """Descriptors of the group's connections."""
        self._passed = 0
        """The number of operations whose results this rank uses."""
        self._pending: _Vote | None = None
        """The vote about the last operation, if it has not been awaited."""
        self._due = 0
        """The number of the newest announcement of returning workers that all members know."""
        self._handed_over = 0
        """The number of the newest announcement whose returning workers have received their state."""
        self.has_trained = False
        """Whether this rank has completed a step."""
        self.is_joining = environment.attempt > 0
        self._is_inside = False
        self._ends = False
        if self.is_joining:
            self._members = self.membership.newest._replace(number=-1)
        else:
            self._connect()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the current group."""
        return self._members.ranks

    def close(self) -> None:
        self._ends = True
        self._pending = None
        nccl, self._nccl = self._nccl, None
        if nccl is not None:
            nccl.abort()
        groups = [self._control, self._data]
        self._control = self._data = _Closed()
        self._sockets = []
        _delete(groups).join(2.0)

    def end(self) -> None:
        """Makes interrupted operations raise PeerLost from now on, instead of reconnecting.

        Called when training ends, because other ranks may then have left. First waits until all members have the result
        of the last operation. Raises PeerLost as complete() does.
        """
        self.settle()
        self._ends = True

    def complete(self, operation: Callable[[], Result], copies: Copies[Result] | None = None) -> Result:
        """Runs an operation, repeats it after each loss of a member, and returns the result, which all members use.

        Args:
            operation: May be called repeatedly, so it must not apply its result. If it calls complete(), the inner
                operation is repeated together with the outer one.
            copies: Functions that copy the result from a member to the members that do not have it. If None, complete()
                waits until all members have the result. Otherwise the caller must call settle() before the result is
                overwritten or freed, and before it waits for other members without calling a method of this class.

        Raises:
            PeerLost: This rank is no longer a member, the operation was interrupted after end() was called, or the
                keeper did not announce a new membership in time.
        """
        if self._is_inside:
            return operation()
        self.settle()
        while True:
            has_result = False
            try:
                self._check_members()
                self._is_inside = True
                result = operation()
                has_result = True
                if copies is None:
                    self._vote()
                else:
                    self._pending = self._start_vote(partial(copies.encode, result))
            except Interrupted as error:
                self._is_inside = False
                if self._ends:
                    raise PeerLost("another rank", "another host", str(error)) from None
                copy = self._recover(str(error), has_result, copies)
                if copy is None:
                    self.on_repeat()
                    continue
                if copies is not None:
                    self.on_repeat()
                    result = copies.decode(copy)
            finally:
                self._is_inside = False
            self._passed += 1
            return result

    def settle(self) -> None:
        """Waits until all members have the result of the last operation. Raises PeerLost as complete() does."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            if pending.work is None:
                raise Interrupted("a connection ended")
            self._wait(pending.work)
            self._count_vote(pending.message, _VOTES)
        except Interrupted as error:
            if self._ends:
                raise PeerLost("another rank", "another host", str(error)) from None
            self._send_copies(str(error), pending.copy)

    def _recover(self, why: str, has_result: bool, copies: Copies[Any] | None) -> list[torch.Tensor] | None:
        """Reconnects after an interrupted operation.

        Returns the operation's result as copied from another member, [] if this rank already has the result, or None if
        all members must repeat the operation. Raises PeerLost as complete() does.
        """
        copy: list[torch.Tensor] | None = [] if has_result else None
        while True:
            used, held = self._reconnect(why, self._passed + (copy is not None))
            if used <= self._passed:
                return None
            if copy is not None and held >= used:
                return copy
            if copies is None:
                raise PeerLost("another rank", "another host", "the ranks are out of step")
            try:
                copy = self._copy_state(None, [])
                self._vote()
            except Interrupted as error:
                why = str(error)
            else:
                return copy

    def _send_copies(self, why: str, copy: Callable[[], list[torch.Tensor]]) -> None:
        """Reconnects after an interrupted vote, and sends copies of the result to the members that do not have it."""
        encoded: list[torch.Tensor] = []
        while True:
            used, held = self._reconnect(why, self._passed)
            if held >= used:
                return
            try:
                self._copy_state(copy, encoded)
                self._vote()
            except Interrupted as error:
                why = str(error)
            else:
                return

    @property
    def is_return_due(self) -> bool:
        """Whether members wait at the next step boundary for returning workers.

        All members have the same value once the last vote is settled.
        """
        return not self.is_joining and max(self._due, self._members.joined) > self._handed_over

    def hand_over(self, state: Callable[[], list[torch.Tensor]]) -> None:
        """Lets returning workers join at a step boundary, and sends them the state of one member.

        Args:
            state: A function that encodes this rank's state. It is called on one member only.
        """
        while self._due > self._members.joined:
            if self._rank == self.ranks[0]:
                self.membership.announce_boundary(self._due)
            if self.membership.wait_for_change(self._members.number, BOUNDARY_S):
                self._shut_down()
                self._connect()
        self._transfer(state)

    def join(self, is_ended: Callable[[], bool]) -> list[torch.Tensor]:
        """Waits until the members are at a step boundary, joins them, and returns the state of one of them.

        Args:
            is_ended: Returns whether the run is ending. Called while this rank is not a member.

        Raises:
            SystemExit: The run is ending.
        """
        self.membership.announce_ready()
        while self._rank not in self.membership.newest.ranks:
            if is_ended():
                raise SystemExit(0)
            self.membership.wait_for_change(self.membership.newest.number, POLL_S)
        self._passed, _ = self._connect()
        received = self._transfer(None)
        self.is_joining = False
        self.has_trained = True
        return received

    def _transfer(self, state: Callable[[], list[torch.Tensor]] | None) -> list[torch.Tensor]:
        """Sends the state of the first member that has one to all members that have none.

        Returns the state that this rank received, or [] if it received none.
        """
        encoded: list[torch.Tensor] = []
        received = self.complete(lambda: self._copy_state(state, encoded))
        self._handed_over = self._members.joined
        return received

    def _copy_state(
        self, state: Callable[[], list[torch.Tensor]] | None, encoded: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Copies tensors from the first member that has them to all members that do not have them.

        Args:
            state: Returns this rank's tensors as bytes, and is called on the sender only. None if this rank has none.
            encoded: A list that keeps the sender's tensors in case this method is called again.

        Returns:
            The tensors that this rank received.
        """
        place = self.ranks.index(self._rank)
        knows = torch.zeros(len(self.ranks), dtype=torch.int64, device="cpu")
        knows[place] = state is not None
        self._reduce(knows, dist.ReduceOp.MAX)
        new = [other for other, known in enumerate(knows.tolist()) if not known]
        if len(new) == len(self.ranks):
            raise PeerLost("another rank", "another host", "all workers that had the state of the run were lost")
        sender = knows.tolist().index(1)
        if new and place == sender and not encoded and state is not None:
            encoded.extend(state())
        count = torch.tensor([len(encoded)], dtype=torch.int64, device="cpu")
        self._reduce(count, dist.ReduceOp.MAX)
        sizes = torch.zeros(int(count), dtype=torch.int64, device="cpu")
        if place == sender:
            sizes.copy_(torch.tensor([each.numel() for each in encoded], dtype=torch.int64, device="cpu"))
        if int(count):
            self._reduce(sizes, dist.ReduceOp.MAX)
        received = []
        if place == sender:
            parts = [(part, other) for part in encoded for other in new]
            self._run_in_thread(lambda group: [group.send([part], other, 0) for part, other in parts])
        elif place in new:
            received = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes.tolist()]
            self._run_in_thread(lambda group: [group.recv([part], sender, 0) for part in received])
        return received

    def _run_in_thread(self, start: Callable[[Any], list[Any]]) -> None:
        """Calls `start` in a thread to start sends and receives, and waits until these transfers have ended.

        Raises Interrupted if a transfer fails. The transfers are awaited in a thread, because torch's wait for a
        transfer cannot be repeated after a timeout. The thread ends when the connections end, at the latest.
        """
        errors: list[str] = []
        group = self._data

        def run() -> None:
            try:
                for work in start(group):
                    work.wait(timedelta(seconds=STEP_S))
            except RuntimeError as error:
                errors.append(_first_line(error))

        thread = threading.Thread(target=run, name="torchyard-transfer", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            self._check_members()
        if errors:
            raise Interrupted(errors[0])

    def launch(self, flat: torch.Tensor) -> Callable[[], object]:
        """Starts summing a tensor over all members. Returns a function that waits until the sum is complete.

        If the operation is interrupted, the function raises Interrupted. In this case, the tensor must not be used
        again, because the interrupted operation may still write to it.
        """
        return self._launch(flat, lambda group: group.allreduce([flat], _options(dist.ReduceOp.SUM)), self._data)

    def _launch(self, tensor: torch.Tensor, operation: Callable[[Any], Any], gloo: Any) -> Callable[[], object]:
        """Starts an operation over NCCL, or over gloo for a tensor on the CPU. Returns a function, as launch() does."""
        nccl = self._nccl if self._nccl is not None and self._nccl.device.type == tensor.device.type else None
        try:
            work = operation(gloo) if nccl is None else nccl.start(operation)
        except RuntimeError as error:
            why = _first_line(error)

            def fail() -> None:
                raise Interrupted(why)

            return fail
        if nccl is None:
            return lambda: self._wait(work)
        return partial(self._wait_on_gpu, nccl, work, tensor)

    def maximize(self, values: torch.Tensor, within_s: float | None = None) -> None:
        def operation() -> torch.Tensor:
            found = values.clone()
            self._reduce(found, dist.ReduceOp.MAX, within_s)
            return found

        values.copy_(self.complete(operation))

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        def operation() -> torch.Tensor:
            total = value.detach().to("cpu", torch.float64, copy=True)
            self._reduce(total, dist.ReduceOp.SUM)
            return total / len(self.ranks)

        return self.complete(operation).to(value)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for run in runs_of(tensors):

            def operation(run: list[torch.Tensor] = run) -> torch.Tensor:
                packed = packed_bytes(run)
                self._launch(packed, lambda group: group.broadcast(packed, 0), self._control)()
                return packed

            unpack_bytes(self.complete(operation), run)

    def gather(self, value: bytes) -> list[bytes]:
        """Returns the values of all members in rank order."""

        def operation() -> list[bytes]:
            place = self.ranks.index(self._rank)
            lengths = torch.zeros(len(self.ranks), dtype=torch.int64, device="cpu")
            lengths[place] = len(value)
            self._reduce(lengths, dist.ReduceOp.MAX)
            table = torch.zeros((len(self.ranks), max(1, int(lengths.max()))), dtype=torch.uint8, device="cpu")
            if value:
                table[place, : len(value)] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
            self._reduce(table, dist.ReduceOp.MAX)
            return [bytes(row[:length].tolist()) for row, length in zip(table, lengths.tolist())]

        return self.complete(operation)

    def average_sparse(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        raise UsageProblem(
            "A parameter has a sparse gradient, which strategy.on_worker_loss: continue does not support.",
            "Create the embedding with sparse=False, or set strategy.on_worker_loss to restart.",
        )

    def _vote(self) -> None:
        self._agree(_VOTES, self._passed)

    def _start_vote(self, copy: Callable[[], list[torch.Tensor]]) -> _Vote:
        message = self._ballot(_VOTES, self._passed)
        try:
            work = _started(lambda: self._control.allreduce([message], _options(dist.ReduceOp.MAX)))
        except Interrupted:
            work = None
        return _Vote(work, message, copy)

    def _agree(self, kind: int, held: int) -> tuple[int, int]:
        """Exchanges control messages with the other members.

        Args:
            held: The number of operations whose results this rank has.

        Returns:
            The largest number of operations whose results a member uses, and the smallest number of operations whose
            results a member has.

        Raises:
            Interrupted: The exchange with the members failed.
        """
        message = self._ballot(kind, held)
        self._reduce(message, dist.ReduceOp.MAX)
        return self._count_vote(message, kind)

    def _ballot(self, kind: int, held: int) -> torch.Tensor:
        numbers = [self._passed, -held, kind, -kind, self._due, -self.membership.returning]
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")

    def _count_vote(self, message: torch.Tensor, kind: int) -> tuple[int, int]:
        used, held, most, least, due, returning = message.tolist()
        if most != -least:
            raise Interrupted("the ranks are in different operations")
        # If only some members have received the result of a vote, the others receive it when they reconnect.
        self._due = max(due, -returning) if kind == _VOTES else due
        return int(used), -int(held)

    def _reduce(self, values: torch.Tensor, how: Any, within_s: float | None = None) -> None:
        self._wait(_started(lambda: self._control.allreduce([values], _options(how))), within_s)

    def _wait(self, work: Any, within_s: float | None = None) -> None:
        """Waits for a collective operation of the current group. Raises Interrupted if it fails or takes too long."""
        deadline = time.monotonic() + (STEP_S if within_s is None else within_s)
        while True:
            is_completed = work.is_completed()
            try:
                work.wait(timedelta(seconds=POLL_S))
            except RuntimeError as error:  # The operation failed, or is still running.
                if is_completed:
                    raise Interrupted(_first_line(error)) from None
                if work.is_completed():  # The operation completed after the wait ended, possibly successfully.
                    continue
                self._check_members()
                if time.monotonic() > deadline:
                    raise Interrupted("not all ranks came in time") from None
            else:
                return

    def _wait_on_gpu(self, nccl: NcclGroup, work: Any, _: torch.Tensor) -> None:
        """Waits for an NCCL operation, and keeps its tensor alive until then. Raises Interrupted if it fails."""
        deadline = time.monotonic() + STEP_S

        def check() -> None:
            self._check_members()
            if time.monotonic() > deadline:
                raise Interrupted("not all ranks came in time")

        try:
            nccl.wait(work, check)
        except RuntimeError as error:
            raise Interrupted(_first_line(error)) from None

    def _check_members(self) -> None:
        if self._membership_changed():
            raise Interrupted("a worker was lost")

    def _membership_changed(self) -> bool:
        return self.membership.newest.number != self._members.number

    def _reconnect(self, why: str, held: int) -> tuple[int, int]:
        """Shuts down the connections, waits for a new membership, and connects to its members as _connect() does.

        Raises PeerLost, with the reason `why`, if the keeper announces no new membership in time.
        """
        self._shut_down()
        if not self.membership.wait_for_change(self._members.number, NOTICE_S):
            raise PeerLost("another rank", "another host", why.rstrip("."))
        return self._connect(held)

    def _connect(self, held: int | None = None) -> tuple[int, int]:
        """Connects to the members of the newest membership.

        Args:
            held: The number of operations whose results this rank has, or None if it needs no result.

        Returns:
            The largest number of operations whose results a member uses, and the smallest number of operations whose
            results a member has.
        """
        while True:
            members = self.membership.newest
            if self._rank not in members.ranks:
                raise PeerLost("this worker", "this host", "the run continues without it, since its keeper lost it")
            try:
                self._open(members)
                numbers = self._agree(_PASSED, _ALL if held is None else held)
            except Interrupted as error:
                self._shut_down()
                if not self.membership.wait_for_change(members.number, NOTICE_S):
                    raise PeerLost("another rank", "another host", str(error).rstrip(".")) from None
            else:
                self.on_members(len(members.ranks))
                return numbers

    def _open(self, members: Members) -> None:
        """Creates the process groups once all members are ready. Raises Interrupted if this fails."""
        prefix = f"{self._prefix}/{members.number}"
        self._members = members
        self._store.set(f"{prefix}/ready/{self._rank}", b"1")
        ready = [f"{prefix}/ready/{rank}" for rank in members.ranks]
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                self._store.wait(ready, POLL_S)
            except StoreTimeout:
                self._check_members()
                if time.monotonic() > deadline:
                    raise Interrupted("not all members were ready in time") from None
            else:
                break
        place, size = members.ranks.index(self._rank), len(members.ranks)
        groups: list[Any] = []
        opened: list[list[int]] = []
        errors: list[RuntimeError] = []
        is_abandoned = threading.Event()

        def create() -> None:
            try:
                for name in ("control", "data"):
                    store = TorchStore(self._store, f"{prefix}/{name}/", CONNECT_S)
                    groups.append(dist.ProcessGroupGloo(store, place, size, timedelta(seconds=CONNECT_S)))
                # NCCL's sockets are left out, because NCCL closes them, and their descriptors may then be reused.
                opened.append([each for each in self._connections() if each not in before])
                nccl = self._open_nccl(f"{prefix}/nccl/", place, size)
                groups.append(nccl)
                if nccl is not None and is_abandoned.is_set():
                    nccl.abort()
            except RuntimeError as error:
                errors.append(error)
            except (PeerLost, StoreTimeout) as error:
                errors.append(RuntimeError(str(error)))

        before = set(self._connections())
        # A thread calls the constructors, which cannot be interrupted but end after CONNECT_S at the latest.
        thread = threading.Thread(target=create, name="torchyard-connect", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_S if len(groups) else 0.005)
                self._check_members()
        except Interrupted:
            is_abandoned.set()
            raise
        self._sockets = opened[0] if opened else [each for each in self._connections() if each not in before]
        if errors:
            raise Interrupted((str(errors[0]).splitlines() or ["the members could not connect"])[0])
        self._control, self._data, self._nccl = groups
        if self._nccl is not None:
            watch = partial(self._abort_on_change, self._nccl, members.number)
            threading.Thread(target=watch, name="torchyard-watch", daemon=True).start()

    def _open_nccl(self, prefix: str, place: int, size: int) -> NcclGroup | None:
        """Connects the members' GPUs. Raises RuntimeError if this fails."""
        if self._device.type != "cuda":
            return None
        return NcclGroup(TorchStore(self._store, prefix, CONNECT_S), place, size, self._device, STEP_S)

    def _abort_on_change(self, nccl: NcclGroup, number: int) -> None:
        """Aborts the operations on the GPU when the membership changes.

        Runs in a separate thread, because the training thread may be waiting for the GPU.
        """
        while not nccl.is_aborted:
            if self.membership.wait_for_change(number, LOOK_S):
                nccl.abort()

    def _end_nccl(self) -> None:
        """Ends the operations on the GPU. Raises PeerLost if this takes too long."""
        nccl, self._nccl = self._nccl, None
        if nccl is not None and not nccl.abort():
            raise PeerLost("this worker", "this host", "NCCL has not ended its operations on the GPU")

    def _shut_down(self) -> None:
        """Shuts down the connections of the group. This ends operations of the group here and on its other members.

        The process groups are deleted in the background, because their destructors wait for these operations.
        """
        self._end_nccl()
        groups = [self._control, self._data]
        self._control = self._data = _Closed()
        for descriptor in self._sockets:
            try:
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # gloo has already closed the socket.
                continue
        self._sockets = []
        _delete(groups)

    def _connections(self) -> list[int]:
        """Returns the descriptors of this process's connected TCP sockets that may belong to a process group."""
        found = []
        for path in Path("/proc/self/fd").iterdir():
            descriptor = int(path.name)
            try:
                if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    continue
                with socket.socket(fileno=os.dup(descriptor)) as each:
                    if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                        each.getpeername()
                        if not self._is_other(each):
                            found.append(descriptor)
            except OSError:  # The descriptor was closed in the meantime, or is not connected.
                continue
        return found

    def _is_other(self, connection: socket.socket) -> bool:
        """Returns whether a connection is known not to belong to a process group."""
        return False


class _Closed:
    """Stands in for a process group whose connections are closed. Every operation fails."""

    def allreduce(self, *_: Any) -> Any:
        raise RuntimeError("the group has ended")

    broadcast = allreduce


def _started(start: Callable[[], Any]) -> Any:
    try:
        return start()
    except RuntimeError as error:
        raise Interrupted(_first_line(error)) from None


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or ["its connection ended"])[0]


def _options(how: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = how
    options.timeout = timedelta(seconds=STEP_S)
    return options


def _delete(groups: list[Any]) -> threading.Thread:
    """Empties a list of process groups in a thread, since destructors may block. No other references may exist."""
    thread = threading.Thread(target=groups.clear, name="torchyard-delete", daemon=True)
    thread.start()
    return thread
