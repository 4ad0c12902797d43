"""A reducer of DiLoCo: it averages a slice of the groups' differences. θ and m stay with the groups.

group                                              reducer
   | slice: epoch, members, weight, differences --->  |  waits for the slices of all members
   | <--- average, with the sums of all members       |
chief's group
   | errors                                     --->  |  for a checkpoint
   | <--- errors of the encodings                     |
   | seed: errors                               --->  |  after a restart

The reducers of reduction_server add the chunks of a fixed set of ranks, unweighted, in the dtype of the gradients. Here
groups have weights, send encoded values, and are lost and return; and an average counts for all groups or for none. So
a reducer uses the messages and epochs of the groups' own exchange (`slice_server`, `round_state`), in which it takes
the place of the groups as the owner of a slice.

A reducer keeps nothing between rounds but the errors of its encodings. If it is lost, the groups repeat the round
without it; it returns at the end of a later round.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any

import torch

from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.tensor_connection import Connection, Peer, listen_at
from torchyard_roles.exchange.wire_codec import WireCodec
from torchyard_roles.keeper_reports import ServingReports
from torchyard_roles.strategies.diloco.error_feedback_codec import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.outer_slice import dtype_of
from torchyard_roles.strategies.diloco.outer_step import Flat, OuterParameters
from torchyard_roles.strategies.diloco.round_state import KEY, REDUCER, Announcement, RoundState
from torchyard_roles.strategies.diloco.slice_server import (
    Mailbox,
    SliceServer,
    Totals,
    is_readable,
    receive_tensors,
    send_tensors,
)

LOOK_EVERY_S = 0.5
EXIT_RESERVE_S = 1.0
"""Time in seconds reserved for the exit at the end of the grace period after SIGTERM."""


class AveragingReducer(SliceServer):
    """The server of one reducer. The constructor starts it.

    Args:
        has_feedback: Whether the error of an encoding is added to the next average.
    """

    def __init__(
        self, listener: socket.socket, key: bytes, name: str, codec: WireCodec, *, has_feedback: bool = True
    ) -> None:
        self._averaging = threading.Lock()
        """Guards the fields below."""
        self._has_feedback = has_feedback
        self._shapes: list[list[Any]] = []
        self._encoding = ErrorFeedbackCodec(codec, (), has_feedback=has_feedback)
        self._averaged = 0
        """The epoch of the last average, whose errors are not kept yet; 0 for none."""
        self._totals = Totals(0.0, 0.0, False)
        super().__init__(listener, key, name, Mailbox(), OuterParameters(()), PackedTensors(()), codec)

    @property
    def clients(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def _answer(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        operation = header.get("op")
        if operation == "errors":
            with self._averaging:
                self._settle(int(header["committed"]))
                errors = self._encoding.average_errors
            places = [[number, start, values.numel(), str(values.dtype)] for number, (start, values) in errors.items()]
            connection.send({"errors": places})
            send_tensors(connection, [values for _, values in errors.values()])
        elif operation == "seed":
            found = [
                (int(number), int(start), torch.empty(int(count), dtype=dtype_of(dtype), device="cpu"))
                for number, start, count, dtype in header["errors"]
            ]
            receive_tensors(connection, [values for _, _, values in found])
            with self._averaging:
                self._know(header["shapes"])
                self._encoding.seed({number: (start, values) for number, start, values in found})
            connection.send({})
        else:
            super()._answer(connection, group, header)

    def _average(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        epoch, members = int(header["epoch"]), set(header["members"])
        with self._averaging:
            self._know(header["shapes"])
        self._mailbox.advance(epoch)
        self._mailbox.put(epoch, group, self._receive_slice(connection, header))
        with self._averaging:
            contributions = self._mailbox.contributions(epoch)
            if contributions.keys() >= members and self._averaged != epoch:
                self._settle(int(header["committed"]))
                numbers = self._outer.numbers(header["fragment"])
                place = int(header["number"]), int(header["of"])
                self._averaged, self._totals = epoch, Totals.of(contributions.values())
                self._mailbox.publish(epoch, self._encoding.average(numbers, contributions, *place))
        average = self._mailbox.average(epoch, lambda: not is_readable(connection))
        if average is None:
            connection.send({"abandoned": True})
        else:
            connection.send({"epoch": epoch, "totals": list(self._totals)})
            send_tensors(connection, average)

    def _know(self, shapes: list[list[Any]]) -> None:
        """Adopts the sizes of the model's flat tensors. The caller must hold the lock."""
        if shapes == self._shapes:
            return
        flats = []
        for elements, dtype, is_buffer, fragment in shapes:
            flats.append(Flat([], dtype_of(dtype), is_buffer=bool(is_buffer), fragment=int(fragment)))
            flats[-1].elements = int(elements)
        self._outer = OuterParameters(flats)
        self._encoding = ErrorFeedbackCodec(self._encoding.codec, flats, has_feedback=self._has_feedback)
        self._shapes = shapes

    def _settle(self, committed: int) -> None:
        """Keeps the errors of the last average if its epoch is committed. The caller must hold the lock."""
        if self._averaged == committed:
            self._encoding.keep_errors()
        self._encoding.discard_errors()


class Attendance:
    """The announcements of a reducer in the join store.

    Args:
        number: The number of the reducer in the plan.
    """

    def __init__(self, store: JoinStore, number: int, own: Peer, server: SliceServer) -> None:
        self._store = store
        self._number = number
        self._own = own
        self._server = server

    def announce(self) -> None:
        """Offers to take part from the end of the current round. Raises RolesError."""
        self._server.process = os.urandom(8).hex()
        announcement = Announcement(self._server.process, *self._own)
        self._store.set(f"{REDUCER}/{self._number}", announcement.encoded())

    def look(self) -> bool:
        """Announces the reducer again if the groups have considered it lost. Raises RolesError.

        Returns:
            Whether training has ended.
        """
        text = self._store.try_get(KEY)
        state = RoundState.decoded(text) if text is not None else None
        if state is not None and self._server.process in state.dropped:
            self.announce()
        return state is not None and state.has_ended


def serve(environment: Environment) -> None:
    """Runs this process as a reducer until training has ended. Raises RolesError.

    After SIGTERM the process ends when no group is connected, since stopped groups still finish their round.
    """
    reducers = [Peer(*each) for each in environment.peers.reducer]
    names = [each.name for each in reducers]
    if environment.replica not in names:
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to average: TORCHYARD_PEERS names the reducers "
            f"{', '.join(names) or 'of none'}.",
            "Start the run with torchyard.",
        )
    if environment.groups == 1 or environment.peers.ps:
        why = "there is one worker group" if environment.groups == 1 else "the parameter servers average the groups"
        print(f"torchyard: {environment.replica} has nothing to average, since {why}.", flush=True)
        return
    number = names.index(environment.replica)
    torch.set_num_threads(1)
    options = environment.options
    stopping = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    store = JoinStore.of(environment)
    listener = listen_at(reducers[number])
    codec = WireCodec(options.wire)
    server = AveragingReducer(
        listener, environment.key, environment.replica, codec, has_feedback=options.error_feedback
    )
    attendance = Attendance(store, number, reducers[number], server)
    try:
        attendance.announce()
        with ServingReports(environment, lambda: {"clients": float(server.clients)}, lambda: sum(server.traffic())):
            while not stopping.wait(LOOK_EVERY_S) and not attendance.look():
                pass
            deadline = time.monotonic() + options.stop_grace_s - EXIT_RESERVE_S
            while server.clients and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        # Only the exit remains, which the signal must not interrupt.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close()
        store.close()
