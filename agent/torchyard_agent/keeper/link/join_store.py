"""The join store: a small key-value store for the ranks of a run, served by the primary.

The store keeps its values until the run ends, across all generations. Ranks connect to the port of the gang link, and
authenticate with the key that all ranks of the run share. Each request, each answer and each change of a watched key is
one JSON frame. Values are encoded as base64.

    {"id": 7, "done": 5, "op": "set", "key": "a", "value": "…"}  ->  {"id": 7}
    op: set, try, get (wait_s), wait (keys, wait_s), add (amount), compare_set (expected, value), delete, count, watch

After reconnecting, a rank repeats its pending requests. A request that changes the store must not be executed twice, so
its answer is stored under the client's session and the request's ID. `done` in a later request means that the client
has received the answers to all requests with lower IDs, which are then deleted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from typing import Any, Callable

from torchyard_agent.keeper.link.gang_link import NETWORK_ERRORS, Message, Stream

MAX_KEY = 256
"""Maximum length of a key in bytes (UTF-8)."""
MAX_VALUE = 64 * 1024
MAX_KEYS = 10_000
MAX_FRAME = 512 * 1024
"""Maximum length of a frame in bytes. It is sufficient for a value in base64 or for a thousand keys."""
MAX_BACKLOG = 8 * 1024 * 1024
"""Number of unsent bytes above which a rank is disconnected."""
MAX_SESSIONS = 10_000
MAX_OPEN = 1_000
"""Limit for each of these numbers: a rank's pending requests, watches and kept answers, and the keys in a `wait`."""

Wake = Callable[[], None]
Watch = Callable[[str, bytes, int], None]

log = logging.getLogger(__name__)


class Refused(Exception):
    """Raised if the store rejects a request. The message gives the reason."""


class JoinStore:
    """The values of the store, and the callbacks of clients that wait for keys. No I/O."""

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
        """Sets a key to a value. Raises Refused if the key or value is too long, or the store is full."""
        length = len(key.encode("utf-8", "surrogatepass"))
        if not 0 < length <= MAX_KEY:
            raise Refused(f"a key has 1 to {MAX_KEY} bytes, not {length}")
        if len(value) > MAX_VALUE:
            raise Refused(f"a value has at most {MAX_VALUE} bytes, not {len(value)}: `{key[:60]}`")
        if key not in self._values and len(self._values) >= MAX_KEYS:
            raise Refused(f"the join store holds {MAX_KEYS} keys and takes no more: `{key[:60]}`")
        self._changes += 1
        self._values[key] = value
        self._versions[key] = self._changes
        for wake in list(self._waiting.get(key, ())):
            wake()
        for watch in list(self._watches.get(key, ())):
            watch(key, value, self._changes)

    def add(self, key: str, amount: int) -> int:
        """Adds `amount` to the number stored at the key, which is 0 if the key is not set, and returns the sum."""
        try:
            number = int(self._values.get(key, b"0")) + amount
        except ValueError as error:
            raise Refused(f"`{key}` holds no number") from error
        self.set(key, b"%d" % number)
        return number

    def compare_set(self, key: str, expected: bytes | None, value: bytes) -> bytes | None:
        """Sets a key if its value is `expected` (None: the key is not set), and returns the value after the call."""
        if self._values.get(key) == expected:
            self.set(key, value)
        return self._values.get(key)

    def delete(self, key: str) -> bool:
        """Deletes a key, and returns whether it was set. Watches of the key are not called."""
        self._versions.pop(key, None)
        return self._values.pop(key, None) is not None

    def missing(self, keys: list[str]) -> list[str]:
        return [key for key in keys if key not in self._values]

    def wait(self, keys: list[str], wake: Wake) -> None:
        """Registers `wake` to be called whenever one of the keys is set, until `stop_waiting` is called."""
        for key in keys:
            self._waiting.setdefault(key, {})[wake] = None

    def stop_waiting(self, keys: list[str], wake: Wake) -> None:
        for key in keys:
            _remove(self._waiting, key, wake)

    def watch(self, key: str, watch: Watch) -> None:
        """Registers `watch` to be called with the key's value and version whenever the key is set.

        If the key has a value already, `watch` is also called immediately.
        """
        self._watches.setdefault(key, {})[watch] = None
        if key in self._values:
            watch(key, self._values[key], self._versions[key])

    def unwatch(self, key: str, watch: Watch) -> None:
        _remove(self._watches, key, watch)


def _remove(table: dict[str, dict[Any, None]], key: str, callback: object) -> None:
    table.get(key, {}).pop(callback, None)
    if not table.get(key):
        table.pop(key, None)


class StoreServer:
    """Serves the join store to ranks. After an invalid request, sends an error or closes the rank's connection."""

    def __init__(self, store: JoinStore):
        self._store = store
        self._sessions: OrderedDict[str, dict[int, Message]] = OrderedDict()

    async def serve(self, stream: Stream, introduction: Message) -> None:
        """Answers the requests of one client until its connection ends."""
        name = str(introduction.get("store"))[:80]
        client = _Client(self._store, stream, self._answers_of(str(introduction.get("session"))))
        stream.keep_alive()
        stream.send({"store": "ready"})
        try:
            while True:
                client.take(await stream.receive(MAX_FRAME))
        except NETWORK_ERRORS as error:
            log.debug("%s disconnected from the join store: %s", name, error or type(error).__name__)
        except (KeyError, TypeError, ValueError, OverflowError, Refused) as error:
            log.warning("disconnected %s from the join store: %r", name, error)
        finally:
            client.close()
            stream.abort()

    def _answers_of(self, session: str) -> dict[int, Message]:
        """Returns the kept answers of a session, including the answers over its earlier connections."""
        answers = self._sessions.setdefault(session, {})
        self._sessions.move_to_end(session)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return answers


class _Client:
    """The connection of one rank to the store."""

    def __init__(self, store: JoinStore, stream: Stream, answers: dict[int, Message]):
        self._store = store
        self._stream = stream
        self._answers = answers
        self._waits: dict[int, tuple[list[str], Wake, asyncio.TimerHandle]] = {}
        self._watched: dict[str, None] = {}

    def take(self, request: Message) -> None:
        """Answers a request immediately or, if the request waits for keys, later.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: The request is invalid, and cannot be answered.
            Refused: The request's number is already in use, or too many requests are pending.
        """
        number, op = int(request["id"]), str(request["op"])
        for received in [one for one in self._answers if one < int(request["done"])]:
            del self._answers[received]
        if number in self._answers:
            self._send(self._answers[number])
            return
        if number in self._waits:
            raise Refused(f"request {number} is sent twice")
        if len(self._answers) >= MAX_OPEN or len(self._waits) >= MAX_OPEN:
            raise Refused("too many requests at once")
        try:
            _OPERATIONS[op](self, number, request)
        except Refused as refused:
            self._send({"id": number, "error": str(refused)})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self._send({"id": number, "error": f"the store does not understand {op[:40]!r}: {error!r}"})

    def close(self) -> None:
        for number in list(self._waits):
            self._stop_waiting(number)
        for key in self._watched:
            self._store.unwatch(key, self._on_change)

    def _send(self, answer: Message) -> None:
        if self._stream.backlog > MAX_BACKLOG:
            self._stream.abort()  # A client that does not read its answers must not fill the memory of the keeper.
        else:
            self._stream.send(answer)

    def _answer_change(self, id: int, **answer: Any) -> None:
        """Answers a request that has changed the store. The answer is kept, in case the client repeats the request."""
        self._answers[id] = {"id": id, **answer}
        self._send(self._answers[id])

    def set(self, number: int, request: Message) -> None:
        self._store.set(_key(request), _bytes(request["value"]))
        self._answer_change(number)

    def add(self, number: int, request: Message) -> None:
        self._answer_change(number, number=self._store.add(_key(request), int(request["amount"])))

    def compare_set(self, number: int, request: Message) -> None:
        expected = None if request["expected"] is None else _bytes(request["expected"])
        now = self._store.compare_set(_key(request), expected, _bytes(request["value"]))
        self._answer_change(number, value=_text(now))

    def delete(self, number: int, request: Message) -> None:
        self._answer_change(number, number=int(self._store.delete(_key(request))))

    def count(self, number: int, request: Message) -> None:
        self._send({"id": number, "number": len(self._store)})

    def try_get(self, number: int, request: Message) -> None:
        self._send({"id": number, "value": _text(self._store.get(_key(request)))})

    def get(self, number: int, request: Message) -> None:
        key = _key(request)
        self._wait(number, [key], float(request["wait_s"]), key)

    def wait(self, number: int, request: Message) -> None:
        keys = [str(key) for key in request["keys"]]
        if len(keys) > MAX_OPEN:
            raise Refused(f"at most {MAX_OPEN} keys can be waited for at once, not {len(keys)}")
        self._wait(number, keys, float(request["wait_s"]), None)

    def _wait(self, number: int, keys: list[str], wait_s: float, wanted: str | None) -> None:
        """Answers a request when all keys are set, or after `wait_s` with up to ten of the missing keys."""

        def check() -> None:
            if self._store.missing(keys):
                return
            self._stop_waiting(number)
            self._send({"id": number} if wanted is None else {"id": number, "value": _text(self._store.get(wanted))})

        def time_out() -> None:
            self._stop_waiting(number)
            self._send({"id": number, "missing": self._store.missing(keys)[:10]})

        timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), time_out)
        self._waits[number] = (keys, check, timer)
        self._store.wait(keys, check)
        check()

    def _stop_waiting(self, number: int) -> None:
        keys, wake, timer = self._waits.pop(number)
        timer.cancel()
        self._store.stop_waiting(keys, wake)

    def watch(self, number: int, request: Message) -> None:
        key = _key(request)
        if len(self._watched) >= MAX_OPEN:
            raise Refused(f"at most {MAX_OPEN} keys can be watched")
        self._watched[key] = None
        self._send({"id": number})
        self._store.watch(key, self._on_change)

    def _on_change(self, key: str, value: bytes, version: int) -> None:
        self._send({"watch": key, "value": _text(value), "version": version})


def _key(request: Message) -> str:
    return str(request["key"])


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


_OPERATIONS: dict[str, Callable[[_Client, int, Message], None]] = {
    "set": _Client.set,
    "add": _Client.add,
    "compare_set": _Client.compare_set,
    "delete": _Client.delete,
    "count": _Client.count,
    "try": _Client.try_get,
    "get": _Client.get,
    "wait": _Client.wait,
    "watch": _Client.watch,
}
