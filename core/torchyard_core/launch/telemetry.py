"""Asks a host for its telemetry while anybody here wants it, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torchyard_core.launch.agent_interface import AgentLink

INTERVAL_S = 1.0

_watchers: WeakKeyDictionary[AgentLink, int] = WeakKeyDictionary()
"""How many watch each link: a daemon keeps one subscription a connection, which several runs here may share."""
_lock = threading.Lock()


def watch_telemetry(link: AgentLink, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Calls `listener` with a sample a second, on the link's thread. Returns how to stop."""
    unlisten = link.listen("telemetry", listener)
    with _lock:
        _watchers[link] = _watchers.get(link, 0) + 1
    link.submit("telemetry.subscribe", {"interval_s": INTERVAL_S})
    stopped = threading.Event()

    def stop() -> None:
        if stopped.is_set():
            return
        stopped.set()
        unlisten()
        with _lock:
            _watchers[link] -= 1
            is_last = not _watchers[link]
        if is_last and link.is_open:
            link.submit("telemetry.unsubscribe", {})

    return stop
