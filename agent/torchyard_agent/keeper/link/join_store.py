"""The join store: a small dictionary where a run's ranks meet, served by the primary's keeper.

It outlives the generations of gangs, so nothing but the end of the run empties it. Ranks come through the gang link's
door with the exchange key; after that one JSON frame a question, one an answer, and one for each change of a key that
is watched. Values travel as base64.

    {"id": 7, "done": 5, "op": "set", "key": "a", "value": "…"}  ->  {"id": 7}
    op: set, try, get (wait_s), wait (keys, wait_s), add (amount), compare_set (expected, value), delete, count, watch

A rank whose connection broke asks again what was not answered. What changes the store must not happen twice then:
answers to that are remembered by the caller's session and the question's number, until `done` says that every lower
number is settled.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from typing import Any, Callable

from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream

LONGEST_KEY = 256
"""Bytes of UTF-8."""
LONGEST_VALUE = 64 * 1024
MOST_KEYS = 10_000
LONGEST_FRAME = 512 * 1024
"""Room for a value in base64, or for a thousand keys to wait for."""
MOST_BACKLOG = 8 * 1024 * 1024
"""Bytes that a rank may leave unread; beyond, its connection ends."""
MOST_SESSIONS = 10_000
MOST_OPEN = 1_000
"""Questions of one rank that wait, its watches, and its answers that are remembered."""

Wake = Callable[[], None]
Watch = Callable[[str, bytes, int], None]

log = logging.getLogger(__name__)


class Refused(Exception):
    """What was asked is not possible; the message says why."""


class JoinStore:
    """The dictionary itself, with those who wait for its keys. No I/O."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changes = 0
        self._versions: dict[str, int] = {}
        self._waiting: dict[str, dict[Wake, None]] = {}
        self._watches: dict[str, dict[Watch, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Raises Refused where it is too long, or one key too many."""
        if not 0 < len(key.encode("utf-8", "surrogatepass")) <= LONGEST_KEY:
            raise Refused(f"a key has 1 to {LONGEST_KEY} bytes, not {len(key.encode('utf-8', 'surrogatepass'))}")
        if len(value) > LONGEST_VALUE:
            raise Refused(f"a value has at most {LONGEST_VALUE} bytes, not {len(value)}: `{key[:60]}`")
        if key not in self._values and len(self._values) >= MOST_KEYS:
            raise Refused(f"the join store holds {MOST_KEYS} keys, and takes no more: `{key[:60]}`")
        self._changes += 1
        self._values[key] = value
        self._versions[key] = self._changes
        for wake in list(self._waiting.get(key, ())):
            wake()
        for watch in list(self._watches.get(key, ())):
            watch(key, value, self._changes)

    def add(self, key: str, amount: int) -> int:
        """The number that the key holds then; one that is not there counts as 0."""
        try:
            number = int(self._values.get(key, b"0")) + amount
        except ValueError as error:
            raise Refused(f"`{key}` holds no number that could be added to") from error
        self.set(key, b"%d" % number)
        return number

    def compare_set(self, key: str, expected: bytes | None, value: bytes) -> bytes | None:
        """Sets it only where it is `expected` now (None: not there). Returns what it is then."""
        if self._values.get(key) == expected:
            self.set(key, value)
        return self._values.get(key)

    def delete(self, key: str) -> bool:
        """Whether it was there. Those who watch it are not told."""
        self._versions.pop(key, None)
        return self._values.pop(key, None) is not None

    def missing(self, keys: list[str]) -> list[str]:
        return [key for key in keys if key not in self._values]

    def wait(self, keys: list[str], wake: Wake) -> None:
        """`wake` is called whenever one of these is set, until `wait_no_more`."""
        for key in keys:
            self._waiting.setdefault(key, {})[wake] = None

    def wait_no_more(self, keys: list[str], wake: Wake) -> None:
        for key in keys:
            _remove(self._waiting, key, wake)

    def watch(self, key: str, watch: Watch) -> None:
        """`watch` is called with every change, and now where there is a value already."""
        self._watches.setdefault(key, {})[watch] = None
        if key in self._values:
            watch(key, self._values[key], self._versions[key])

    def watch_no_more(self, key: str, watch: Watch) -> None:
        _remove(self._watches, key, watch)


def _remove(table: dict[str, dict[Any, None]], key: str, one: object) -> None:
    table.get(key, {}).pop(one, None)
    if not table.get(key):
        table.pop(key, None)


class StoreServer:
    """Serves the store to ranks. What a rank says wrongly ends its connection, never the keeper."""

    def __init__(self, store: JoinStore):
        self._store = store
        self._sessions: OrderedDict[str, dict[int, Message]] = OrderedDict()

    async def serve(self, stream: Stream, introduction: Message) -> None:
        """Returns when the connection has ended."""
        who, session = str(introduction.get("store")), str(introduction.get("session"))
        visitor = _Visitor(self._store, stream, self._answers_of(session))
        stream.keep_alive()
        stream.send({"store": "ready"})
        try:
            while True:
                visitor.take(await stream.receive(LONGEST_FRAME))
        except NETWORK_ERRORS as error:
            log.debug("%s left the join store: %s", who[:80], error or type(error).__name__)
        except (KeyError, TypeError, ValueError, OverflowError, Refused) as error:
            log.warning("turned away %s at the join store: %r", who[:80], error)
        finally:
            visitor.leave()
            stream.abort()

    def _answers_of(self, session: str) -> dict[int, Message]:
        """What is remembered of a caller's earlier connection."""
        answers = self._sessions.setdefault(session, {})
        self._sessions.move_to_end(session)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return answers


class _Visitor:
    """One connection of a rank."""

    def __init__(self, store: JoinStore, stream: Stream, answers: dict[int, Message]):
        self._store = store
        self._stream = stream
        self._answers = answers
        self._waits: dict[int, tuple[list[str], Wake, asyncio.TimerHandle]] = {}
        self._watched: dict[str, None] = {}

    def take(self, question: Message) -> None:
        """Raises KeyError, TypeError, ValueError or OverflowError for what is no question, so that it cannot be
        answered; Refused for one too many, or one whose number waits already."""
        number, op = int(question["id"]), str(question["op"])
        for settled in [one for one in self._answers if one < int(question["done"])]:
            del self._answers[settled]
        if number in self._answers:
            self._send(self._answers[number])
            return
        if number in self._waits:
            raise Refused(f"question {number} is asked twice")
        if len(self._answers) >= MOST_OPEN or len(self._waits) >= MOST_OPEN:
            raise Refused("too many questions at once")
        try:
            _OPERATIONS[op](self, number, question)
        except Refused as refused:
            self._send({"id": number, "error": str(refused)})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self._send({"id": number, "error": f"the store does not understand {op[:40]!r}: {error!r}"})

    def leave(self) -> None:
        for number in list(self._waits):
            self._wait_no_more(number)
        for key in self._watched:
            self._store.watch_no_more(key, self._tell_change)

    def _send(self, answer: Message) -> None:
        if self._stream.backlog > MOST_BACKLOG:
            self._stream.abort()  # it reads nothing: what it would be told must not pile up here
        else:
            self._stream.send(answer)

    def _changed(self, question: int, **answer: Any) -> None:
        """Answers what has changed the store, and remembers that it has."""
        self._answers[question] = {"id": question, **answer}
        self._send(self._answers[question])

    def set(self, number: int, question: Message) -> None:
        self._store.set(_key(question), _bytes(question["value"]))
        self._changed(number)

    def add(self, number: int, question: Message) -> None:
        self._changed(number, number=self._store.add(_key(question), int(question["amount"])))

    def compare_set(self, number: int, question: Message) -> None:
        expected = None if question["expected"] is None else _bytes(question["expected"])
        now = self._store.compare_set(_key(question), expected, _bytes(question["value"]))
        self._changed(number, value=_text(now))

    def delete(self, number: int, question: Message) -> None:
        self._changed(number, number=int(self._store.delete(_key(question))))

    def count(self, number: int, question: Message) -> None:
        self._send({"id": number, "number": len(self._store)})

    def try_get(self, number: int, question: Message) -> None:
        self._send({"id": number, "value": _text(self._store.get(_key(question)))})

    def get(self, number: int, question: Message) -> None:
        key = _key(question)
        self._wait(number, [key], float(question["wait_s"]), key)

    def wait(self, number: int, question: Message) -> None:
        keys = [str(key) for key in question["keys"]]
        if len(keys) > MOST_OPEN:
            raise Refused(f"at most {MOST_OPEN} keys can be waited for at once, not {len(keys)}")
        self._wait(number, keys, float(question["wait_s"]), None)

    def _wait(self, number: int, keys: list[str], wait_s: float, wanted: str | None) -> None:
        """Answers once all keys are there, or with those that are missing when the time is over."""

        def look() -> None:
            if self._store.missing(keys):
                return
            self._wait_no_more(number)
            self._send({"id": number} if wanted is None else {"id": number, "value": _text(self._store.get(wanted))})

        def give_up() -> None:
            self._wait_no_more(number)
            self._send({"id": number, "missing": self._store.missing(keys)[:10]})

        timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), give_up)
        self._waits[number] = (keys, look, timer)
        self._store.wait(keys, look)
        look()

    def _wait_no_more(self, number: int) -> None:
        keys, wake, timer = self._waits.pop(number)
        timer.cancel()
        self._store.wait_no_more(keys, wake)

    def watch(self, number: int, question: Message) -> None:
        key = _key(question)
        if len(self._watched) >= MOST_OPEN:
            raise Refused(f"at most {MOST_OPEN} keys can be watched")
        self._watched[key] = None
        self._send({"id": number})
        self._store.watch(key, self._tell_change)

    def _tell_change(self, key: str, value: bytes, version: int) -> None:
        self._send({"watch": key, "value": _text(value), "version": version})


def _key(question: Message) -> str:
    return str(question["key"])


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


_OPERATIONS: dict[str, Callable[[_Visitor, int, Message], None]] = {
    "set": _Visitor.set,
    "add": _Visitor.add,
    "compare_set": _Visitor.compare_set,
    "delete": _Visitor.delete,
    "count": _Visitor.count,
    "try": _Visitor.try_get,
    "get": _Visitor.get,
    "wait": _Visitor.wait,
    "watch": _Visitor.watch,
}
