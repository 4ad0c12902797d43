"""The process of a parameter server: one listener for all pairs of models and optimizers.

A worker opens one connection per pair, and its introduction names the pair. The process exits when all pairs have
ended.
"""

from __future__ import annotations

import gc
import signal
import socket
import threading
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
from torchyard_roles.server_reports import ServerReports
from torchyard_roles.strategies.parameter_server import server_checkpoint
from torchyard_roles.strategies.parameter_server.messages import Refusal
from torchyard_roles.strategies.parameter_server.push_acceptance import Rules
from torchyard_roles.strategies.parameter_server.server_pair import ServerPair, ServerSettings
from torchyard_roles.strategies.parameter_server.worker_session import Session

MOST_PAIRS = 1000
PARTING_S = 5.0
"""Longest time in seconds to wait at the end for connection threads, which may be saving."""


class ParameterServer:
    """A parameter server, with a shard for each pair of a model and an optimizer."""

    def __init__(self, settings: ServerSettings, key: bytes) -> None:
        self.name = settings.name
        self.settings = settings
        self.pairs: dict[int, ServerPair] = {}
        """The pairs for which a worker has connected, by number."""
        self._key = key
        self._connections = Connections()
        self._changed = threading.Condition()
        self._ends = False
        self._failure: Exception | None = None

    def serve(self, listener: socket.socket) -> None:
        """Handles requests until all workers of all groups have left or stop() is called, and then closes `listener`.

        Raises RolesError if an error made a shard inconsistent.
        """
        if self.settings.folder is not None and self.settings.save_every_s > 0:
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
            raise RolesError(f"{self.name} cannot continue: {self._failure}.") from self._failure

    def stop(self) -> None:
        """Ends serve(). This method is thread-safe and may be called repeatedly."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        for pair in list(self.pairs.values()):
            pair.stop()

    def finish_soon(self, within_s: float) -> None:
        """Ends serve() once no worker is connected, but after `within_s` seconds at the latest.

        A signal handler calls this method. A separate thread waits, because the handler's thread may hold the lock.
        """
        threading.Thread(target=self._finish, args=(within_s,), name=f"{self.name} stop", daemon=True).start()

    def _finish(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or not self._connections, timeout=within_s)
        self.stop()

    def _pair_has_ended(self) -> None:
        if all(pair.has_ended for pair in list(self.pairs.values()) if pair.shard is not None):
            self.stop()

    def _fail(self, error: Exception) -> None:
        """Records an error that ended a session in the middle of a step. serve() ends and raises this error."""
        self._failure = self._failure or error
        self.stop()

    def figures(self) -> dict[str, float]:
        """Returns this server's metrics by their names in `metrics_report.METRICS`.

        The numbers of clients, dropped rounds and skipped rounds are totals over all pairs. Other metrics are maxima.
        """
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
        """Returns the number of bytes sent and received so far."""
        return sum(self._connections.traffic())

    def save_for_itself(self) -> None:
        """Saves the state of all pairs that an asynchronous server needs for its own restart."""
        for pair in list(self.pairs.values()):
            pair.save_for_itself()

    def resume(self) -> bool:
        """Restores the newest parts that this run saved, and returns whether there were any.

        Called after a restart, before serve().
        """
        folder = self.settings.folder
        numbers = server_checkpoint.numbers(folder, self.name) if folder is not None else []
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
        """Returns the pair with this number, and creates it if it does not exist."""
        with self._changed:
            pair = self.pairs.get(number)
            if pair is None:
                pair = self.pairs[number] = ServerPair(
                    self.settings,
                    number,
                    available=lambda: self._left_beside(number),
                    on_end=self._pair_has_ended,
                    on_failure=self._fail,
                )
                if self._ends:
                    pair.stop()
            return pair

    def _left_beside(self, number: int) -> int:
        """Returns the free memory in bytes for a pair.

        The memory that other pairs will allocate in their first steps is subtracted.
        """
        others = [pair for at, pair in list(self.pairs.items()) if at != number]
        return self.settings.available() - sum(pair.reserved for pair in others)

    def _save_now_and_then(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._ends, timeout=self.settings.save_every_s):
                    return
            self.save_for_itself()


EXIT_RESERVE_S = 1.0
"""Time in seconds reserved for a save and the exit at the end of the grace period after SIGTERM."""


def serve(environment: Environment) -> None:
    """Runs this process as a parameter server until all trainers of all groups have left.

    After SIGTERM the process exits once no trainer is connected, because stopped trainers still finish their step and
    save. Raises EnvironmentProblem if the server cannot start.
    """
    server = create_server(environment)
    place = next(place for place in environment.peers.ps if place.name == environment.replica)
    if environment.generation > 0 and server_checkpoint.saves_own_state(environment.strategy):
        server.resume()

    def stop(signum: int, frame: FrameType | None) -> None:
        server.finish_soon(environment.stop_grace_s - EXIT_RESERVE_S)

    signal.signal(signal.SIGTERM, stop)
    # The connection threads already sum chunks in parallel. Additional torch threads would only compete with them.
    torch.set_num_threads(1)
    gc.freeze()  # freeze() exempts torch's objects from garbage collection.
    listener = tensor_connection.listen_at(place)
    try:
        with ServerReports(environment, server.figures, server.traffic):
            server.serve(listener)
    finally:
        # Another SIGTERM must not interrupt the save and the exit.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.save_for_itself()


def create_server(environment: Environment) -> ParameterServer:
    """Creates the server that the environment describes. Raises EnvironmentProblem if the environment is invalid."""
    options = environment.options
    servers = [place.name for place in environment.peers.ps]
    if environment.replica not in servers or environment.strategy not in ("sandblaster", "downpour"):
        raise EnvironmentProblem(
            f"{environment.replica or 'This process'} has nothing to serve: TORCHYARD_PEERS names the parameter "
            f"servers {', '.join(servers) or 'of none'}, in the strategy {environment.strategy}.",
            "Set strategy.kind to sandblaster or downpour, or remove the pool of parameter servers.",
        )
    asynchronous = environment.strategy == "downpour"
    rules = Rules(
        groups=environment.groups if asynchronous else 1,
        max_staleness=options.max_staleness,
        backup_workers=0 if asynchronous else options.backup_workers,
        warm_start_steps=options.warm_start_steps if asynchronous else 0,
        in_rank_order=options.reduction_order == "rank",
    )
    settings = ServerSettings(
        environment.replica,
        servers.index(environment.replica),
        len(servers),
        rules,
        keeps=asynchronous,
        folder=Path(environment.checkpoints) if environment.checkpoints else None,
        run=environment.run_id,
        save_every_s=options.checkpoint_every_s if server_checkpoint.saves_own_state(environment.strategy) else 0.0,
    )
    return ParameterServer(settings, environment.key)
