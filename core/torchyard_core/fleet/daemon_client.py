"""Client of a host's daemon: JSON-RPC 2.0 over the channel to the host."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from torchyard_agent.protocol import jsonrpc
from torchyard_agent.protocol.jsonrpc import MalformedMessage, RpcError
from torchyard_core.errors import AgentFailed, AgentRefused, AgentTooOld, HostError, Unreachable, agent_advice
from torchyard_core.fleet.channel import Channel
from torchyard_core.fleet.response_schemas import ANSWERS, NOTIFICATIONS, find_mismatch
from torchyard_core.next_steps import CheckHosts, DeployAgent, SetHostField
from torchyard_core.text_sanitizer import one_line

Listener = Callable[[dict[str, Any]], None]

CALL_TIMEOUT_S = 60.0


class DaemonClient:
    """Sends requests to a host's daemon and passes its notifications to listeners. Thread-safe."""

    def __init__(self, host: str, channel: Channel, received: bytes = b""):
        """Creates a client.

        `received` contains bytes from the daemon that the caller has already read from the channel.
        """
        self.host = host
        self.hello: dict[str, Any] = {}
        """The daemon's answer to `hello`, with its version, sha256 and pid. Empty until the answer has arrived."""
        self.python: str = ""
        """Version and path of the agent's interpreter."""
        self.ssh_address = ""
        """The address at which the host accepted the SSH connection; empty for a local host."""
        self.remark = ""
        """A message to the user about the agent's version; usually empty."""
        self.agent_is_newer = False
        """Whether the agent's version is newer than this desktop's."""
        self.archive = ""
        """SHA-256 of this desktop's agent archive, from which the keepers of this desktop's runs are started."""
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
        """The error that ended the connection, if it is known."""
        self._thread = threading.Thread(target=self._read, name=f"link-{host}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._closed

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        """Sends a request. The returned future raises the same errors as `call`, but has no time limit."""
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
        """Sends a request and waits for the answer.

        Raises:
            AgentRefused: The daemon refused the request; the error has the daemon's message.
            Unreachable: The connection ended.
            AgentFailed: The answer did not arrive in time or was malformed, or the daemon exited with an error.
        """
        try:
            return self.submit(method, params or {}).result(timeout_s)
        except FutureTimeout:
            message = f"the agent on {self.host} did not answer {method} within {timeout_s:.0f} s."
            raise AgentFailed(self.host, message, hint="The host may be overloaded; try again.") from None

    def listen(self, method: str, listener: Listener) -> Callable[[], None]:
        """Registers a listener for a notification, and returns a function that removes it.

        The listener is called on the client's thread.
        """
        with self._lock:
            self._listeners.setdefault(method, []).append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners.get(method, []):
                    self._listeners[method].remove(listener)

        return stop

    def on_close(self, callback: Callable[[], None]) -> None:
        """Registers a callback for the end of the connection.

        If the connection has already ended, the callback is called immediately.
        """
        with self._lock:
            if not self._closed:
                self._on_close.append(callback)
                return
        callback()

    def close(self) -> None:
        """Closes the connection. Runs on the host continue."""
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
            self._fault = self._malformed(f"it sent an invalid message: {error}")
        except (OSError, EOFError):
            pass  # `_close` makes all pending requests fail.
        finally:
            self._close()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            name = str(message["method"])
            if place := find_mismatch(message.get("params", {}), NOTIFICATIONS.get(name, dict)):
                if name == "telemetry":
                    return  # A malformed sample is ignored, because the next one will arrive soon.
                raise MalformedMessage(f"{name} with a malformed `{one_line(place[:80])}`")
            if name == "fault":
                self._fault = self._ended(message["params"])
            with self._lock:
                listeners = list(self._listeners.get(name, []))
            for listener in listeners:
                listener(message.get("params", {}))
            return
        with self._lock:
            pending = self._waiting.pop(message.get("id", 0), None)
        if pending is None:
            return
        method, future = pending
        if "error" in message:
            error: RpcError = jsonrpc.error_of(message)
            if error.number == jsonrpc.METHOD_NOT_FOUND:
                future.set_exception(
                    AgentTooOld(self.host, str(self.hello.get("version", "")), method, is_newer=self.agent_is_newer)
                )
                return
            advice = agent_advice(self.host, error.code, error.hint, error.run_id)
            future.set_exception(AgentRefused(self.host, error.message, code=error.code, hint=advice))
        elif method in ANSWERS and (place := find_mismatch(message.get("result"), ANSWERS[method])):
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

    def _malformed(self, detail: str) -> HostError:
        message = f"the agent on {self.host} violates the protocol: {detail}."
        hint = ("Deploy it again. If that does not help, do not trust that host.", DeployAgent(self.host))
        return AgentFailed(self.host, message, hint=hint, code="malformed_answer")

    def _ended(self, fault: dict[str, Any]) -> HostError:
        message = f"the agent on {self.host} has ended: {one_line(fault['error'])}."
        hint = (
            f"Is there room in {one_line(fault['folder'])} there, and may this user write to it?",
            SetHostField(self.host, "agent_dir"),
        )
        return AgentFailed(self.host, message, hint=hint, code="agent_ended")

    def _lost(self) -> HostError:
        if self._fault is not None:
            return self._fault
        message = f"the connection to {self.host} was lost."
        return Unreachable(self.host, message, hint=("Runs there continue.", CheckHosts((self.host,))))
