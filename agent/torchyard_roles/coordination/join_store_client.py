"""The run's join store as a rank sees it: where replicas meet, agree and leave each other word.

The primary's keeper serves it (`torchyard_agent.keeper.link.join_store`), so it outlives every process of the run. A
broken connection is made again behind the callers' backs: what was asked and not answered is asked again, and never
done twice.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable

from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import AuthenticationError, CallerHandshake
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, StoreLost, StoreTimeout, UsageProblem
from torchyard_roles.exchange.socket_io import authenticate, read_exactly, tune

DEAD_AFTER_S = 10
"""When a connection to a silent host is ended."""
PATIENCE_S = 10.0
"""How long the store is called again before it is given up for lost."""
AGAIN_S = (0.02, 0.5)
"""Between two calls: soon at first, then less and less."""
ANSWER_WITHIN_S = 60.0
"""For what the store answers at once. Longer than a keeper is ever stopped for."""

Callback = Callable[[bytes], None]


class JoinStore:
    """A dictionary of bytes that all ranks of a run share. May be used from any thread.

    Keys have at most 256 bytes, values 64 KiB, and there are at most 10,000 keys: UsageProblem beyond. Every call
    raises StoreLost once the store could not be reached for PATIENCE_S.
    """

    def __init__(self, address: str, key: bytes, who: str, rank: int | None = None) -> None:
        """Use `connect`."""
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._key = key
        self._introduction = {"store": who, "rank": rank, "session": os.urandom(16).hex()}
        self._process = os.getpid()
        self._lock = threading.Lock()
        """Held while anything below changes, and while a frame is sent: their order is part of their seal."""
        self._link: _Link | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, _Question] = {}
        self._watches: dict[str, list[Callback]] = {}
        self._seen: dict[str, tuple[int, bytes]] = {}
        """The newest (version, value) of what is watched."""
        self._news: queue.SimpleQueue[tuple[list[Callback], bytes] | None] = queue.SimpleQueue()
        self._lost: StoreLost | None = None
        self._threads: list[threading.Thread] = []

    @classmethod
    def connect(cls, address: str, key: bytes, who: str, rank: int | None = None) -> JoinStore:
        """`address`: `host:port`. `who`: the caller's name, for the keeper's log. Raises StoreLost."""
        store = cls(address, key, who, rank)
        store._link = store._call_until(time.monotonic() + PATIENCE_S)
        store._start_thread(store._listen, "torchyard-store")
        return store

    @classmethod
    def of(cls, environment: Environment) -> JoinStore:
        """The run's own. Raises EnvironmentProblem where it has none, and StoreLost."""
        if not environment.store or not environment.key:
            raise EnvironmentProblem(
                f"The strategy {environment.strategy} needs the run's join store, and TORCHYARD_STORE and "
                "TORCHYARD_KEY do not say where it is.",
                "Start the script with torchyard; for a script by hand choose all_reduce or none.",
            )
        return cls.connect(environment.store, environment.key, environment.name, environment.rank)

    def set(self, key: str, value: bytes) -> None:
        self._ask("set", key=key, value=_text(value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until somebody has set it. Raises StoreTimeout."""
        return _bytes(self._ask("get", wait_s=timeout_s, key=key)["value"])

    def try_get(self, key: str) -> bytes | None:
        """None where nobody has set it."""
        value = self._ask("try", key=key)["value"]
        return None if value is None else _bytes(value)

    def add(self, key: str, amount: int) -> int:
        """The number that the key holds then; one that nobody has set counts as 0."""
        return int(self._ask("add", key=key, amount=amount)["number"])

    def compare_set(self, key: str, expected: bytes | None, value: bytes) -> bytes:
        """Sets it only where it is `expected` now (None: not set). Returns what it is then; empty where it is not."""
        told = None if expected is None else _text(expected)
        now = self._ask("compare_set", key=key, expected=told, value=_text(value))["value"]
        return b"" if now is None else _bytes(now)

    def delete(self, key: str) -> bool:
        """Whether it was set."""
        return bool(self._ask("delete", key=key)["number"])

    def count(self) -> int:
        """How many keys are set."""
        return int(self._ask("count")["number"])

    def wait(self, keys: Iterable[str], timeout_s: float) -> None:
        """Waits until all are set. Raises StoreTimeout, which names those that are not."""
        self._ask("wait", wait_s=timeout_s, keys=list(keys))

    def watch(self, key: str, callback: Callback) -> None:
        """Has `callback` called with each new value, and with the present one, on a thread of the store's.

        Callbacks come one at a time, and may use the store. Where the connection broke meanwhile, only the newest of
        several values may come.
        """
        with self._lock:
            self._watches.setdefault(key, []).append(callback)
            first = len(self._watches[key]) == 1
            if len(self._watches) == 1 and first:
                self._start_thread(self._call_back, "torchyard-store-news")
            if key in self._seen:
                self._news.put(([callback], self._seen[key][1]))
        if first:
            self._ask("watch", key=key)

    def close(self) -> None:
        """Parts from the store. Whoever still waits in another thread gets StoreLost."""
        if os.getpid() == self._process:  # a forked child must not end its parent's connection
            self._give_up(StoreLost("This process has parted from the run's join store."))

    # Questions

    def _ask(self, op: str, wait_s: float | None = None, **words: Any) -> dict[str, Any]:
        if os.getpid() != self._process:
            raise UsageProblem("A forked process cannot use the join store of its parent.")
        by = time.monotonic() + (ANSWER_WITHIN_S if wait_s is None else wait_s + ANSWER_WITHIN_S)
        until = None if wait_s is None else time.monotonic() + wait_s
        question = _Question({"op": op, **words}, until)
        with self._lock:
            if self._lost is not None:
                raise self._lost
            number = next(self._numbers)
            self._open[number] = question
            self._send(number, question)
        answered = question.answered.wait(max(0.0, by - time.monotonic()))
        with self._lock:
            self._open.pop(number, None)
        if question.answer is None:
            lost = self._lost if answered else None
            raise lost or StoreLost(f"The run's join store at {_joined(self._address)} does not answer.")
        return _understood(question.answer, words, wait_s)

    def _send(self, number: int, question: _Question) -> None:
        """With the lock held. What cannot be sent now is sent once there is a connection again."""
        if self._link is None:
            return
        frame = {"id": number, "done": min(self._open), **question.words}
        if question.until is not None:
            frame["wait_s"] = max(0.0, question.until - time.monotonic())
        try:
            self._link.send(frame)
        except OSError:
            self._link.cut()  # the thread that listens notices, and calls again

    # The threads

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        """Takes answers and news until the store is lost or closed."""
        while (link := self._link) is not None:
            since = time.monotonic()
            try:
                while True:
                    self._take(link.receive())
            except (OSError, AuthenticationError, ValueError, KeyError):
                pass
            with self._lock:
                self._link = None
                closed = self._lost is not None
            link.close()
            if closed:
                return
            if time.monotonic() - since < AGAIN_S[1]:
                time.sleep(AGAIN_S[1])  # whatever ends every new connection at once must not make this a busy loop
            try:
                self._resume(self._call_until(time.monotonic() + PATIENCE_S))
            except StoreLost as lost:
                self._give_up(lost)

    def _resume(self, link: _Link) -> None:
        """Asks again what was not answered."""
        with self._lock:
            if self._lost is not None:
                link.close()
                return
            self._link = link
            for number in sorted(self._open):
                self._send(number, self._open[number])
            asked = {question.words["key"] for question in self._open.values() if question.words["op"] == "watch"}
            for key in self._watches:
                if key not in asked:
                    number = next(self._numbers)
                    self._open[number] = _Question({"op": "watch", "key": key}, None, nobody_waits=True)
                    self._send(number, self._open[number])

    def _take(self, frame: dict[str, Any]) -> None:
        with self._lock:
            if "watch" in frame:
                key, version = frame["watch"], frame["version"]
                if key not in self._seen or version > self._seen[key][0]:
                    self._seen[key] = (version, _bytes(frame["value"]))
                    self._news.put((list(self._watches.get(key, ())), self._seen[key][1]))
                return
            question = self._open.get(frame["id"])
            if question is not None:
                if question.nobody_waits:
                    del self._open[frame["id"]]
                question.answer = frame
                question.answered.set()

    def _call_back(self) -> None:
        while True:
            news = self._news.get()
            if news is None:
                return
            callbacks, value = news
            for callback in callbacks:
                try:
                    callback(value)
                except Exception as error:  # of the caller's own code: the next news must still be told
                    name = getattr(callback, "__qualname__", callback)
                    print(f"torchyard: {name} failed at news from the join store: {error!r}", file=sys.stderr)

    def _give_up(self, lost: StoreLost) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = lost
            link, self._link = self._link, None
            for question in self._open.values():
                question.answered.set()
        if link is not None:
            link.cut()
        self._news.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(0.5)

    # The connection

    def _call_until(self, deadline: float) -> _Link:
        """Raises StoreLost with what went wrong the last time."""
        again_s = AGAIN_S[0]
        while True:
            try:
                return _Link(self._address, self._key, self._introduction, deadline)
            except (OSError, AuthenticationError) as error:
                why = str(error)
            if self._lost is not None or time.monotonic() + again_s > deadline:
                raise StoreLost(
                    f"The run's join store at {_joined(self._address)} cannot be reached: {why}.",
                    "It is served by the run's keeper on the primary host: has that been ended, or does a firewall "
                    "stand in between?",
                )
            time.sleep(again_s)
            again_s = min(again_s * 1.5, AGAIN_S[1])


class _Question:
    """Something that was asked and has no answer yet."""

    def __init__(self, words: dict[str, Any], until: float | None, *, nobody_waits: bool = False) -> None:
        self.words = words
        self.until = until
        """When the store is to give up waiting, by this process's steady clock."""
        self.nobody_waits = nobody_waits
        self.answered = threading.Event()
        self.answer: dict[str, Any] | None = None


class _Link:
    """One authenticated connection. Raises OSError or AuthenticationError."""

    def __init__(self, address: tuple[str, int], key: bytes, introduction: dict[str, Any], deadline: float) -> None:
        within_s = min(authenticated_transport.HANDSHAKE_DEADLINE_S, max(0.1, deadline - time.monotonic()))
        self._socket = socket.create_connection(address, within_s)
        try:
            tune(self._socket, DEAD_AFTER_S)
            self._codec = authenticate(self._socket, CallerHandshake(key), time.monotonic() + within_s)
            self._socket.settimeout(within_s)
            self.send(introduction)
            self.welcome = self.receive()
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise

    def send(self, frame: dict[str, Any]) -> None:
        self._socket.sendall(self._codec.seal(authenticated_transport.encode_message(frame)))

    def receive(self) -> dict[str, Any]:
        while (payload := self._codec.receive(read_exactly(self._socket, self._codec.expects))) is None:
            pass
        return authenticated_transport.decode_message(payload)

    def cut(self) -> None:
        """Ends it for the thread that listens, too."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _understood(answer: dict[str, Any], words: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
    if "error" in answer:
        raise UsageProblem(f"The join store refused: {answer['error']}.")
    if "missing" in answer:
        missing = ", ".join(answer["missing"]) or words.get("key", "")
        raise StoreTimeout(f"Nobody has set {missing} in the join store within {wait_s:g} s.")
    return answer


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _joined(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
