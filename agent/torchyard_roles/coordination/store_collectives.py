"""Values exchanged among all trainers through the run's join store, where no torch world holds them all.

A *meeting* is one call that every trainer makes, such as mean(): each rank puts its value into the store, the last one
of a worker group declares its group's part complete, and all read the values of all groups. Meetings are numbered.

In asynchronous kinds a group may be started again while the others wait in a meeting. It joins the meeting that is
open: the first one that not all groups have completed. If that one belongs to another line of the script, the group
died between two calls and repeats the earlier one: it gets that call's result as it was. So do the calls that a resumed
script makes before its first new step, at the ends of epochs that are over. What the group's earlier life has completed
its part with stays that part. Keys, each below `meet/<scope>/`:

    3/0/1/2       the value of group 0's rank 1 in its generation 2, in meeting 3 (3/0/1/2/7: its eighth piece)
    3/0/2         how many ranks of that generation have put their value there
    3/0           the group's part is complete: generation and number of ranks
    done          the first meeting that is open            site/<site>   the last meeting of a line of the script
    left/0        group 0 has ended                         left/0/2      how many ranks of that generation have
    first/0/2/5   what the sixth call of a group that was started again became: `join 3` or `repeat 2`
    restarted     a group was started again
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchyard_roles.environment import ASYNCHRONOUS, Environment
from torchyard_roles.errors import PeerLost, StoreTimeout, UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

MEET_WITHIN_S = 1800.0
"""From one trainer's call to the last one's, as in torch's own collectives. A group may be started again meanwhile."""
LOOK_EVERY_S = 0.5
"""How often a rank that waits looks whether the ones that are missing have ended."""
PIECE = 48 * 1024
"""Bytes of a value in one key of the store."""
LARGEST = 16 * 1024 * 1024
"""Bytes of a value: each passes through the process that keeps the run."""


class StoreCollectives:
    """All meetings of one rank. `store` stays its owner's."""

    def __init__(self, store: JoinStore, environment: Environment) -> None:
        self._store = store
        self._environment = environment
        self._group = environment.group
        self._is_first = environment.group_rank == 0
        self._asynchronous = environment.strategy in ASYNCHRONOUS
        trainers = environment.peers.trainers
        self._groups = sorted({trainer.group for trainer in trainers}) if self._asynchronous else [self._group]
        if not self._groups:
            self._groups = list(range(environment.groups))
        # In synchronous kinds all trainers are started again together and begin anew.
        self._prefix = "meet/run" if self._asynchronous else f"meet/{environment.generation}"
        self._next = 0
        self._calls = 0
        self._has_joined = not self._asynchronous or not environment.generation
        self._kept: dict[str, tuple[int, int]] = {}
        """By line of the script: (the last meeting, its number of pieces)."""
        self._obsolete: list[tuple[int, int]] = []

    def exchange(self, value: bytes, site: str, what: str, *, resuming: bool = False) -> list[bytes]:
        """The values of all trainers that are still in the run, by group and rank.

        Args:
            value: what this rank contributes, at most 16 MiB.
            site: names the line of the script, alike on all ranks.
            what: names the call in messages.
            resuming: the script has not come to its resume point yet.

        Raises PeerLost where a trainer has ended without this call, StoreTimeout where one did not come in time, and
        StoreLost.
        """
        if len(value) > LARGEST:
            raise UsageProblem(
                f"{what}() got {len(value) / 2**20:,.1f} MiB, but with this strategy a value has at most "
                f"{LARGEST // 2**20} MiB.",
                "Give it less: for example a sum or a count instead of all predictions.",
            )
        if not self._has_joined:
            kind, number = self._first_calls(site, resuming=resuming)
            if kind == "repeat":
                return self._read(number, self._present(number))
            self._has_joined, self._next = True, number
        number = self._next
        self._put(number, value, site)
        present = self._wait(number, what)
        values = self._read(number, present)
        self._complete(number, site, 1 + len(value) // PIECE)
        self._next += 1
        return values

    def leave(self, *, stopped: bool) -> None:
        """This rank makes no further calls. Where the run is stopped, the others go on without it."""
        environment = self._environment
        count = self._store.add(self._key("left", self._group, environment.generation), 1)
        if count == environment.group_size:
            self._store.set(self._key("left", self._group), b"stopped" if stopped else b"ended")

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

    # A meeting

    def _put(self, number: int, value: bytes, site: str) -> None:
        environment, store = self._environment, self._store
        own = (number, self._group, environment.group_rank, environment.generation)
        pieces = [value[start : start + PIECE] for start in range(0, len(value), PIECE)] or [b""]
        for piece in range(1, len(pieces)):
            store.set(self._key(*own, piece), pieces[piece])
        store.set(self._key(*own), f"{len(pieces)} {site}\n".encode() + pieces[0])
        count = store.add(self._key(number, self._group, environment.generation), 1)
        if count == environment.group_size:
            complete = f"{environment.generation} {environment.group_size}".encode()
            store.compare_set(self._key(number, self._group), None, complete)

    def _wait(self, number: int, what: str) -> list[int]:
        """The groups that take part, once all of them have completed their parts."""
        deadline = time.monotonic() + MEET_WITHIN_S
        present = list(self._groups)
        while True:
            try:
                self._store.wait([self._key(number, group) for group in present], LOOK_EVERY_S)
            except StoreTimeout as timeout:
                present = self._without_the_ended(number, present, what)
                if time.monotonic() > deadline:
                    missing = ", ".join(self._missing(number, present))
                    raise StoreTimeout(f"{missing} did not call {what}() within {MEET_WITHIN_S:g} s.") from timeout
            else:
                return present

    def _without_the_ended(self, number: int, groups: list[int], what: str) -> list[int]:
        """A group that has ended is an error, but where the run is stopped, or where calls can no longer be as many on
        all groups because one was started again. Alike on all ranks: a group that has ended completes no part."""
        why = f"it has ended without calling {what}(), which all trainers do alike"
        present = []
        for group in groups:
            left = self._store.try_get(self._key("left", group))
            if left is None or self._store.try_get(self._key(number, group)) is not None:
                present.append(group)
            elif left != b"stopped" and self._store.try_get(self._key("restarted")) is None:
                raise PeerLost(*self._place(group, 0), why)
        own = self._key("left", self._group, self._environment.generation)
        if self._store.try_get(own) is not None:
            ranks = self._missing_ranks(number)
            if ranks:
                raise PeerLost(*self._place(self._group, ranks[0]), why)
        return present

    def _read(self, number: int, groups: list[int]) -> list[bytes]:
        values = []
        for group in groups:
            generation, size = map(int, self._store.get(self._key(number, group), MEET_WITHIN_S).split())
            values += [self._value((number, group, rank, generation))[1] for rank in range(size)]
        return values

    def _value(self, place: tuple[int, int, int, int]) -> tuple[str, bytes]:
        """(site, value)."""
        head, _, value = self._store.get(self._key(*place), MEET_WITHIN_S).partition(b"\n")
        pieces, _, site = head.decode().partition(" ")
        rest = [self._store.get(self._key(*place, piece), MEET_WITHIN_S) for piece in range(1, int(pieces))]
        return site, b"".join([value, *rest])

    def _complete(self, number: int, site: str, pieces: int) -> None:
        """All have put their value into this meeting, so all have read those before it."""
        if self._asynchronous and self._is_first:
            self._store.set(self._key("site", site), str(number).encode())
            self._store.set(self._key("done"), str(number + 1).encode())
        environment = self._environment
        for old, count in self._obsolete:
            own = (old, self._group, environment.group_rank, environment.generation)
            self._store.delete(self._key(*own))
            for piece in range(1, count):
                self._store.delete(self._key(*own, piece))
            if self._is_first:
                self._store.delete(self._key(old, self._group, environment.generation))
                self._store.delete(self._key(old, self._group))
        self._obsolete = [self._kept[site]] if site in self._kept else []
        self._kept[site] = (number, pieces)

    # A group that was started again

    def _first_calls(self, site: str, *, resuming: bool) -> tuple[str, int]:
        """(`join` or `repeat`, the meeting): the same on all ranks of the group."""
        key = self._key("first", self._group, self._environment.generation, self._calls)
        self._calls += 1
        decided = self._store.try_get(key)
        if decided is None:
            self._store.set(self._key("restarted"), b"1")
            decided = self._store.compare_set(key, None, self._turn(site, resuming=resuming).encode())
        kind, _, number = decided.decode().partition(" ")
        return kind, int(number)

    def _turn(self, site: str, *, resuming: bool) -> str:
        done = int(self._store.try_get(self._key("done")) or 0)
        before = self._store.try_get(self._key("site", site))
        if resuming and before is not None:
            return f"repeat {int(before)}"
        for group in self._present(done):
            generation, _ = map(int, self._store.get(self._key(done, group), MEET_WITHIN_S).split())
            if group != self._group and before is not None:
                its_site, _ = self._value((done, group, 0, generation))
                return f"join {done}" if its_site == site else f"repeat {int(before)}"
        return f"join {done}"

    def _present(self, number: int) -> list[int]:
        """The groups that have completed their part by now."""
        return [group for group in self._groups if self._store.try_get(self._key(number, group)) is not None]

    # Names

    def _missing(self, number: int, groups: list[int]) -> list[str]:
        absent = set(groups) - set(self._present(number))
        names = [self._place(group, 0)[0] for group in sorted(absent - {self._group})]
        if self._group in absent:
            names += [self._place(self._group, rank)[0] for rank in self._missing_ranks(number)]
        return names

    def _missing_ranks(self, number: int) -> list[int]:
        """Of this rank's own group."""
        environment = self._environment
        keys = (self._key(number, self._group, rank, environment.generation) for rank in range(environment.group_size))
        return [rank for rank, key in enumerate(keys) if self._store.try_get(key) is None]

    def _place(self, group: int, rank: int) -> tuple[str, str]:
        """(name, address) of a group's process."""
        first = 0
        for trainer in self._environment.peers.trainers:
            if not self._asynchronous or trainer.group == group:
                if rank < first + trainer.ranks:
                    name = f"{trainer.name}.{rank - first}" if trainer.ranks > 1 else trainer.name
                    return name, trainer.address
                first += trainer.ranks
        return (f"worker group {group}" if self._asynchronous else f"rank {rank}"), "another host"
