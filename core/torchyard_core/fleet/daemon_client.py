"""The desktop's end of the conversation with one host's daemon: JSON-RPC 2.0 over the host's one channel."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from torchyard_agent.protocol import jsonrpc
from torchyard_agent.protocol.jsonrpc import MalformedMessage, RpcError
from torchyard_core.errors import AgentFailed, AgentRefused, AgentTooOld, HostError, Unreachable
from torchyard_core.fleet.channel import Channel
from torchyard_core.fleet.response_schemas import ANSWERS, NOTIFICATIONS, misfit
from torchyard_core.text_sanitizer import one_line

Listener = Callable[[dict[str, Any]], None]

CALL_TIMEOUT_S = 60.0


class Link:
    """Calls the host's daemon, and hands what it says unasked to listeners. Safe to use from several threads."""

    def __init__(self, host: str, channel: Channel, received: bytes = b""):
        """`received` is what had already come when the conversation proper began."""
        self.host = host
        self.hello: dict[str, Any] = {}
        """The daemon's own account: version, sha256, pid, node."""
        self.python: str = ""
        """The interpreter that the agent runs under, and its version."""
        self.ssh_address = ""
        """The host's address as this connection reached it; empty for a local host."""
        self.remark = ""
        """What the user should know of the agent's version; mostly nothing."""
        self.agent_is_newer = False
        """Whether the agent there is of a later version than this desktop."""
        self.archive = ""
        """SHA-256 of the archive that this desktop brought, from which its runs' keepers start."""
        self._channel = channel
        self._buffer = received
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._on_close: list[Callable[[], None]] = []
        self._closed = False
        self._fault: HostError | None = None
        """What was wrong with the last line, where that ended the conversation."""
        self._thread = threading.Thread(target=self._read, name=f"link-{host}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._closed

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        """Asks without waiting. The future's errors are those of `call`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(self._lost())
                return future
            request_id = next(self._ids)
            self._waiting[request_id] = (method, future)
        try:
            line = jsonrpc.request(request_id, method, params)
            with self._sending:
                self._channel.send(line)
        except (OSError, EOFError):
            self._close()
        except ValueError as error:
            self._waiting.pop(request_id, None)
            future.set_exception(AgentRefused(self.host, str(error), code="too_large"))
        return future

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The daemon's answer.

        Raises AgentRefused with its sentence where it says no, Unreachable where the connection ends, and AgentFailed
        where no answer comes in time.
        """
        try:
            return self.submit(method, params or {}).result(timeout_s)
        except FutureTimeout:
            raise AgentFailed(
                self.host,
                f"the agent on {self.host} did not answer {method} within {timeout_s:.0f} s.",
                hint="The host may be overloaded; try again.",
            ) from None

    def listen(self, method: str, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with each notification of this name, on the link's thread. Returns how to stop."""
        with self._lock:
            self._listeners.setdefault(method, []).append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners.get(method, []):
                    self._listeners[method].remove(listener)

        return stop

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls back once the link is gone, at once if it is gone already."""
        with self._lock:
            if not self._closed:
                self._on_close.append(callback)
                return
        callback()

    def close(self) -> None:
        """Ends the conversation; what runs on the host goes on."""
        self._close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _read(self) -> None:
        try:
            while not self._closed:
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    self._take(jsonrpc.parse(line))
                if len(self._buffer) > jsonrpc.MAX_LINE:
                    raise MalformedMessage("a line over the limit")
                data = self._channel.receive(None)
                if not data:
                    break
                self._buffer += data
        except MalformedMessage as error:
            self._fault = self._malformed(f"it sent what is no message: {error}")
        except (OSError, EOFError):
            pass  # whoever waits for an answer is told that the connection is gone
        finally:
            self._close()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            name = str(message["method"])
            if place := misfit(message.get("params", {}), NOTIFICATIONS.get(name, dict)):
                if name == "telemetry":
                    return  # the next sample may be whole
                raise MalformedMessage(f"{name} with a malformed `{one_line(place[:80])}`")
            if name == "fault":
                self._fault = self._ended(message["params"])
            with self._lock:
                listeners = list(self._listeners.get(name, []))
            for listener in listeners:
                listener(message.get("params", {}))
            return
        with self._lock:
            asked = self._waiting.pop(message.get("id", 0), None)
        if asked is None:
            return
        method, future = asked
        if "error" in message:
            error: RpcError = jsonrpc.error_of(message)
            if error.number == jsonrpc.METHOD_NOT_FOUND:
                future.set_exception(
                    AgentTooOld(self.host, str(self.hello.get("version", "")), method, is_newer=self.agent_is_newer)
                )
                return
            future.set_exception(AgentRefused(self.host, error.message, code=error.code, hint=error.hint))
        elif method in ANSWERS and (place := misfit(message.get("result"), ANSWERS[method])):
            future.set_exception(self._malformed(f"its answer to {method} is malformed at `{one_line(place[:80])}`"))
        else:
            future.set_result(message.get("result"))

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
            callbacks, self._on_close = self._on_close, []
        self._channel.close()
        for _, future in waiting:
            future.set_exception(self._lost())
        for callback in callbacks:
            callback()

    def _malformed(self, what: str) -> HostError:
        return AgentFailed(
            self.host,
            f"the agent on {self.host} does not keep to the protocol: {what}.",
            hint=f"Deploy it anew (`torchyard deploy {self.host}`). If that does not help, do not trust that host.",
            code="malformed_answer",
        )

    def _ended(self, fault: dict[str, Any]) -> HostError:
        return AgentFailed(
            self.host,
            f"the agent on {self.host} has ended: {one_line(fault['error'])}.",
            hint=f"Is there room in {one_line(fault['folder'])} there, and may this user write to it? "
            "Set `agent_dir` for another folder.",
            code="agent_ended",
        )

    def _lost(self) -> HostError:
        if self._fault is not None:
            return self._fault
        return Unreachable(
            self.host, f"the connection to {self.host} was lost.", hint="What runs there goes on; connect again."
        )
