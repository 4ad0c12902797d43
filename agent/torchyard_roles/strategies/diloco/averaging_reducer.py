"""A reducer of DiLoCo, which averages a slice of the groups' pseudo-gradients.

The outer parameters and the momentum stay with the groups.

group                                              reducer
   | slice: epoch, members, weight              --->  |
   | pseudo-gradients, in messages              --->  |  averages each message of all members
   | <--- averages, in messages, then the totals      |
chief's group
   | errors                                     --->  |  for a checkpoint
   | <--- errors of the encodings                     |
   | seed: errors                               --->  |  after a restart

The reducers of reduction_server sum chunks of a fixed set of ranks, without weights, in the dtype of the gradients. In
DiLoCo, groups have weights, send encoded values, and may be lost and return, and an average is applied by all groups or
by none. Therefore a reducer uses the messages and epochs of the groups' own exchange (`slice_server`, `round_state`),
in which the reducer takes the place of a group that owns a slice.

Between rounds, a reducer keeps only the errors of its encodings. If it is lost, the groups repeat the round without it.
It may return at the end of a later round.
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
from torchyard_roles.errors import EnvironmentProblem, ProtocolError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.exchange.tensor_connection import Connection, Peer, listen_at
from torchyard_roles.server_reports import ServerReports
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.outer_slice import dtype_of
from torchyard_roles.strategies.diloco.outer_step import Flat, OuterParameters
from torchyard_roles.strategies.diloco.round_state import KEY, REDUCER, Announcement, RoundState
from torchyard_roles.strategies.diloco.slice_exchange import is_readable
from torchyard_roles.strategies.diloco.slice_server import (
    Contribution,
    Mailbox,
    SliceServer,
    receive_tensors,
    send_tensors,
)

LOOK_EVERY_S = 0.5
EXIT_RESERVE_S = 1.0
"""Time in seconds reserved for the exit at the end of the grace period after SIGTERM."""


class AveragingReducer(SliceServer):
    """The server of one reducer. The constructor starts the server.

    Args:
        has_feedback: Whether the error of each encoded average is added to the next average before that is encoded.
    """

    def __init__(
        self, listener: socket.socket, key: bytes, name: str, codec: WireCodec, *, has_feedback: bool = True
    ) -> None:
        self._averaging = threading.Lock()
        """Guards the fields below, and the codec."""
        self._has_feedback = has_feedback
        self._shapes: list[list[Any]] = []
        self._epoch = 0
        """The newest epoch."""
        self._messages: list[tuple[int, slice]] = []
        self._averaged = 0
        """The number of this epoch's messages that are already averaged."""
        self._slice: tuple[list[int], int, int] = [], 0, 1
        """The arguments of `ErrorFeedbackCodec.begin_average` for this epoch."""
        wire = ErrorFeedbackCodec(codec, (), has_feedback=has_feedback)
        super().__init__(listener, key, name, Mailbox(), OuterParameters(()), PackedTensors(()), wire)

    @property
    def clients(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def _answer(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        operation = header.get("op")
        if operation == "errors":
            with self._averaging:
                self._settle(int(header["committed"]))
                errors = dict(self._wire.average_errors)
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
                self._wire.seed({number: (start, values) for number, start, values in found})
            connection.send({})
        else:
            super()._answer(connection, group, header)

    def _average(self, connection: Connection, group: int, header: dict[str, Any]) -> None:
        epoch, members = int(header["epoch"]), int(header["members"])
        messages = self._begin(epoch, header)
        own = Contribution(float(header["weight"]), bool(header["has_finished"]), float(header["square"]))
        self._mailbox.put(epoch, group, own, connection)
        for message in messages:
            connection.receive()
            encoded = torch.empty(self._wire.size(message), dtype=torch.uint8, device="cpu")
            connection.receive_into(encoded)
            self._mailbox.deliver(own, encoded)
            self._average_due(epoch, members)
        # Callers send nothing while they wait, so a connection that is readable was closed.
        totals = self._mailbox.totals(epoch, len(messages), members, lambda: not is_readable(connection))
        connection.send({"abandoned": True} if totals is None else {"totals": list(totals)})

    def _begin(self, epoch: int, header: dict[str, Any]) -> list[tuple[int, slice]]:
        """Begins an epoch unless it has already begun, and returns the messages of this reducer's slice."""
        number, of = int(header["number"]), int(header["of"])
        if not 0 <= number < of:
            raise ProtocolError(f"there is no slice {number} of {of}")
        with self._averaging:
            is_new = epoch > self._epoch
            if is_new:
                self._settle(int(header["committed"]))
                self._know(header["shapes"])
            numbers = self._outer.numbers(header["fragment"])
            messages = self._wire.messages(numbers, number, of)
            if is_new:
                self._epoch, self._messages, self._averaged = epoch, messages, 0
                self._slice = numbers, number, of
                self._mailbox.advance(epoch)
            return messages

    def _average_due(self, epoch: int, members: int) -> None:
        """Averages the messages that all members have sent."""
        with self._averaging:
            while epoch == self._epoch and (parts := self._mailbox.due(epoch, members)) is not None:
                if not self._averaged:  # By now, the chief's group has sent any restored errors.
                    self._wire.begin_average(*self._slice)
                message = self._messages[self._averaged]
                average = torch.empty(self._wire.size(message), dtype=torch.uint8, device="cpu")
                self._wire.average(message, parts, average)
                self._averaged += 1
                self._mailbox.publish(epoch, average)

    def _know(self, shapes: list[list[Any]]) -> None:
        """Sets the sizes, dtypes and fragments of the model's flat tensors. The caller must hold the lock."""
        if shapes == self._shapes:
            return
        flats = []
        for elements, dtype, is_buffer, fragment in shapes:
            flats.append(Flat([], dtype_of(dtype), is_buffer=bool(is_buffer), fragment=int(fragment)))
            flats[-1].elements = int(elements)
        self._outer = OuterParameters(flats)
        self._wire = ErrorFeedbackCodec(self._wire.codec, flats, has_feedback=self._has_feedback)
        self._shapes = shapes

    def _settle(self, committed: int) -> None:
        """Keeps the encoding errors of the last epoch if that epoch was committed, and otherwise discards them.

        The caller must hold the lock.

        Args:
            committed: The last committed epoch.
        """
        if self._epoch == committed:
            self._wire.keep_errors()
        self._wire.discard_errors()


class Attendance:
    """The announcements of a reducer in the join store.

    Args:
        number: The index of the reducer among all reducers of the run.
    """

    def __init__(self, store: JoinStore, number: int, own: Peer, server: SliceServer) -> None:
        self._store = store
        self._number = number
        self._own = own
        self._server = server

    def announce(self) -> None:
        """Announces that this reducer can take part in the next round. Raises RolesError if the join store is lost."""
        self._server.process = os.urandom(8).hex()
        announcement = Announcement(self._server.process, *self._own)
        self._store.set(f"{REDUCER}/{self._number}", announcement.encoded())

    def look(self) -> bool:
        """Announces the reducer again if the groups consider it lost. Raises RolesError if the join store is lost.

        Returns:
            Whether training has ended.
        """
        text = self._store.try_get(KEY)
        state = RoundState.decoded(text) if text is not None else None
        if state is not None and self._server.process in state.dropped:
            self.announce()
        return state is not None and state.has_ended


def serve(environment: Environment) -> None:
    """Runs this process as a reducer until training has ended. Raises RolesError if the reducer cannot run.

    After SIGTERM the process exits when no group is connected, because stopped groups still finish their round.
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
        with ServerReports(environment, lambda: {"clients": float(server.clients)}, lambda: sum(server.traffic())):
            while not stopping.wait(LOOK_EVERY_S) and not attendance.look():
                pass
            stopped = time.monotonic()
            while server.clients and time.monotonic() < stopped + environment.stop_grace_s - EXIT_RESERVE_S:
                time.sleep(0.01)
    finally:
        # Another SIGTERM must not interrupt the exit.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close()
        store.close()
