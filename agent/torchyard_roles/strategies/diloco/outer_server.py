"""A parameter server of DiLoCo, which averages the pseudo-gradients that groups push.

Each server holds a slice of the outer parameters θ and of the momentum m. The first server, the *lead*, decides when a
round closes. The other servers, its followers, close the round with the same pseudo-gradients. The lead reports a new
round to the groups once all servers have closed the previous one. Each fragment of the model has a slice and rounds of
its own.

group                                              server
   | push: fragment, base, pseudo-gradient   --->    |  each server keeps its slice
   | commit: (fragment, base, weight) …      --->    |  to the lead, once all servers have the pseudo-gradients
   | <--- (fragment, round) …                        |  when the rounds are closed
   | pull: fragment                          --->    |
   | <--- θ                                          |  from each server

The lead considers a group lost when the group's connection for `join` breaks. If a server is lost, the other servers
exit too, and keepers restart the trainers from their checkpoint together with all servers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Callable

import torch

from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.listener import Admission, Connections, log
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.server_reports import ServerReports
from torchyard_roles.strategies.diloco import follower_connections
from torchyard_roles.strategies.diloco.follower_connections import FollowerConnections
from torchyard_roles.strategies.diloco.outer_slice import OuterSlice, dtype_of
from torchyard_roles.strategies.diloco.server_rounds import FragmentRounds, Push, Rounds
from torchyard_roles.strategies.diloco.slice_server import receive_tensors, send_tensors
from torchyard_roles.strategies.parameter_server.server_checkpoint import ServerCheckpoint
from torchyard_roles.strategy_options import Options

SERVICE = "diloco-server"
ENDED = "diloco/ended"
"""Key that is set in the join store when training has ended."""
HOST_WAIT_S = 600.0
"""Longest time in seconds to wait for groups that have not started, and for a lost chief's group at the end."""
LOOK_EVERY_S = 1.0
PARTING_S = 5.0
"""Longest time in seconds to wait for groups to disconnect after a server was lost, and for threads to end."""
EXIT_RESERVE_S = 1.0
"""Time in seconds reserved for the exit at the end of the grace period after SIGTERM."""


class OuterServer:
    """One parameter server of DiLoCo.

    Args:
        servers: The addresses of all servers. `index` is the number of this server.
        on_end: Called on the first server when training has ended.
    """

    def __init__(
        self,
        servers: Sequence[Peer],
        index: int,
        groups: int,
        options: Options,
        key: bytes,
        *,
        checkpoint: ServerCheckpoint | None = None,
        on_end: Callable[[], None] = lambda: None,
        host_wait_s: float = HOST_WAIT_S,
    ) -> None:
        self.name = servers[index].name
        self._servers = list(servers)
        self._is_lead = index == 0
        self._groups = groups
        self._options = options
        self._key = key
        self._checkpoint = checkpoint
        self._on_end = on_end
        self._host_wait_s = host_wait_s
        self._process = os.urandom(8).hex()
        self._slices: list[OuterSlice] = []
        """The slice of each fragment. Empty until the chief's group has sent or restored the slices."""
        self._connections = Connections()
        self._changed = threading.Condition()
        """Guards the fields below, and is notified when any of them changes."""
        self._ends = False
        self._failure = ""
        self._lineage = ""
        """The ID of the training. Empty until the chief's group has begun or restored the training."""
        self._pushed: list[dict[int, int]] = []
        self._pending: list[list[Push]] = []
        """From a restored checkpoint, by fragment: the base of each group's last push, and the open round's pushes."""
        self._rest: torch.Tensor | None = None
        """Frozen parameters and buffers that are not averaged, on the lead."""
        self._shapes: list[list[Any]] = []
        """The sizes and dtypes of the whole model's flat tensors, which must be the same in all groups."""
        self._rounds: FragmentRounds | None = None
        """The rounds of all fragments. Set only on the lead, once the groups may train."""
        self._followers: FollowerConnections | None = None
        self._present: dict[int, str] = {}
        """For each group that has joined and is not lost, the ID of its first rank's process."""
        self._saved_step: int | None = None

    def serve(self, listener: socket.socket) -> None:
        """Handles requests until training has ended or stop() is called, and then closes `listener`."""
        admission = Admission(listener, self._key, self.name)
        listener.settimeout(0.5)
        try:
            while not self._ends:
                sock = admission.accept()
                if sock is not None:
                    threading.Thread(target=self._receive_caller, args=(admission, sock), daemon=True).start()
        finally:
            listener.close()
            if self._followers is not None:
                self._followers.close()
            self._connections.close()
            with self._changed:
                self._changed.wait_for(lambda: not self._connections, timeout=PARTING_S)

    def stop(self) -> None:
        """Ends serve(). This method is thread-safe and may be called twice."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def finish_soon(self, within_s: float) -> None:
        """Ends serve() once no client is connected, but after `within_s` seconds at the latest.

        May be called from a signal handler.
        """
        threading.Thread(target=self._finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def _finish(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._connections_of_others(), timeout=within_s)
            rounds = self._rounds
            if rounds is not None and not rounds.has_ended and not self._failure and self._saved_step is not None:
                # The checkpoint is saved again, because groups may have pushed after the chief's checkpoint and before
                # they stopped.
                with contextlib.suppress(RolesError, OSError):
                    self._save(self._saved_step)
        self.stop()

    def _connections_of_others(self) -> int:
        return len(self._present) if self._is_lead else len(self._connections)

    def figures(self) -> dict[str, float]:
        """Returns this server's metrics by their names in `metrics_report.METRICS`."""
        rounds = self._rounds
        clients = rounds.live if rounds is not None else len(self._connections)
        return {"clients": float(clients), "version": float(sum(each.round for each in self._slices))}

    def traffic(self) -> int:
        """Returns the number of bytes sent and received so far."""
        linked = self._followers.traffic() if self._followers is not None else (0, 0)
        return sum(self._connections.traffic()) + sum(linked)

    def _receive_caller(self, admission: Admission, sock: socket.socket) -> None:
        admitted = admission.authenticate(sock)
        if admitted is None:
            return
        connection, introduction = admitted
        self._connections.add(connection)
        try:
            self._serve_caller(connection, introduction)
        except PeerLost:
            pass  # The loss of a group is handled when its connection for `join` breaks.
        except (RolesError, LookupError, ValueError, TypeError) as error:
            log(self.name, f"{connection.peer} on {connection.host} was refused: {error}")
        finally:
            connection.close()
            with self._changed:
                self._connections.remove(connection)
                self._changed.notify_all()

    def _serve_caller(self, connection: Connection, introduction: dict[str, Any]) -> None:
        service = introduction.get("service")
        if service == follower_connections.SERVICE:
            connection.answer({"name": self.name})
            self._follow(connection)
        elif service == SERVICE:
            group = int(introduction["group"])
            if not 0 <= group < self._groups:
                raise ProtocolError(f"there is no worker group {group}")
            connection.answer({"name": self.name, "process": self._process})
            self._answer_group(connection, group, str(introduction["process"]))
        else:
            connection.refuse(f"{self.name} averages worker groups, and offers no other service.")

    def _follow(self, connection: Connection) -> None:
        while True:
            header = connection.receive()
            operation = header.get("op")
            if operation == "close":
                used = [push_of(each) for each in header["used"]]
                slice_ = self._slices[int(header["fragment"])]
                slice_.close(used, pairs(header["pushed"]), float(header["lr"]), float(header["momentum"]))
                connection.send({"round": slice_.round})
            elif operation == "save":
                pending = [[push_of(push) for push in each] for each in header["pending"]]
                connection.send({"problem": self._write(int(header["step"]), header["pushed"], pending)})
            elif operation == "watch":
                try:
                    connection.receive()
                finally:
                    self.stop()  # The connection breaks when the first server exits, and this server then stops too.
            else:
                raise ProtocolError(f"{operation!r} is not an operation")

    def _answer_group(self, connection: Connection, group: int, process: str) -> None:
        while True:
            header = connection.receive()
            operation = header.get("op")
            if operation == "about":
                connection.send({"has_begun": self._rounds is not None})
            elif operation == "restore":
                connection.send(self._restore(int(header["step"])))
            elif operation == "begin":
                self._begin(connection, header)
            elif operation == "open":
                self._open(header)
                connection.send({})
            elif operation == "join":
                self._attend(connection, group, process, header)
                return
            elif operation == "push":
                self._receive_push(connection, group, int(header["fragment"]), int(header["base"]))
                connection.send({})
            elif operation == "commit":
                connection.send(self._commit(group, process, header))
            elif operation == "pull":
                self._send_pull(connection, int(header["fragment"]), int(header["round"]))
            elif operation == "rest":
                connection.send({}, self._rest)
            elif operation == "save":
                with self._changed:
                    self._saved_step = int(header["step"])
                    problem = self._save(self._saved_step)
                connection.send({"problem": problem})
            else:
                raise ProtocolError(f"{operation!r} is not an operation")

    def _receive_push(self, connection: Connection, group: int, fragment: int, base: int) -> None:
        """Receives, decodes and stores the pseudo-gradients that a group pushes."""
        slice_ = self._slices[fragment]
        codec = slice_.codec
        difference = slice_.empty()
        encoded = [
            torch.empty(codec.size(each.numel(), each.dtype), dtype=torch.uint8, device="cpu") for each in difference
        ]
        receive_tensors(connection, encoded)
        for whole, values in zip(encoded, difference):
            codec.decode(whole, values)
        slice_.put(group, base, difference)

    def _send_pull(self, connection: Connection, fragment: int, known: int) -> None:
        """Sends the changes of a fragment since round `known`, or the fragment's whole θ if changes are missing."""
        changes = self._slices[fragment].changes_since(known) if known >= 0 else None
        if changes is None:
            round_, sent = self._slices[fragment].sent()
            connection.send({"round": round_})
            send_tensors(connection, sent)
            return
        connection.send({"round": known + len(changes), "changes": len(changes)})
        for change in changes:
            send_tensors(connection, change)

    def _begin(self, connection: Connection, header: dict[str, Any]) -> None:
        """Receives this server's slice of the initial outer parameters and momentum from the chief's group."""
        codec = WireCodec(self._options.wire)
        slices = []
        for round_, shapes in header["fragments"]:
            found = [(int(elements), dtype_of(str(name)), bool(buffer)) for elements, name, buffer in shapes]
            theta = [torch.empty(elements, dtype=dtype, device="cpu") for elements, dtype, _ in found]
            momentum = [torch.empty_like(each) for each in theta]
            receive_tensors(connection, [*theta, *momentum])
            slices.append(OuterSlice(codec))
            slices[-1].begin(found, theta, momentum, int(round_))
        rest = None
        if header["rest"]:
            rest = torch.empty(int(header["rest"]), dtype=torch.uint8, device="cpu")
            connection.receive()
            connection.receive_into(rest)
        with self._changed:
            if self._rounds is None:
                self._slices = slices
                self._lineage, self._rest = str(header["lineage"]), rest
                self._pushed, self._pending = [{} for _ in slices], [[] for _ in slices]
        connection.send({})

    def _restore(self, step: int) -> dict[str, Any]:
        """Loads this server's part of the checkpoint that the chief's group resumes from. Returns the answer."""
        state = self._checkpoint.read(step) if self._checkpoint is not None else None
        if state is None or "fragments" not in state:
            return {"empty": True}
        with self._changed:
            if self._rounds is None:
                self._slices = [OuterSlice(WireCodec(self._options.wire)) for _ in state["fragments"]]
                self._pending = [slice_.load(each) for slice_, each in zip(self._slices, state["fragments"])]
                self._pushed = [pairs(each) for each in state["pushed"]]
                self._lineage, self._rest = str(state["lineage"]), state["rest"]
        fragments = [[slice_.round, each["shapes"]] for slice_, each in zip(self._slices, state["fragments"])]
        return {"fragments": fragments, "lineage": self._lineage}

    def _open(self, header: dict[str, Any]) -> None:
        """Connects to the other servers and starts the rounds, so that groups can join.

        Called on the first server only, once all servers have their slices.
        """
        with self._changed:
            if self._rounds is not None:
                return
            self._followers = FollowerConnections(self._servers[1:], self._key, self.name, self._lose_follower)
            self._lineage, self._shapes = str(header["lineage"]), header["shapes"]
            quorum, grace_s = self._options.quorum or 0, self._options.grace_s
            is_fragment = len(self._slices) > 1
            self._rounds = FragmentRounds(
                [
                    Rounds(self._groups, quorum, grace_s, slice_.round, pushed, pending, is_fragment=is_fragment)
                    for slice_, pushed, pending in zip(self._slices, self._pushed, self._pending)
                ]
            )
            threading.Thread(target=self._run_rounds, args=(self._rounds,), name="diloco-rounds", daemon=True).start()

    def _attend(self, connection: Connection, group: int, process: str, header: dict[str, Any]) -> None:
        """Lets a group take part in rounds until it stops or its connection breaks."""
        with self._changed:
            self._changed.wait_for(lambda: self._rounds is not None or self._ends)
            rounds = self._rounds
            if rounds is None or self._ends:
                return
            if header["shapes"] != self._shapes:
                connection.send(
                    {
                        "refused": f"The model of {connection.peer} differs from the one of the chief's group: shapes "
                        "or dtypes. Start all with the same script and arguments."
                    }
                )
                return
            self._present[group] = process
            rounds.join(group)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends or not rounds.must_wait(group, {}))
            answer = {
                "rounds": rounds.rounds,
                "pushed": rounds.last_pushed(group),
                "lineage": self._lineage,
                "has_ended": rounds.has_ended,
            }
        why = f"{connection.peer} on {connection.host} has ended."
        try:
            connection.send(answer)
            has_stopped = connection.receive().get("op") == "stopped"
        except PeerLost as error:
            has_stopped, why = False, error.message
        with self._changed:
            if self._present.get(group) != process:
                return
            del self._present[group]
            if not rounds.has_ended and not self._failure:
                log(self.name, f"{why} Training continues without worker group {group} until it is back.")
            (rounds.stop if has_stopped else rounds.lose)(group)
            self._changed.notify_all()

    def _commit(self, group: int, process: str, header: dict[str, Any]) -> dict[str, Any]:
        """Adds a group's pushes to the open rounds of their fragments, and waits until the group may continue.

        All servers must already have received the pseudo-gradients.

        Returns:
            The answer to the group.
        """
        pushes = {
            int(fragment): Push(group, int(base), float(weight)) for fragment, base, weight in header["differences"]
        }
        bases = {fragment: push.base for fragment, push in pushes.items()}
        with self._changed:
            rounds = self._rounds
            if rounds is None or self._present.get(group) != process:
                return {"gone": True}
            if not rounds.push(pushes, has_finished=bool(header["has_finished"])):
                return {"postponed": True}
            self._changed.notify_all()

            def is_withdrawn() -> bool:
                pushed = rounds.last_pushed(group)
                return any(pushed[fragment] < base for fragment, base in bases.items())

            self._changed.wait_for(
                lambda: self._ends or self._failure or is_withdrawn() or not rounds.must_wait(group, bases)
            )
            if self._failure:
                return {"lost": self._failure}
            if is_withdrawn():
                return {"postponed": True}
            found = [[fragment, rounds.rounds[fragment]] for fragment in bases]
            return {"rounds": found, "has_ended": rounds.has_ended}

    def _run_rounds(self, rounds: FragmentRounds) -> None:
        began = time.monotonic()
        chief_lost_at: float | None = None
        has_told_end = False
        with self._changed:
            while not self._ends:
                now = time.monotonic()
                rounds.end_if_finished()
                try:
                    due = rounds.due(now)
                    for fragment in due:
                        self._close(rounds, fragment)
                    if due:
                        continue
                except (PeerLost, ProtocolError) as error:
                    self._fail(error.message)
                    return
                if now > began + min(self._host_wait_s, self._options.start_wait_s):
                    for group in rounds.give_up_expected():
                        log(self.name, f"Worker group {group} has not started. Training continues without it.")
                if rounds.waits_for_chief:
                    if chief_lost_at is None:
                        chief_lost_at = now
                        log(
                            self.name,
                            "training has finished; waiting for the chief's worker group, which saves the result.",
                        )
                    if now > chief_lost_at + self._host_wait_s:
                        self._fail("The chief's worker group, which saves the result, did not come back.")
                        return
                else:
                    chief_lost_at = None
                if rounds.has_ended and not has_told_end:
                    has_told_end = True
                    self._on_end()
                if rounds.has_ended and not self._present:
                    self._ends = True
                self._changed.notify_all()
                self._changed.wait(min(LOOK_EVERY_S, rounds.due_in(now) or LOOK_EVERY_S))
            self._changed.notify_all()

    def _close(self, rounds: FragmentRounds, fragment: int) -> None:
        is_plain = rounds.rounds[fragment] < self._options.warmup_steps
        lr = 1.0 if is_plain else self._options.outer_lr
        momentum = 0.0 if is_plain else self._options.outer_momentum
        used = rounds.close(fragment)
        pushed = rounds.fragments[fragment].pushed
        header = {
            "op": "close",
            "fragment": fragment,
            "used": [list(push) for push in used],
            "pushed": list(pushed.items()),
            "lr": lr,
            "momentum": momentum,
        }
        assert self._followers is not None
        self._followers.ask(header, lambda: self._slices[fragment].close(used, pushed, lr, momentum))

    def _save(self, step: int) -> str:
        """Saves all servers' parts of a checkpoint, between two rounds. Returns an error message, or "" on success."""
        rounds = self._rounds
        if rounds is None or self._followers is None or self._checkpoint is None:
            return "training has not begun"
        problems = []
        pushed = [list(each.pushed.items()) for each in rounds.fragments]
        pending = [list(each.pending) for each in rounds.fragments]
        of_pending = [[list(push) for push in each] for each in pending]
        header = {"op": "save", "step": step, "pushed": pushed, "pending": of_pending}
        answers = self._followers.ask(header, lambda: problems.append(self._write(step, pushed, pending)))
        problems += [str(answer["problem"]) for answer in answers]
        return next((problem for problem in problems if problem), "")

    def _write(self, step: int, pushed: Sequence[Sequence[Sequence[int]]], pending: Sequence[Sequence[Push]]) -> str:
        if self._checkpoint is None:
            return f"{self.name} has no folder for checkpoints"
        state = {
            "fragments": [slice_.state(each) for slice_, each in zip(self._slices, pending)],
            "lineage": self._lineage,
            "pushed": [[list(pair) for pair in each] for each in pushed],
            "rest": self._rest,
        }
        try:
            self._checkpoint.write(lambda: state, step, ())
        except OSError as error:
            return f"{self.name}: {error}"
        return ""

    def _lose_follower(self, error: PeerLost | ProtocolError) -> None:
        with self._changed:
            self._fail(error.message)

    def _fail(self, why: str) -> None:
        """Ends training because of an error. The keepers then restart the groups. The caller must hold the lock."""
        if self._failure or self._ends or (self._rounds is not None and self._rounds.has_ended):
            return
        self._failure = f"{why} All groups start again from their checkpoints."
        log(self.name, self._failure)
        self._changed.notify_all()
        threading.Thread(target=self._end_after_groups, name="diloco-end", daemon=True).start()

    def _end_after_groups(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._present, timeout=PARTING_S)
        self.stop()


def push_of(fields: Sequence[Any]) -> Push:
    group, base, weight = fields
    return Push(int(group), int(base), float(weight))


def pairs(items: Sequence[Sequence[Any]]) -> dict[int, int]:
    return {int(group): int(base) for group, base in items}


def serve(environment: Environment) -> None:
    """Runs this process as a parameter server until training has ended.

    Raises EnvironmentProblem if TORCHYARD_PEERS does not list this process as a parameter server.
    """
    servers = [Peer(*each) for each in environment.peers.ps]
    names = [server.name for server in servers]
    if environment.replica not in names:
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to serve: TORCHYARD_PEERS names the parameter "
            f"servers {', '.join(names) or 'of none'}.",
            "Start the run with torchyard.",
        )
    index = names.index(environment.replica)
    store = JoinStore.of(environment) if index == 0 and environment.store else None
    folder = Path(environment.checkpoints) if environment.checkpoints else None
    server = OuterServer(
        servers,
        index,
        environment.groups,
        environment.options,
        environment.key,
        checkpoint=(
            ServerCheckpoint(folder, environment.replica, index, len(servers), environment.run_id) if folder else None
        ),
        on_end=lambda: _tell_end(store),
    )

    def stop(signum: int, frame: FrameType | None) -> None:
        server.finish_soon(environment.stop_grace_s - EXIT_RESERVE_S)

    signal.signal(signal.SIGTERM, stop)
    listener = tensor_connection.listen_at(servers[index])
    try:
        with ServerReports(environment, server.figures, server.traffic):
            server.serve(listener)
    finally:
        # Another SIGTERM must not interrupt the exit.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if store is not None:
            store.close()


def _tell_end(store: JoinStore | None) -> None:
    if store is not None:
        with contextlib.suppress(RolesError):
            store.set(ENDED, b"1")
