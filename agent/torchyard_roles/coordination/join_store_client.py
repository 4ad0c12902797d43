"""The client of the run's join store, through which replicas exchange small values.

The primary serves the store (`torchyard_agent.keeper.link.join_store`), so the store outlives the processes of the run.
If the connection breaks, the client reconnects and repeats the pending requests. The server executes each request only
once.
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
from dataclasses import dataclass, field
from typing import Any, Callable

from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import AuthenticationError, CallerHandshake
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, StoreLost, StoreTimeout, UsageProblem
from torchyard_roles.exchange.sockets import authenticate, read_exactly, tune

DEAD_AFTER_S = 10
"""Time in seconds after which a connection to a host that does not respond is closed."""
RECONNECT_S = 10.0
"""Time in seconds for which the client tries to reconnect before it raises StoreLost."""
RETRY_PAUSES_S = (0.02, 0.5)
"""The first and the longest pause in seconds between two connection attempts."""
ANSWER_TIMEOUT_S = 60.0
"""Timeout in seconds of requests that the store answers immediately. A busy keeper never takes so long to answer."""

Callback = Callable[[bytes], None]


class JoinStore:
    """A dictionary of byte strings that all ranks of a run share. All methods are thread-safe.

    A key has at most 256 bytes, a value at most 64 KiB, and the store at most 10,000 keys. Calls that exceed a limit
    raise UsageProblem. Every request raises StoreLost once the store has been unreachable for RECONNECT_S, or close()
    has been called.
    """

    def __init__(self, address: str, key: bytes, who: str, rank: int | None = None) -> None:
        """Creates a client that is not connected. Callers use connect() or of() instead."""
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._key = key
        self._introduction = {"store": who, "rank": rank, "session": os.urandom(16).hex()}
        self._process = os.getpid()
        self._lock = threading.Lock()
        """Guards the fields below and the order of frames, which is part of their MAC."""
        self._link: _Link | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, _Request] = {}
        self._watches: dict[str, list[Callback]] = {}
        self._seen: dict[str, tuple[int, bytes]] = {}
        """The newest (version, value) of each watched key that was received."""
        self._changes: queue.SimpleQueue[tuple[list[Callback], bytes] | None] = queue.SimpleQueue()
        self._lost: StoreLost | None = None
        self._threads: list[threading.Thread] = []

    @classmethod
    def connect(cls, address: str, key: bytes, who: str, rank: int | None = None) -> JoinStore:
        """Connects to `host:port`. `who` is the name of this process in the keeper's log.

        Raises StoreLost if the store cannot be reached.
        """
        store = cls(address, key, who, rank)
        store._link = store._call_until(time.monotonic() + RECONNECT_S)
        store._start_thread(store._listen, "torchyard-store")
        return store

    @classmethod
    def of(cls, environment: Environment) -> JoinStore:
        """Connects to the store of this run.

        Raises:
            EnvironmentProblem: The run has no store.
            StoreLost: The store cannot be reached.
        """
        if not environment.store or not environment.key:
            raise EnvironmentProblem(
                f"The strategy {environment.strategy} needs the run's join store, and TORCHYARD_STORE and "
                "TORCHYARD_KEY do not say where it is.",
                "Start the script with torchyard; for a script by hand choose all_reduce or none.",
            )
        return cls.connect(environment.store, environment.key, environment.name, environment.rank)

    def set(self, key: str, value: bytes) -> None:
        self._request("set", key=key, value=_text(value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until a key is set, and returns its value. Raises StoreTimeout if the key is not set in time."""
        return _bytes(self._request("get", wait_s=timeout_s, key=key)["value"])

    def try_get(self, key: str) -> bytes | None:
        """Returns the value of a key, or None if the key is not set."""
        value = self._request("try", key=key)["value"]
        return None if value is None else _bytes(value)

    def add(self, key: str, amount: int) -> int:
        """Adds `amount` to the number stored at a key, which is initially 0, and returns the sum."""
        return int(self._request("add", key=key, amount=amount)["number"])

    def compare_set(self, key: str, expected: bytes | None, value: bytes) -> bytes:
        """Sets a key if its current value is `expected`, where None means that the key is not set.

        Returns:
            The value after the call, or b"" if the key is not set.
        """
        encoded = None if expected is None else _text(expected)
        now = self._request("compare_set", key=key, expected=encoded, value=_text(value))["value"]
        return b"" if now is None else _bytes(now)

    def delete(self, key: str) -> bool:
        """Deletes a key, and returns whether it was set."""
        return bool(self._request("delete", key=key)["number"])

    def count(self) -> int:
        return int(self._request("count")["number"])

    def wait(self, keys: Iterable[str], timeout_s: float) -> None:
        """Waits until all keys are set.

        Raises StoreTimeout, with the names of the missing keys, if they are not set in time.
        """
        self._request("wait", wait_s=timeout_s, keys=list(keys))

    def watch(self, key: str, callback: Callback) -> None:
        """Registers `callback` to be called with each new value of a key, and first with its current value, if any.

        Callbacks run one at a time on a separate thread and may use the store. Values that are set while the client is
        disconnected may be skipped, except the last one.
        """
        with self._lock:
            self._watches.setdefault(key, []).append(callback)
            first = len(self._watches[key]) == 1
            if len(self._watches) == 1 and first:
                self._start_thread(self._call_back, "torchyard-store-change")
            if key in self._seen:
                self._changes.put(([callback], self._seen[key][1]))
        if first:
            self._request("watch", key=key)

    def close(self) -> None:
        """Disconnects. Calls that wait in other threads raise StoreLost."""
        if os.getpid() == self._process:  # A forked child must not close the connection of its parent.
            self._give_up(StoreLost("This process has closed its connection to the run's join store."))

    def _request(self, op: str, wait_s: float | None = None, **words: Any) -> dict[str, Any]:
        if os.getpid() != self._process:
            raise UsageProblem("A forked process cannot use the join store of its parent.")
        by = time.monotonic() + (ANSWER_TIMEOUT_S if wait_s is None else wait_s + ANSWER_TIMEOUT_S)
        until = None if wait_s is None else time.monotonic() + wait_s
        request = _Request({"op": op, **words}, until)
        with self._lock:
            if self._lost is not None:
                raise self._lost
            number = next(self._numbers)
            self._open[number] = request
            self._send(number, request)
        answered = request.answered.wait(max(0.0, by - time.monotonic()))
        with self._lock:
            self._open.pop(number, None)
        if request.answer is None:
            lost = self._lost if answered else None
            raise lost or StoreLost(f"The run's join store at {_joined(self._address)} does not answer.")
        return _checked(request.answer, words, wait_s)

    def _send(self, number: int, request: _Request) -> None:
        """Sends a request if there is a connection. Otherwise `_resume` sends the request over the next connection.

        The caller must hold the lock.
        """
        if self._link is None:
            return
        frame = {"id": number, "done": min(self._open), **request.words}
        if request.until is not None:
            frame["wait_s"] = max(0.0, request.until - time.monotonic())
        try:
            self._link.send(frame)
        except OSError:
            self._link.cut()  # The receiving thread notices the broken connection too, and reconnects.

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        """Receives answers and changed values until the store is lost or closed."""
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
            if time.monotonic() - since < RETRY_PAUSES_S[1]:
                # This pause avoids a busy loop if every new connection fails immediately.
                time.sleep(RETRY_PAUSES_S[1])
            try:
                self._resume(self._call_until(time.monotonic() + RECONNECT_S))
            except StoreLost as lost:
                self._give_up(lost)

    def _resume(self, link: _Link) -> None:
        """Repeats the pending requests and all watches on a new connection."""
        with self._lock:
            if self._lost is not None:
                link.close()
                return
            self._link = link
            for number in sorted(self._open):
                self._send(number, self._open[number])
            asked = {request.words["key"] for request in self._open.values() if request.words["op"] == "watch"}
            for key in self._watches:
                if key not in asked:
                    number = next(self._numbers)
                    self._open[number] = _Request({"op": "watch", "key": key}, None, is_internal=True)
                    self._send(number, self._open[number])

    def _take(self, frame: dict[str, Any]) -> None:
        with self._lock:
            if "watch" in frame:
                key, version = frame["watch"], frame["version"]
                if key not in self._seen or version > self._seen[key][0]:
                    self._seen[key] = (version, _bytes(frame["value"]))
                    self._changes.put((list(self._watches.get(key, ())), self._seen[key][1]))
                return
            request = self._open.get(frame["id"])
            if request is not None:
                if request.is_internal:
                    del self._open[frame["id"]]
                request.answer = frame
                request.answered.set()

    def _call_back(self) -> None:
        while True:
            change = self._changes.get()
            if change is None:
                return
            callbacks, value = change
            for callback in callbacks:
                try:
                    callback(value)
                except Exception as error:  # An error in one callback must not prevent the other calls.
                    name = getattr(callback, "__qualname__", callback)
                    print(f"torchyard: {name} failed on a change in the join store: {error!r}", file=sys.stderr)

    def _give_up(self, lost: StoreLost) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = lost
            link, self._link = self._link, None
            for request in self._open.values():
                request.answered.set()
        if link is not None:
            link.cut()
        self._changes.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(0.5)

    def _call_until(self, deadline: float) -> _Link:
        """Tries to connect until the deadline. Raises StoreLost with the error of the last attempt."""
        again_s = RETRY_PAUSES_S[0]
        while True:
            try:
                return _Link(self._address, self._key, self._introduction, deadline)
            except (OSError, AuthenticationError) as error:
                why = str(error)
            if self._lost is not None or time.monotonic() + again_s > deadline:
                raise StoreLost(
                    f"The run's join store at {_joined(self._address)} cannot be reached: {why}.",
                    "The run's keeper on the primary host serves it: check whether that keeper has ended, or a "
                    "firewall blocks the connection.",
                )
            time.sleep(again_s)
            again_s = min(again_s * 1.5, RETRY_PAUSES_S[1])


@dataclass
class _Request:
    """A request to the store and, once it has been received, the answer."""

    words: dict[str, Any]
    until: float | None
    """The time until which the store may wait, by this process's monotonic clock."""
    is_internal: bool = False
    answered: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] | None = None


class _Link:
    """One authenticated connection.

    The constructor, send() and receive() raise OSError or AuthenticationError if the connection fails.
    """

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
        except BaseException:  # The socket is also closed after KeyboardInterrupt and SystemExit.
            self._socket.close()
            raise

    def send(self, frame: dict[str, Any]) -> None:
        self._socket.sendall(self._codec.seal(authenticated_transport.encode_message(frame)))

    def receive(self) -> dict[str, Any]:
        while (payload := self._codec.receive(read_exactly(self._socket, self._codec.expects))) is None:
            pass
        return authenticated_transport.decode_message(payload)

    def cut(self) -> None:
        """Shuts the connection down. The receiving thread then wakes up with an error."""
        with contextlib.suppress(OSError):  # The socket may already be closed.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _checked(answer: dict[str, Any], words: dict[str, Any], wait_s: float | None) -> dict[str, Any]:
    if "error" in answer:
        raise UsageProblem(f"The join store refused: {answer['error']}.")
    if "missing" in answer:
        missing = ", ".join(answer["missing"]) or words.get("key", "")
        raise StoreTimeout(f"{missing} was not set in the join store within {wait_s:g} s.")
    return answer


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _joined(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
