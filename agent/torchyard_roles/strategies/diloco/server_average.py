"""Averages all worker groups through parameter servers (`outer_server`), with the same interface as `GroupAverage`.

In each round a group pushes its pseudo-gradients to all servers, waits until the round is closed, and pulls the outer
parameters θ from the servers. The servers also hold the momentum m, and take the steps of the outer optimizer. With a
quantized encoding, a group's θ is the servers' sent parameters (`outer_slice`), and the group pulls the changes of the
sent parameters. Each fragment has rounds of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Callable, TypeVar

import torch

from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.listener import log
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.group_average import HOST_WAIT_S, SAY_WAITING_S, Outcome
from torchyard_roles.strategies.diloco.outer_server import ENDED, SERVICE
from torchyard_roles.strategies.diloco.outer_step import OuterParameters
from torchyard_roles.strategies.diloco.server_rounds import CHIEF
from torchyard_roles.strategies.diloco.slice_server import receive_tensors, send_tensors

RETRY_S = 10.0
"""Time in seconds for which a group tries to reconnect to a server after its connection broke."""
START_PAUSE_S = 0.1
PULL_PAUSE_S = 0.02
_Result = TypeVar("_Result")


class ServerAverage:
    """The exchanges of the first rank of a worker group with the servers.

    Args:
        name: The name of this process.
        outer: The outer parameters of this group. The momentum is empty, because the servers hold it.
        rest: Frozen parameters and buffers that are not averaged. The chief's group sends them to the first server.
        wire: The encoding of pseudo-gradients.
        fragments: The number of fragments of the model, which are averaged in turn.
        warmup_steps: The number of rounds in which all fragments are averaged together.
        restored: This group's part of the checkpoint of `restored_step`, from which the chief's group resumes.
    """

    def __init__(
        self,
        group: int,
        name: str,
        servers: Sequence[Peer],
        key: bytes,
        store: JoinStore,
        outer: OuterParameters,
        rest: PackedTensors,
        wire: ErrorFeedbackCodec,
        *,
        fragments: int = 1,
        warmup_steps: int = 0,
        restored: dict[str, Any] | None = None,
        restored_step: int = 0,
        host_wait_s: float = HOST_WAIT_S,
    ) -> None:
        self._group = group
        self._name = name
        self._servers = list(servers)
        self._key = key
        self._store = store
        self._outer = outer
        self._rest = rest
        self._wire = wire
        self._fragments = fragments
        self._warmup_steps = warmup_steps
        self.bases = [-1] * fragments
        """For each fragment, the round after which this group last loaded θ."""
        self._restored = restored
        self._restored_step = restored_step
        self._host_wait_s = host_wait_s
        self._process = ""
        self._links: dict[int, Connection] = {}
        """The connections for requests, by server number."""
        self._joined: Connection | None = None
        """The connection by which the first server detects the loss of this group."""
        self._server_processes: dict[int, str] = {}
        self._past = (0, 0)
        self._is_closed = False
        self._taken_rest: torch.Tensor | None = None
        self.lineage = ""
        """The ID of the training. Checkpoints contain this ID."""
        self.has_ended = False
        """Whether training has ended, because all groups that are not lost have finished."""

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received by requests so far."""
        links = list(self._links.values())
        sent, received = self._past
        return sent + sum(each.sent_bytes for each in links), received + sum(each.received_bytes for each in links)

    def close(self, *, has_stopped: bool = False) -> None:
        """Closes all connections.

        Args:
            has_stopped: Whether this group stops gracefully. In this case, groups that are waiting postpone their
                round.
        """
        self._is_closed = True
        joined, self._joined = self._joined, None
        if joined is not None:
            with suppress(PeerLost):
                joined.send({"op": "stopped" if has_stopped else "bye"})
            joined.close()
        for number, link in list(self._links.items()):
            link.cut()  # cut() wakes a thread that waits for an answer.
            self._drop(number)

    def start(self, round_: int, lineage: str) -> Outcome:
        """Joins the run, and loads the outer parameters from the servers unless this group keeps its own.

        The chief's group sends the outer parameters and momentum to the servers, unless the servers restore them from a
        checkpoint. A group that starts later waits until the current round has ended.

        Args:
            round_: The number of rounds in the restored checkpoint, or -1 if there is none.
            lineage: The ID of the training to which that checkpoint belongs.

        Raises:
            RolesError: A server is unreachable, or its parameters belong to another model.
        """
        self._process = os.urandom(8).hex()
        self._drop_all()
        if self._store.try_get(ENDED) is not None:
            self.has_ended = True
            return Outcome.ENDED
        bases = self.bases
        if round_ >= 0 and bases[0] < 0 and self._restored is not None:
            bases = self._restored_bases()
        if self._wait_for_begin():
            # The servers have begun with the outer parameters of this group.
            bases, lineage = self._restored_bases(), self.lineage
        self._restored = None
        answer = self._join()
        self.lineage = str(answer["lineage"])
        if answer["has_ended"]:
            self.has_ended = True
            return Outcome.ENDED
        rounds = [int(each) for each in answer["rounds"]]
        places = zip(answer["pushed"], bases, rounds)
        if lineage == self.lineage and all(pushed < base <= round_ for pushed, base, round_ in places):
            self.bases = bases
            # This group has pushed nothing since it last loaded θ, so it continues exactly from its own θ.
            return Outcome.KEPT
        self._take_rest()
        self._wire.forget()
        self.bases = [-1] * self._fragments
        self._outer.load(self._outer.empty(), [], 0)
        self._pull(dict(enumerate(rounds)))
        return Outcome.REPLACED

    def unpack_rest(self) -> None:
        """Loads the frozen parameters and unaveraged buffers that start() received, if any, into the model."""
        if self._taken_rest is not None:
            self._rest.unpack(self._taken_rest)
            self._taken_rest = None

    def average(
        self,
        differences: Sequence[torch.Tensor],
        weights: Sequence[float],
        *,
        has_finished: bool,
        fragment: int | None = None,
    ) -> Outcome:
        """Pushes this group's pseudo-gradients, and pulls the outer parameters when the round has closed.

        If this group is late and the quorum does not need it, the group pulls the outer parameters immediately, and its
        pseudo-gradients are averaged in the open round. This method may run in a background thread, because it does not
        change the model.

        Args:
            weights: The group's weight for each fragment.
            has_finished: Whether this group takes no further steps.
            fragment: The fragment that the pseudo-gradients belong to, or None for all fragments.

        Returns:
            AVERAGED or POSTPONED or, if the servers consider this group lost, REPLACED or ENDED.
        """
        numbers = self._outer.numbers(fragment)
        encoded = dict(zip(numbers, self._wire.encode(numbers, differences)))
        shares = dict(zip(range(self._fragments) if fragment is None else [fragment], weights))
        answer = self._exchange(encoded, shares, has_finished)
        while "gone" in answer:
            log(self._name, "the servers have continued without this worker group, which joins them again.")
            outcome = self.start(self._outer.round, self.lineage)
            if outcome is not Outcome.KEPT:
                return outcome
            answer = self._exchange(encoded, shares, has_finished)
        if "lost" in answer:
            raise RolesError(str(answer["lost"]))
        if "postponed" in answer:
            return Outcome.POSTPONED
        self._wire.keep_errors()
        self.has_ended = bool(answer["has_ended"])
        self._pull({int(number): int(round_) for number, round_ in answer["rounds"]})
        return Outcome.AVERAGED

    def save(self, step: int) -> None:
        """Makes all servers save their parts of the chief's checkpoint. Raises RolesError if a part cannot be saved."""
        answer = self._repeated(0, lambda link: _asked(link, {"op": "save", "step": step}))
        if answer["problem"]:
            raise RolesError(f"θ and m of step {step} could not be saved: {answer['problem']}.")

    def _wait_for_begin(self) -> bool:
        """Waits until the servers have outer parameters and momentum. The chief's group provides these to the servers.

        Returns:
            Whether this group sent its own outer parameters to the servers.
        """
        began, is_logged = time.monotonic(), False
        while True:
            try:
                if _asked(self._link(0), {"op": "about"})["has_begun"]:
                    return False
                if self._group == CHIEF:
                    return self._begin()
                why = "the chief's worker group has not yet begun."
            except PeerLost as error:
                # A server that was restarted during training has lost the outer parameters, so the groups cannot
                # continue with it.
                if self.lineage:
                    raise
                why = error.message
                self._drop_all()
                self._server_processes = {}
            waited_s = time.monotonic() - began
            if waited_s > self._host_wait_s:
                raise RolesError(f"The parameter servers cannot begin: {why}")
            if waited_s > SAY_WAITING_S and not is_logged:
                log(self._name, f"waiting for the parameter servers: {why}")
                is_logged = True
            time.sleep(START_PAUSE_S)

    def _begin(self) -> bool:
        """Makes the servers load their checkpoint or, if that is impossible, sends them this group's outer parameters.

        Returns:
            Whether the servers have begun with the outer parameters of this group.

        Raises:
            PeerLost: A server is unreachable.
        """
        links = [self._link(number) for number in range(len(self._servers))]
        restored = self._restore(links) if self._restored is not None else None
        lineage = restored or os.urandom(8).hex()
        if restored is None:
            self._give(links, lineage)
        _asked(links[0], {"op": "open", "lineage": lineage, "shapes": self._shapes()})
        self.lineage = lineage
        return restored is None

    def _restore(self, links: Sequence[Connection]) -> str | None:
        """Makes the servers load their parts of a checkpoint, and returns the ID of its training.

        Returns None if the parts do not belong together, or their shapes differ from those of this group's model.
        """
        answers = [_asked(link, {"op": "restore", "step": self._restored_step}) for link in links]
        if not all("fragments" in answer for answer in answers):
            return None
        rounds = [[round_ for round_, _ in answer["fragments"]] for answer in answers]
        if any(each != rounds[0] for each in rounds) or len({answer["lineage"] for answer in answers}) > 1:
            return None
        of = len(links)
        for number, answer in enumerate(answers):
            if [shapes for _, shapes in answer["fragments"]] != self._shapes(number, of):
                return None
        return str(answers[0]["lineage"])

    def _restored_bases(self) -> list[int]:
        """Returns, for each fragment, the round whose θ the checkpoint contains, or 0 if there is no checkpoint."""
        part = self._restored
        if part is not None and part["bases"]:
            return [int(each) for each in part["bases"]]
        # The checkpoint was saved in a run without servers, in which all groups average the fragments in turn.
        round_, warmup = int(part["round"]) if part is not None else 0, self._warmup_steps
        if round_ <= warmup:
            return [round_] * self._fragments
        last = self._fragments - 1
        return [warmup + (round_ - warmup + last - number) // self._fragments for number in range(self._fragments)]

    def _give(self, links: Sequence[Connection], lineage: str) -> None:
        restored = self._restored
        theta = restored["theta"] if restored is not None else [flat.gather() for flat in self._outer.flats]
        momentum = self._outer.empty()
        if restored is not None:
            if restored["momentum"]:
                momentum = restored["momentum"]
            else:
                log(self._name, f"the servers have no parts of step {self._restored_step}, so m begins with 0.")
        for number, link in enumerate(links):
            rest = self._rest.bytes if number == 0 else 0
            fragments = list(zip(self._restored_bases(), self._shapes(number, len(links))))
            link.send({"op": "begin", "lineage": lineage, "fragments": fragments, "rest": rest})
            for fragment in range(self._fragments):
                own = self._outer.numbers(fragment)
                of_fragment = [each[flat] for each in (theta, momentum) for flat in own]
                send_tensors(link, self._own_slices(number, of_fragment))
            if rest:
                link.send({}, self._rest.packed())
            link.receive()

    def _join(self) -> dict[str, Any]:
        """Registers this group with the first server, and returns the server's answer."""
        if self._joined is not None:
            self._joined.close()
        connection = self._connect(0)
        connection.send({"op": "join", "shapes": self._shapes()})
        answer = connection.receive()
        if "refused" in answer:
            connection.close()
            raise ProtocolError(str(answer["refused"]))
        self._joined = connection
        return answer

    def _take_rest(self) -> None:
        if self._rest.bytes:
            rest = torch.empty(self._rest.bytes, dtype=torch.uint8, device="cpu")

            def take(link: Connection) -> None:
                link.send({"op": "rest"})
                link.receive()
                link.receive_into(rest)

            self._repeated(0, take)
            self._taken_rest = rest

    def _exchange(
        self, encoded: Mapping[int, torch.Tensor], weights: Mapping[int, float], has_finished: bool
    ) -> dict[str, Any]:
        """Pushes encoded pseudo-gradients to all servers, and returns the first server's answer after the round.

        Args:
            encoded: The encoded pseudo-gradients by the number of their flat tensor.
            weights: The group's weights by fragment. Only these fragments are pushed.
        """
        for fragment in weights:
            of_fragment = {number: encoded[number] for number in self._outer.numbers(fragment)}
            for number in range(len(self._servers)):
                self._repeated(number, partial(self._push, number, fragment, of_fragment))
        differences = [[fragment, self.bases[fragment], weight] for fragment, weight in weights.items()]
        commit = {"op": "commit", "differences": differences, "has_finished": has_finished}
        return self._repeated(0, lambda link: _asked(link, commit))

    def _push(self, number: int, fragment: int, encoded: Mapping[int, torch.Tensor], link: Connection) -> None:
        link.send({"op": "push", "fragment": fragment, "base": self.bases[fragment]})
        send_tensors(link, self._wire.cut(list(encoded), list(encoded.values()), number, len(self._servers)))
        link.receive()

    def _pull(self, rounds: Mapping[int, int]) -> None:
        """Loads the outer parameters of fragments from all servers.

        Args:
            rounds: By fragment, the oldest round whose outer parameters may be loaded.
        """
        theta = list(self._outer.theta)
        bases = list(self.bases)
        for fragment, at_least in rounds.items():
            numbers = self._outer.numbers(fragment)
            pulled = [theta[number].clone() for number in numbers]
            bases[fragment] = self._pull_fragment(fragment, pulled, at_least)
            for number, values in zip(numbers, pulled):
                theta[number] = values
        self.bases = bases
        self._outer.load(theta, [], self._round_after(list(rounds)))

    def _round_after(self, pulled: Sequence[int]) -> int:
        """Returns this group's round number after pulling some fragments. The number determines the next fragment.

        Unless this group is late, the number is the sum of all fragments' rounds, with warmup rounds counted once.
        """
        warmup = self._warmup_steps
        if len(pulled) < self._fragments:
            (fragment,) = pulled
            return warmup + (self.bases[fragment] - warmup - 1) * self._fragments + fragment + 1
        if min(self.bases) < warmup:
            return min(self.bases)
        return warmup + sum(base - warmup for base in self.bases)

    def _pull_fragment(self, fragment: int, theta: Sequence[torch.Tensor], at_least: int) -> int:
        """Pulls a fragment from all servers until all slices are of the same round, and returns that round."""
        rounds = [self.bases[fragment]] * len(self._servers)
        while min(rounds) < max(at_least, max(rounds)):
            # If a round closes in the meantime, servers that had already sent the parameters of the previous round are
            # asked again.
            for number, round_ in enumerate(rounds):
                if round_ < max(at_least, max(rounds)):
                    parts = self._own_slices(number, theta)
                    rounds[number] = self._repeated(number, partial(self._pulled, fragment, parts, round_))
            if min(rounds) < max(rounds):
                time.sleep(PULL_PAUSE_S)
        return rounds[0]

    def _pulled(self, fragment: int, theta: Sequence[torch.Tensor], known: int, link: Connection) -> int:
        """Updates one server's slices of the outer parameters from round `known` to the server's current round.

        Returns the current round.
        """
        link.send({"op": "pull", "fragment": fragment, "round": known})
        answer = link.receive()
        if "changes" not in answer:
            receive_tensors(link, theta)
            return int(answer["round"])
        codec = self._wire.codec
        changes = [
            [torch.empty(codec.size(each.numel(), each.dtype), dtype=torch.uint8, device="cpu") for each in theta]
            for _ in range(int(answer["changes"]))
        ]
        for change in changes:
            receive_tensors(link, change)
        # θ is changed only after all changes are received, because the request is repeated if its connection breaks.
        for change in changes:
            for encoded, values in zip(change, theta):
                codec.accumulate(encoded, values)
        return int(answer["round"])

    def _own_slices(self, number: int, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the slices of flat tensors that server `number` holds."""
        of = len(self._servers)
        return [each[self._wire.codec.cut(each.numel(), number, of)] for each in tensors]

    def _shapes(self, number: int = 0, of: int = 1) -> list[list[list[Any]]]:
        """Returns, by fragment, the size and dtype of each slice of a server, and whether it contains buffers."""
        found: list[list[list[Any]]] = [[] for _ in range(self._fragments)]
        for flat in self._outer.flats:
            part = self._wire.codec.cut(flat.elements, number, of)
            found[flat.fragment].append([part.stop - part.start, str(flat.dtype), flat.is_buffer])
        return found

    def _connect(self, number: int) -> Connection:
        """Opens a connection to a server. Raises PeerLost if the server is unreachable or has been restarted."""
        introduction = {"name": self._name, "service": SERVICE, "group": self._group, "process": self._process}
        server = self._servers[number]
        if self._is_closed:  # After close(), a background thread must not join the run again.
            raise PeerLost(server.name, server.address, "this worker group has left")
        connection, answer = Connection.connect(server, self._key, introduction, RETRY_S)
        if self._server_processes.setdefault(number, str(answer["process"])) != answer["process"]:
            connection.close()
            raise PeerLost(server.name, server.address, "it was restarted, and all groups start again")
        return connection

    def _link(self, number: int) -> Connection:
        if number not in self._links:
            self._links[number] = self._connect(number)
        return self._links[number]

    def _drop(self, number: int) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            link.close()
            self._past = self._past[0] + link.sent_bytes, self._past[1] + link.received_bytes

    def _drop_all(self) -> None:
        for number in list(self._links):
            self._drop(number)

    def _repeated(self, number: int, call: Callable[[Connection], _Result]) -> _Result:
        """Makes a request, and repeats it over a new connection if the connection breaks.

        Raises PeerLost if the server remains unreachable.
        """
        try:
            return call(self._link(number))
        except PeerLost:
            self._drop(number)
            return call(self._link(number))


def _asked(link: Connection, header: dict[str, Any]) -> dict[str, Any]:
    link.send(header)
    return link.receive()
