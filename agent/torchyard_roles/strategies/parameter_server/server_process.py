"""A parameter server's process: one listener for all pairs of model and optimizer that the script has distributed.

A worker has a connection of its own for each pair, and its introduction says which. The process ends when each pair
that has begun has ended.
"""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, RolesError
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.listener import Admission, Connections
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.keeper_reports import ServingReports
from torchyard_roles.strategies.parameter_server import memory_check, server_checkpoint
from torchyard_roles.strategies.parameter_server.messages import Refusal
from torchyard_roles.strategies.parameter_server.push_rounds import Rules
from torchyard_roles.strategies.parameter_server.server_checkpoint import ServerCheckpoint
from torchyard_roles.strategies.parameter_server.server_pair import BEGIN_S, ServerPair
from torchyard_roles.strategies.parameter_server.worker_session import Session

MOST_PAIRS = 1000
PARTING_S = 5.0
"""For what connections' threads are in the midst of when serving ends, such as the save after a goodbye."""


class ParameterServer:
    """One server of `count`. `keeps`: asynchronous, so that it stays as it is when workers are started again.

    `folder` is where checkpoints are, and `run` the run's ID; without a folder nothing is saved. `save_every_s`: of its
    own accord, 0 never.
    """

    def __init__(
        self,
        name: str,
        index: int,
        count: int,
        key: bytes,
        rules: Rules,
        *,
        keeps: bool = False,
        folder: Path | None = None,
        run: str = "",
        save_every_s: float = 0.0,
        available: Callable[[], int] = memory_check.available,
        begin_s: float = BEGIN_S,
    ) -> None:
        self.name = name
        self.pairs: dict[int, ServerPair] = {}
        """By number, those that a worker has come for."""
        self._index = index
        self._count = count
        self._key = key
        self._rules = rules
        self._keeps = keeps
        self._folder = folder
        self._run = run
        self._save_every_s = save_every_s if folder is not None else 0.0
        self._available = available
        self._begin_s = begin_s
        self._connections = Connections()
        self._changed = threading.Condition()
        self._ends = False
        self._failure: Exception | None = None

    def serve(self, listener: socket.socket) -> None:
        """Until every worker of every group has said goodbye, or stop(). Closes the listener. Raises RolesError where
        this server cannot go on."""
        if self._save_every_s > 0:
            threading.Thread(target=self._save_now_and_then, name="saver", daemon=True).start()
        admission = Admission(listener, self._key, self.name)
        listener.settimeout(0.5)
        try:
            while not self._ends:
                sock = admission.accept()
                if sock is not None:
                    threading.Thread(target=self._receive_caller, args=(admission, sock), daemon=True).start()
        finally:
            listener.close()
            for pair in list(self.pairs.values()):
                pair.end_sessions()
            self._connections.close()
            with self._changed:
                self._changed.wait_for(lambda: not self._connections, timeout=PARTING_S)
        if self._failure is not None:
            raise RolesError(f"{self.name} cannot go on: {self._failure}.") from self._failure

    def stop(self) -> None:
        """End serve() soon; from any thread, twice is once."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for pair in list(self.pairs.values()):
            pair.stop()

    def finish_soon(self, within_s: float) -> None:
        """End serve() once no worker is connected any more, at most `within_s` later. For a signal handler, which may
        not wait for a lock that its own thread holds."""
        threading.Thread(target=self._finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def _finish(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._connections, timeout=within_s)
        self.stop()

    def _pair_has_ended(self) -> None:
        if all(pair.has_ended for pair in list(self.pairs.values()) if pair.shard is not None):
            self.stop()

    def _fail(self, error: Exception) -> None:
        """From a connection's thread: what it did to a shard did not come to its end. Ends serve() with that."""
        self._failure = self._failure or error
        self.stop()

    def figures(self) -> dict[str, float]:
        """What there is to report: see `report.METRICS`. Of several pairs the largest, and of counts the sum."""
        pairs = list(self.pairs.values())
        shards = [pair.shard for pair in pairs if pair.shard is not None]
        found = {"clients": float(len(set().union(*(pair.clients for pair in pairs))))}
        if shards:
            found.update(
                version=float(max(shard.ledger.version for shard in shards)),
                staleness=float(max(shard.ledger.staleness for shard in shards)),
                dropped=float(sum(shard.ledger.counts.dropped for shard in shards)),
                skipped=float(sum(shard.ledger.counts.void for shard in shards)),
                wait_s=max(shard.waited_s for shard in shards),
            )
        return found

    def traffic(self) -> int:
        """Bytes sent and received so far, over all connections."""
        return sum(self._connections.traffic())

    def save_for_itself(self) -> None:
        """What an asynchronous server has done since it was last saved, of all pairs."""
        for pair in list(self.pairs.values()):
            pair.save_for_itself()

    def resume(self) -> bool:
        """Take up the newest parts of its own, after a death; whether there was one of this run. Before serve()."""
        numbers = server_checkpoint.numbers(self._folder, self.name) if self._folder is not None else []
        resumed = [self._pair(number).resume() for number in numbers]
        return any(resumed)

    def _receive_caller(self, admission: Admission, sock: socket.socket) -> None:
        admitted = admission.authenticate(sock)
        if admitted is None:
            return
        connection, introduction = admitted
        self._connections.add(connection)
        session = self._admit(connection, introduction)
        if session is not None:
            session.run()
        with self._changed:
            self._connections.remove(connection)
            self._changed.notify_all()

    def _admit(self, connection: Connection, introduction: dict[str, Any]) -> Session | None:
        try:
            number = int(introduction["pair"])
            if not 0 <= number < MOST_PAIRS:
                raise ValueError(f"there is no pair {number}")
            return self._pair(number).admit(connection, introduction)
        except (KeyError, TypeError, ValueError) as error:
            sentence = f"{self.name} does not understand the introduction: {error}."
        except Refusal as refusal:
            sentence = str(refusal)
        with suppress(PeerLost):
            connection.refuse(sentence)
        return None

    def _pair(self, number: int) -> ServerPair:
        """The pair of that number, made where no worker has come for it before."""
        with self._changed:
            pair = self.pairs.get(number)
            if pair is None:
                folder, place = self._folder, (self._index, self._count)
                pair = ServerPair(
                    self.name,
                    *place,
                    self._rules,
                    keeps=self._keeps,
                    parts=ServerCheckpoint(folder, server_checkpoint.name_of(self.name, number), *place, self._run)
                    if folder
                    else None,
                    saves_itself=self._save_every_s > 0,
                    available=lambda: self._left_beside(number),
                    begin_s=self._begin_s,
                    on_end=self._pair_has_ended,
                    on_failure=self._fail,
                )
                if self._ends:
                    pair.stop()
                self.pairs[number] = pair
            return pair

    def _left_beside(self, number: int) -> int:
        """Bytes that are left for a pair when the others have taken what they will take with their first steps."""
        others = [pair for at, pair in list(self.pairs.items()) if at != number]
        return self._available() - sum(pair.reserved for pair in others)

    def _save_now_and_then(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._ends, timeout=self._save_every_s):
                    return
            self.save_for_itself()


PART_S = 1.0
"""What is left of the grace after SIGTERM once nobody is waited for any longer: to save, and to end."""


def serve(environment: Environment) -> None:
    """Returns when all trainers of all groups have said goodbye, or after SIGTERM: then as soon as no trainer is
    connected, since trainers that are stopped as well still finish their step and save. Raises EnvironmentProblem.
    """
    server = made(environment)
    place = next(place for place in environment.peers.ps if place.name == environment.replica)
    if environment.generation > 0 and environment.strategy == "downpour":
        server.resume()

    def stop(signum: int, frame: FrameType | None) -> None:
        server.finish_soon(environment.options.stop_grace_s - PART_S)

    signal.signal(signal.SIGTERM, stop)
    # Connections' threads add up chunks side by side: torch's own threads on top of them would only take turns.
    torch.set_num_threads(1)
    gc.freeze()  # no collection looks through torch's own objects again and again
    listener = tensor_connection.listen_at(place)
    try:
        with ServingReports(environment, server.figures, server.traffic):
            server.serve(listener)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is nothing left but to end, with 0
    server.save_for_itself()


def made(environment: Environment) -> ParameterServer:
    """The server that an environment describes."""
    options = environment.options
    servers = [place.name for place in environment.peers.ps]
    if environment.replica not in servers or environment.strategy not in ("sandblaster", "downpour"):
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to serve: TORCHYARD_PEERS names the parameter "
            f"servers {', '.join(servers) or 'of none'}, in the strategy {environment.strategy}.",
            "Set strategy.kind to sandblaster or downpour, or remove the pool of parameter servers.",
        )
    asynchronous = environment.strategy == "downpour"
    return ParameterServer(
        environment.replica,
        servers.index(environment.replica),
        len(servers),
        environment.key,
        Rules(
            groups=environment.groups if asynchronous else 1,
            max_staleness=options.max_staleness,
            backup_workers=0 if asynchronous else options.backup_workers,
            warm_start_steps=options.warm_start_steps if asynchronous else 0,
            in_rank_order=options.reduction_order == "rank",
        ),
        keeps=asynchronous,
        folder=Path(environment.checkpoints) if environment.checkpoints else None,
        run=environment.run_id,
        save_every_s=options.checkpoint_every_s if asynchronous else 0.0,
    )
