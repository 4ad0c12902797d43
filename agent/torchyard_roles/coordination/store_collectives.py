"""Collective calls through the run's join store, for trainers that torch.distributed does not connect.

A *meeting* is one collective call of all trainers, such as mean(). Each rank stores its value, the last rank of a
worker group to do so marks the group's part as complete, and all ranks read the values of all groups. Meetings are
numbered.

In asynchronous strategies a group may restart while the others wait in a meeting. The group then joins the open
meeting, which is the first meeting that no group has completed. If the open meeting belongs to another line of the
script, the group was interrupted between two calls. It then repeats the earlier call and gets the same result as
before. A resumed script also repeats the calls before its first new step. A part that the group had completed before
its restart stays valid. Keys below `meet/<scope>/`:
    3/0/1/2       value of rank 1 of group 0 in generation 2, in meeting 3 (3/0/1/2/7: its eighth piece)
    3/0/2         number of ranks of that generation that stored their value
    3/0           the group's part is complete: generation and number of ranks
    done          the open meeting                          site/<site>   the last meeting of a script line
    left/0        group 0 has ended                         left/0/2      number of its ranks that have ended
    first/0/2/5   what group 0 does in its sixth call after restart 2: `join 3` or `repeat 2`
    restarted     a group was restarted
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchyard_roles.environment import ASYNCHRONOUS, Environment
from torchyard_roles.errors import PeerLost, StoreTimeout, UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

MEET_WITHIN_S = 1800.0
"""Longest time in seconds between the first and the last trainer's call, as in torch. Groups may restart in between."""
LOOK_EVERY_S = 0.5
"""Interval in seconds at which a waiting rank checks whether missing ranks have exited."""
PIECE = 48 * 1024
"""The number of bytes of a value that are stored at one key."""
LARGEST = 16 * 1024 * 1024
"""Largest size of a value in bytes. The limit exists because each value passes through the keeper."""


class StoreCollectives:
    """The collective calls of one rank through the join store. The caller must close `store`."""

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
        # In synchronous strategies all trainers restart together, so each generation begins with new meetings.
        self._prefix = "meet/run" if self._asynchronous else f"meet/{environment.generation}"
        self._next = 0
        self._calls = 0
        self._has_joined = not self._asynchronous or not environment.generation
        self._kept: dict[str, tuple[int, int]] = {}
        """The last meeting of each script line, with the number of pieces of this rank's value."""
        self._obsolete: list[tuple[int, int]] = []

    def exchange(self, value: bytes, site: str, what: str, *, resuming: bool = False) -> list[bytes]:
        """Returns the values of all trainers that take part, in the order of groups and ranks.

        Args:
            value: The value of this rank, at most 16 MiB.
            site: An identifier of the script line that makes the call. It is the same on all ranks.
            what: The name of the collective call in messages.
            resuming: Whether the script has not yet reached the point at which it resumes.

        Raises:
            PeerLost: A trainer ended before it made this call.
            StoreTimeout: A trainer did not make the call in time.
            StoreLost: The store cannot be reached.
            UsageProblem: The value is too large.
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
        """Declares that this rank makes no further calls.

        If the run is being stopped, the other ranks do not wait for this rank.
        """
        environment = self._environment
        count = self._store.add(self._key("left", self._group, environment.generation), 1)
        if count == environment.group_size:
            self._store.set(self._key("left", self._group), b"stopped" if stopped else b"ended")

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

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
        """Waits until all groups have completed their parts of the meeting, and returns the groups that take part."""
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
        """Returns the groups that have made this call or may still make it.

        Raises PeerLost if a group ended without making the call.

        PeerLost is not raised in a stopped run, and not after a restart, because the number of calls may then differ
        between groups. The result is the same on all ranks, since an ended group completes no further parts.
        """
        why = f"it has ended without calling {what}(), which all trainers must call"
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
        """Returns the site and the value that a rank stored."""
        head, _, value = self._store.get(self._key(*place), MEET_WITHIN_S).partition(b"\n")
        pieces, _, site = head.decode().partition(" ")
        rest = [self._store.get(self._key(*place, piece), MEET_WITHIN_S) for piece in range(1, int(pieces))]
        return site, b"".join([value, *rest])

    def _complete(self, number: int, site: str, pieces: int) -> None:
        """Records that a meeting is complete, and deletes the values that this rank stored for earlier meetings.

        All ranks have read those values, because all of them have reached this meeting.
        """
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

    def _first_calls(self, site: str, *, resuming: bool) -> tuple[str, int]:
        """Returns what a restarted group does in its next call, `join` or `repeat`, and the number of the meeting.

        The result is the same on all ranks of the group.
        """
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
        """Returns the groups that have already completed their part of a meeting."""
        return [group for group in self._groups if self._store.try_get(self._key(number, group)) is not None]

    def _missing(self, number: int, groups: list[int]) -> list[str]:
        absent = set(groups) - set(self._present(number))
        names = [self._place(group, 0)[0] for group in sorted(absent - {self._group})]
        if self._group in absent:
            names += [self._place(self._group, rank)[0] for rank in self._missing_ranks(number)]
        return names

    def _missing_ranks(self, number: int) -> list[int]:
        """Returns the ranks of this rank's group that have not stored their value for a meeting."""
        environment = self._environment
        keys = (self._key(number, self._group, rank, environment.generation) for rank in range(environment.group_size))
        return [rank for rank, key in enumerate(keys) if self._store.try_get(key) is None]

    def _place(self, group: int, rank: int) -> tuple[str, str]:
        """Returns the name and address of one process of a group."""
        listed = self._environment.peers.trainer_process(rank, group if self._asynchronous else None)
        return listed or (f"worker group {group}" if self._asynchronous else f"rank {rank}", "another host")
