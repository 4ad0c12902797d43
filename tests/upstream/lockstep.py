"""Runs several ranks of one program as threads of a single process, of which only one runs at a time.

A rank's turn ends when it makes a collective call, and the ranks take turns in rank order, so a run is deterministic.
The random state is switched at each turn, so each rank has its own random state, as if it were a process.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch


class Diverged(RuntimeError):
    """Raised when ranks make different calls, or when a rank has ended while other ranks wait for it."""


class Lockstep:
    """A scheduler for the threads of `ranks` ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._turn = 0
        self._changed = threading.Condition()
        self._living = set(range(ranks))
        self._met = [0] * ranks
        self._boxes: list[list[tuple[str, Any]]] = [[("", None)] * ranks for _ in range(2)]
        """The values of the current call and of the next, which a rank may set while others still read the current."""
        self._error: BaseException | None = None

    def run(self, program: Callable[[int], None]) -> None:
        """Runs `program(rank)` in one thread per rank until all have ended; raises the first exception."""
        start = _generators()
        threads = [threading.Thread(target=self._live, args=(program, rank, start)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _set_generators(start)
        if self._error is not None:
            raise self._error

    def meet(self, rank: int, call: str, value: Any) -> list[Any]:
        """Returns the values that all ranks passed to this call, in rank order.

        The values are shared between ranks: pass copies of values that are changed afterwards.
        """
        boxes = self._put(rank, call, value)
        mine = _generators()
        self._pass_on(rank)
        self._wait(rank)
        _set_generators(mine)
        calls = [name for name, _ in boxes]
        if calls != [call] * self.ranks:
            raise Diverged(f"the ranks meet at different calls: {calls}")
        return [each for _, each in boxes]

    def _put(self, rank: int, call: str, value: Any) -> list[tuple[str, Any]]:
        boxes = self._boxes[self._met[rank] % 2]
        self._met[rank] += 1
        boxes[rank] = (call, value)
        return boxes

    def _live(self, program: Callable[[int], None], rank: int, start: Any) -> None:
        try:
            self._wait(rank)
            _set_generators(start)
            program(rank)
            self._put(rank, "the end", None)
            self._living.discard(rank)
        except BaseException as error:  # `run` raises this exception in the caller's thread.
            with self._changed:
                self._error = self._error or error
        finally:
            self._pass_on(rank)

    def _pass_on(self, rank: int) -> None:
        with self._changed:
            following = [(rank + distance) % self.ranks for distance in range(1, self.ranks + 1)]
            self._turn = next((each for each in following if each in self._living), rank)
            self._changed.notify_all()

    def _wait(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == rank or self._error is not None)
            if self._error is not None:
                raise Diverged("another rank has failed")


def _generators() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def _set_generators(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
