"""Averages the pseudo-gradients of all worker groups by a reduce-scatter and an all-gather of their first ranks.

Each member of a round owns a slice. It receives this slice of every other member's pseudo-gradients, and sends back the
weighted average. With G members and M bytes of pseudo-gradients, a group sends 2M(G−1)/G bytes per round and receives
as many. If there are reducers (`averaging_reducer`), the slices belong to the reducers, and a group sends and receives
M bytes. Either all members apply the average of a round or none of them does (`round_state`): the round is committed in
the join store when each member has received all slices. Members that are lost before the commit are excluded from the
next attempt. Lost members return at the end of a later round, with the outer parameters θ and the momentum m of a
current member.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import torch

from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.listener import log
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.outer_step import OuterParameters
from torchyard_roles.strategies.diloco.round_state import DONE, HERE, KEY, REDUCER, STOPPED, Announcement, RoundState
from torchyard_roles.strategies.diloco.slice_exchange import Calls, SliceExchange
from torchyard_roles.strategies.diloco.slice_server import (
    Contribution,
    Mailbox,
    SliceServer,
    Totals,
    receive_tensors,
    send_tensors,
)

CHIEF = 0
HOST_WAIT_S = 600.0
"""Longest time in seconds to wait for the other groups at the start, and for the chief's group."""
RECOVER_S = 12.0
"""Longest time in seconds for which a restarted chief waits for the other groups, if none of them trains."""
LOOK_EVERY_S = 0.1
PROBE_EVERY_S = 1.0
SAY_WAITING_S = 10.0


class Outcome(enum.IntEnum):
    """The effect of start() or of a round on a group's parameters."""

    KEPT = 0
    """The parameters are still those of the restored checkpoint or of the script."""
    AVERAGED = 1
    """The parameters are averaged with those of the other groups."""
    REPLACED = 2
    """The outer parameters and the momentum were replaced by those of another group."""
    POSTPONED = 3
    """A member has stopped. The round is attempted again after the next step, unless this group stops too."""
    ENDED = 4
    """The other groups have finished training without this group."""


class GroupAverage:
    """The exchanges of the first rank of a worker group with the first ranks of the other groups.

    Args:
        own: The address of this group's first rank, at which `listener` listens.
        rest: Frozen parameters and buffers that are not averaged. A group receives them together with the outer
            parameters.
        wire: The encoding of pseudo-gradients and averages.
        fragments: The number of fragments of the model, which are averaged in turn.
        reducers: The number of reducers. The reducers that can be reached average in place of the groups.
        start_wait_s: Longest time in seconds to wait for groups that have not started. The default is `host_wait_s`.
    """

    def __init__(
        self,
        group: int,
        groups: int,
        own: Peer,
        listener: socket.socket,
        key: bytes,
        store: JoinStore,
        outer: OuterParameters,
        rest: PackedTensors,
        wire: ErrorFeedbackCodec,
        *,
        fragments: int = 1,
        reducers: int = 0,
        host_wait_s: float = HOST_WAIT_S,
        start_wait_s: float | None = None,
    ) -> None:
        self._group = group
        self._groups = groups
        self._own = own
        self._store = store
        self._outer = outer
        self._rest = rest
        self._wire = wire
        self._fragments = fragments
        self._reducers = reducers
        self._totals = Totals(0.0, 0.0, False)
        """The totals over all members' contributions, from the last attempt that was complete."""
        self.divergence = 0.0
        """The relative root mean square distance of the members' pseudo-gradients from their average in the last round.

        It is 0 if all members' pseudo-gradients are equal, and 1 if their average is 0.
        """
        self._taken_rest: torch.Tensor | None = None
        self._host_wait_s = host_wait_s
        self._start_wait_s = host_wait_s if start_wait_s is None else start_wait_s
        self._process = ""
        self._state: RoundState | None = None
        self._mailbox = Mailbox()
        self._calls = Calls(key, own, group)
        self._server = SliceServer(listener, key, own.name, self._mailbox, outer, rest, wire)
        store.watch(KEY, self._see)

    @property
    def lineage(self) -> str:
        """The ID of the training. Checkpoints contain this ID."""
        return self._state.lineage if self._state is not None else ""

    @property
    def has_ended(self) -> bool:
        """Whether training has ended, because all groups that are not lost have finished."""
        return self._state is not None and self._state.has_ended

    @property
    def weight(self) -> float:
        """The sum of all members' weights in the last committed round."""
        return self._totals.weight

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received so far."""
        called, served = self._calls.traffic(), self._server.traffic()
        return called[0] + served[0], called[1] + served[1]

    def close(self, *, has_stopped: bool = False) -> None:
        """Closes all connections and ends all threads.

        Args:
            has_stopped: Whether this group stops gracefully. In this case, members that are waiting postpone their
                round.
        """
        if has_stopped and self._process:
            with suppress(RolesError):
                self._store.set(f"{STOPPED}/{self._group}", self._process.encode())
        self._calls.close()
        self._server.close()

    def start(self, round_: int, lineage: str) -> Outcome:
        """Becomes a member, and loads another group's outer parameters and momentum unless this group keeps its own.

        The chief's group defines the first members, once all groups can be reached or after `start_wait_s`. If a group
        starts later, it becomes a member at the end of the current round.

        Args:
            round_: The number of rounds in the restored checkpoint, or -1 if there is none.
            lineage: The ID of the training to which that checkpoint belongs.

        Raises:
            RolesError: No group that has parameters can be reached, or the join store is lost.
        """
        self._process = self._server.process = os.urandom(8).hex()
        announcement = Announcement(self._process, *self._own, round_, lineage)
        self._store.set(f"{HERE}/{self._group}", announcement.encoded())
        began, probed_at, is_logged = time.monotonic(), 0.0, False
        while True:
            self._refresh()
            state = self._state
            if state is not None and self._is_member(state):
                if self._group in state.keep and state.round == round_:
                    return Outcome.KEPT
                if self._take(state):
                    return Outcome.REPLACED
            elif state is not None and state.has_ended and self._group != CHIEF:
                return Outcome.ENDED
            elif self._group == CHIEF and time.monotonic() - probed_at > PROBE_EVERY_S:
                if not self._trains(state):
                    self._define_members(announcement)
                    if round_ < 0:
                        round_ = 0  # Round 0 begins with the chief's parameters.
                probed_at = time.monotonic()
            waited_s = time.monotonic() - began
            if waited_s > self._host_wait_s + RECOVER_S:
                raise self._lost_chief("no worker group with parameters to start from can be reached")
            if waited_s > SAY_WAITING_S and not is_logged:
                log(self._own.name, "waiting for the other worker groups, to start with their parameters.")
                is_logged = True
            time.sleep(LOOK_EVERY_S)

    def unpack_rest(self) -> None:
        """Loads the frozen parameters and unaveraged buffers that another group sent, if any, into the model."""
        if self._taken_rest is not None:
            self._rest.unpack(self._taken_rest)
            self._taken_rest = None

    def average(
        self,
        differences: Sequence[torch.Tensor],
        weight: float,
        *,
        has_finished: bool,
        fragment: int | None = None,
    ) -> Outcome:
        """Replaces this group's pseudo-gradients by the average over all members, once all members call this method.

        This method may run in a background thread, because it does not change the model.

        Args:
            fragment: The fragment to which the pseudo-gradients belong, or None for the whole model.
            has_finished: Whether this group takes no further steps.

        Returns:
            AVERAGED or POSTPONED or, if the other groups consider this group lost, REPLACED or ENDED.
        """
        numbers = self._outer.numbers(fragment)
        encoded = self._wire.encode(numbers, differences)
        square = self._square(numbers, differences)
        while True:
            self._refresh()
            state = self._state
            assert state is not None
            if not self._is_member(state):
                log(self._own.name, "the other worker groups have continued without this one, which joins them again.")
                found = self.start(self._outer.round, self.lineage)
                if found is not Outcome.KEPT:
                    return found
                continue
            if state.is_idle and has_finished:
                self._wait_for_chief(state)
            averages = self._wire.empty(numbers)
            outcome = self._attempt(state, fragment, encoded, averages, Contribution(weight, has_finished, square))
            if outcome is Outcome.AVERAGED:
                self._wire.decode(numbers, averages, differences)
                self._measure(self._square(numbers, differences))
            if outcome is not None:
                return outcome

    @property
    def members(self) -> int:
        """The number of groups that take part in the current round."""
        return len(self._state.members) if self._state is not None else 0

    def _square(self, numbers: Sequence[int], values: Sequence[torch.Tensor]) -> float:
        """Returns the sum of the squared values of flat tensors, except flat tensors of buffers."""
        pairs = zip(numbers, values)
        return sum(float(each.dot(each)) for number, each in pairs if not self._outer.flats[number].is_buffer)

    def _measure(self, average_square: float) -> None:
        square = self._totals.square
        self.divergence = max(0.0, 1 - average_square / square) ** 0.5 if square else 0.0

    def _attempt(
        self,
        state: RoundState,
        fragment: int | None,
        encoded: Sequence[torch.Tensor],
        averages: Sequence[torch.Tensor],
        own: Contribution,
    ) -> Outcome | None:
        """Attempts the round of `state`, and writes the encoded averages to `averages`.

        Returns the outcome, or None if the attempt was abandoned.
        """
        if self._wire.average_errors and self._group == CHIEF and state.reducers:
            self._seed_errors(state)
        epoch, mailbox, of = state.epoch, self._mailbox, len(state.members)
        numbers = self._outer.numbers(fragment)
        owners = [each for _, each in sorted(state.owners.items())]
        own_number = next((number for number, each in enumerate(owners) if each.process == self._process), None)

        def share(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
            return self._wire.cut_messages(numbers, tensors, number, len(owners))

        self._calls.end_all_but(each.owner for each in (*state.members.values(), *owners))
        mailbox.advance(epoch)
        to_average: list[tuple[tuple[int, slice], torch.Tensor]] = []
        averaged = 0
        if own_number is not None:
            self._wire.begin_average(numbers, own_number, of)
            to_average = list(zip(self._wire.messages(numbers, own_number, of), share(averages, own_number)))
            own.messages = share(encoded, own_number)
            mailbox.put(epoch, self._group, own)
        header = {
            "op": "slice",
            "epoch": epoch,
            "fragment": fragment,
            "of": len(owners),
            "weight": own.weight,
            "has_finished": own.has_finished,
            "square": own.square,
        }
        if state.reducers:
            header |= {"members": len(state.members), "committed": state.committed, "shapes": self._shapes()}
        exchanges = {
            each.process: SliceExchange(
                self._calls,
                each.owner,
                {**header, "number": number},
                share(encoded, number),
                share(averages, number),
                self._wake,
            )
            for number, each in enumerate(owners)
            if number != own_number
        }
        watched = {
            each.process: SliceExchange(self._calls, each.owner, None, (), (), self._wake)
            for each in state.members.values()
            if each.process not in exchanges and each.process != self._process
        }
        is_counted = False

        def lost() -> dict[str, PeerLost | ProtocolError]:
            pairs = (*exchanges.items(), *watched.items())
            return {process: each.lost for process, each in pairs if each.lost is not None}

        def is_complete() -> bool:
            if own_number is not None and (averaged < len(to_average) or len(mailbox.contributions(epoch)) < of):
                return False
            return all(each.has_received for each in exchanges.values())

        def is_due() -> bool:
            return (
                self._has_moved(epoch)
                or mailbox.due(epoch, of) is not None
                or (not is_counted and is_complete())
                or bool(lost())
            )

        try:
            while not self._has_moved(epoch):
                while (parts := mailbox.due(epoch, of)) is not None:
                    message, average = to_average[averaged]
                    self._wire.average(message, parts, average)
                    mailbox.publish(epoch, average)
                    averaged += 1
                if not is_counted and is_complete():
                    is_counted = True
                    if own_number is None:
                        self._totals = Totals(*next(iter(exchanges.values())).totals)
                    else:
                        self._totals = Totals.of(mailbox.contributions(epoch).values())
                    if self._store.add(f"{DONE}/{epoch}", 1) == of:
                        self._commit(state)
                missing = lost()
                if missing and not self._has_moved(epoch):
                    self._go_on_without(state, missing)
                with mailbox.changed:
                    is_quiet = not mailbox.changed.wait_for(is_due, PROBE_EVERY_S)
                if is_quiet:
                    # The watch may report a change late, for example after a reconnection to the join store.
                    self._refresh()
        finally:
            for each in (*exchanges.values(), *watched.values()):
                each.cancel()
        return self._outcome(epoch)

    def average_errors(self) -> dict[int, tuple[int, torch.Tensor]]:
        """Returns the encoding errors of averages, for this group's part of a checkpoint.

        The chief's part contains the errors of all reducers, or zeros for a reducer that is lost. If there are no
        reducers, a group's part contains the errors of the group's own slice.
        """
        state = self._state
        if state is None or not state.reducers or not self._wire.has_feedback or self._group != CHIEF:
            return self._wire.average_errors
        found = self._outer.empty()
        for each in state.reducers.values():
            try:
                with closing(self._calls.connect(*each.owner)) as connection:
                    connection.send({"op": "errors", "committed": state.committed})
                    places = connection.receive()["errors"]
                    parts = [found[number][start : start + count] for number, start, count, _ in places]
                    receive_tensors(connection, parts)
            except (PeerLost, ProtocolError) as error:
                log(self._own.name, f"{error.message} The checkpoint is saved without the errors of its encodings.")
        return {number: (0, values) for number, values in enumerate(found)}

    def _seed_errors(self, state: RoundState) -> None:
        """Sends the encoding errors of a restored checkpoint to the reducers."""
        whole = self._outer.empty()
        for number, (start, values) in self._wire.average_errors.items():
            whole[number][start : start + values.numel()] = values
        self._wire.seed({})
        for number, (_, each) in enumerate(sorted(state.reducers.items())):
            parts, places = [], []
            for flat, values in enumerate(whole):
                own = self._wire.codec.cut(values.numel(), number, len(state.reducers))
                parts.append(values[own])
                places.append([flat, own.start, own.stop - own.start, str(values.dtype)])
            try:
                with closing(self._calls.connect(*each.owner)) as connection:
                    connection.send({"op": "seed", "errors": places, "shapes": self._shapes()})
                    send_tensors(connection, parts)
                    connection.receive()
            except (PeerLost, ProtocolError) as error:
                log(self._own.name, f"{error.message} It begins without the errors of the checkpoint.")

    def _shapes(self) -> list[list[Any]]:
        """Returns the size, dtype, kind and fragment of each flat tensor, for the reducers."""
        return [[each.elements, str(each.dtype), each.is_buffer, each.fragment] for each in self._outer.flats]

    def _outcome(self, epoch: int) -> Outcome | None:
        state = self._state
        assert state is not None
        if state.committed == epoch:
            return Outcome.AVERAGED
        return Outcome.POSTPONED if state.postponed == epoch else None

    def _commit(self, state: RoundState) -> None:
        joining, reducers = self._joining(state), self._joining_reducers(state)
        for each in (*joining.values(), *reducers.values()):
            log(self._own.name, f"{each.name} on {each.address} takes part from round {state.round + 2}.")
        has_finished = self._totals.has_finished
        after = state.after_round(joining, has_finished=has_finished, fragments=self._fragments, reducers=reducers)
        self._replace(state, after)
        with suppress(RolesError):
            self._store.delete(f"{DONE}/{state.epoch - 1}")

    def _go_on_without(self, state: RoundState, lost: Mapping[str, PeerLost | ProtocolError]) -> None:
        """Abandons an attempt in which processes were lost, or commits it if all members had received the average."""
        if self._store.add(f"{DONE}/{state.epoch}", 0) >= len(state.members):
            self._commit(state)
            return
        has_stopped = False
        for group, each in state.members.items():
            if each.process not in lost:
                continue
            stopped = self._store.try_get(f"{STOPPED}/{group}") == each.process.encode()
            has_stopped = has_stopped or stopped
            why = f"{each.name} has stopped." if stopped else lost[each.process].message
            log(self._own.name, f"{why} Training continues without worker group {group} until it is back.")
        after = state.without(list(lost), is_postponed=has_stopped)
        for each in state.reducers.values():
            if each.process in lost:
                who = "The other reducers average" if after.reducers else "The worker groups average by themselves"
                log(self._own.name, f"{lost[each.process].message} {who} until {each.name} is back.")
        self._replace(state, after)

    def _joining_reducers(self, state: RoundState) -> dict[int, Announcement]:
        """Returns the reducers that have announced themselves, do not take part yet and have not been lost since."""
        found = {}
        for number in range(self._reducers):
            text = None if number in state.reducers else self._store.try_get(f"{REDUCER}/{number}")
            if text is not None and (each := Announcement.decoded(text)).process not in state.dropped:
                found[number] = each
        return found

    def _joining(self, state: RoundState) -> dict[int, Announcement]:
        """Returns the groups that have announced themselves, are not members and have not been lost since."""
        found = {}
        for group in range(self._groups):
            text = None if group in state.members else self._store.try_get(f"{HERE}/{group}")
            if text is not None and (each := Announcement.decoded(text)).process not in state.dropped:
                found[group] = each
        return found

    def _wait_for_chief(self, state: RoundState) -> None:
        log(self._own.name, "training has finished; waiting for the chief's worker group, which saves the result.")
        deadline = time.monotonic() + self._host_wait_s
        while not self._joining(state) and not self._has_moved(state.epoch):
            if time.monotonic() > deadline:
                raise self._lost_chief("its worker group did not come back")
            time.sleep(LOOK_EVERY_S)
            self._refresh()

    def _define_members(self, own: Announcement) -> None:
        """Sets the members of the first round, or of the next round if all members were lost."""
        before = self._state
        here = {CHIEF: own}
        reducers: dict[int, Announcement] = {}
        deadline = time.monotonic() + (self._start_wait_s if before is None else RECOVER_S)
        while len(here) + len(reducers) < self._groups + self._reducers and time.monotonic() < deadline:
            for group in range(1, self._groups):
                text = self._store.try_get(f"{HERE}/{group}") if group not in here else None
                each = Announcement.decoded(text) if text is not None else None
                if each is not None and self._calls.has_begun(each.peer) is not None:
                    here[group] = each
            reducers = self._reachable_reducers(before)
            time.sleep(LOOK_EVERY_S)
        alike = {group: each for group, each in here.items() if each.lineage == own.lineage and each.round >= 0}
        keep: tuple[int, ...]
        if own.round < 0:
            source, round_, keep, lineage = CHIEF, 0, (CHIEF,), os.urandom(8).hex()
        else:
            round_, lineage = max(each.round for each in alike.values()), own.lineage
            keep = tuple(group for group in sorted(alike) if alike[group].round == round_)
            source = keep[0]
        dropped = before.dropped if before is not None else ()
        epoch = before.epoch + 1 if before is not None else 1
        members = {group: here[group] for group in sorted(here)}
        state = RoundState(epoch, round_, lineage, members, source, keep, dropped=dropped, reducers=reducers)
        self._replace(before, state)

    def _reachable_reducers(self, before: RoundState | None) -> dict[int, Announcement]:
        dropped = before.dropped if before is not None else ()
        found = {}
        for number in range(self._reducers):
            text = self._store.try_get(f"{REDUCER}/{number}")
            each = Announcement.decoded(text) if text is not None else None
            if each is not None and each.process not in dropped and self._calls.has_begun(each.peer) is not None:
                found[number] = each
        return found

    def _trains(self, state: RoundState | None) -> bool:
        """Returns whether any member can be reached and has begun to train."""
        members = state.members if state is not None else {}
        return any(self._calls.has_begun(each.peer) for group, each in members.items() if group != self._group)

    def _take(self, state: RoundState) -> bool:
        """Loads the outer parameters and momentum of the current round from a member.

        Returns False if no member could send them.
        """
        for group in sorted(state.members, key=lambda group: (group != state.source, group)):
            if group == self._group:
                continue
            theta, momentum = self._outer.empty(), self._outer.empty()
            try:
                with closing(self._calls.connect(state.members[group].peer)) as connection:
                    connection.send({"op": "state", "round": state.round})
                    if "empty" in connection.receive():
                        continue
                    receive_tensors(connection, [*theta, *momentum])
                    if connection.receive().get("bytes"):
                        rest = torch.empty(self._rest.bytes, dtype=torch.uint8, device="cpu")
                        connection.receive_into(rest)
                        self._taken_rest = rest
            except PeerLost:
                continue
            self._outer.load(theta, momentum, state.round)
            return True
        return False

    def _is_member(self, state: RoundState) -> bool:
        own = state.members.get(self._group)
        return own is not None and own.process == self._process

    def _has_moved(self, epoch: int) -> bool:
        return self._state is not None and self._state.epoch != epoch

    def _lost_chief(self, why: str) -> PeerLost:
        return PeerLost("the chief's worker group", "another host", why)

    def _replace(self, before: RoundState | None, after: RoundState) -> None:
        """Replaces the shared state, unless another group has changed it since `before`."""
        expected = before.encoded() if before is not None else None
        self._see(self._store.compare_set(KEY, expected, after.encoded()))

    def _refresh(self) -> None:
        text = self._store.try_get(KEY)
        if text is not None:
            self._see(text)

    def _see(self, text: bytes) -> None:
        """Stores the encoded state if it is newer than the known state. May be called by any thread."""
        state = RoundState.decoded(text)
        with self._mailbox.changed:
            if self._state is None or state.epoch > self._state.epoch:
                self._state = state
                self._mailbox.changed.notify_all()

    def _wake(self) -> None:
        with self._mailbox.changed:
            self._mailbox.changed.notify_all()
