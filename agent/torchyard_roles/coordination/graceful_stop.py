"""Leaving together: ranks that SIGTERM reaches at different moments all end after the same step.

A rank that waits for its peers inside a collective runs no Python, so the signal is read from its wake-up descriptor
by a thread. It *publishes* the step that its rank has begun (or done, between two steps), and from then on the rank
begins no further one without leave. The first rank of the group takes the most that anybody has begun: that step
everybody finishes, since all its participants are still there, and after it all leave.

    a rank's thread             the store                          its training
    SIGTERM  ─────────────────> stop/<gang>/<generation>/<rank>
    the first: all published?   stop/<gang>/<generation>/after ──> parked at a boundary until it is known
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchyard_roles.errors import RolesError

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

AGREEMENT_S = 10.0
"""For all ranks to publish. Their threads do so at once; one that does not is gone, and nothing can be agreed."""
ECHO_S = 0.5
"""A second SIGTERM this soon is the same one: some programs signal a process, and then its group."""
_ASKED_BY_ANOTHER = b"\xff"


class GracefulStop:
    """One rank's part in it. `store` is None for a process that trains alone."""

    def __init__(self, store: JoinStore | None, gang: str, generation: int, rank: int, size: int) -> None:
        self._store = store if size > 1 else None
        self._prefix = f"stop/{gang}/{generation}"
        self._failed = f"failed/{gang}/{generation}"
        self._rank = rank
        self._size = size
        self._changed = threading.Condition()
        self._begun = 0
        self._asked = False
        self._after: int | None = None
        self._ears: tuple[socket.socket, socket.socket] | None = None
        self._earlier_descriptor = -1
        self._process = os.getpid()

    def install(self, step: int) -> bool:
        """Answer SIGTERM from now on; `step` are done. False where it stays as it is: the script answers it itself,
        or this is not the main thread, which alone may change it."""
        self._begun = step
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return False
        heard, wake = socket.socketpair()
        wake.setblocking(False)
        self._ears = heard, wake
        signal.signal(signal.SIGTERM, _heard)
        self._earlier_descriptor = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)  # a child's SIGTERM is no business of the rank's
        threading.Thread(target=self._listen, name="torchyard-stopping", daemon=True).start()
        if self._store is not None:
            self._store.watch(f"{self._prefix}/asked", self._asked_by_another)
        return True

    def may_begin(self, step: int, *, begin: bool = True) -> bool:
        """At the boundary after `step`: whether to go on. False: leave here, as all others do.

        Waits while that is being agreed. `begin` is False where the next step isn't begun yet.
        """
        with self._changed:
            while self._asked and self._after is None:
                self._changed.wait()
            if self._after is not None and step >= self._after:
                return False
            if begin:
                self._begun = step + 1
            return True

    @property
    def asked(self) -> bool:
        return self._asked

    def uninstall(self) -> None:
        """SIGTERM is the system's again: there is no step left to end after."""
        if self._ears is None or os.getpid() != self._process:
            return
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._earlier_descriptor)
            if signal.getsignal(signal.SIGTERM) is _heard:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _, wake = self._ears
        self._ears = None
        wake.close()  # the thread reads the end, and ends
        self._publish_last()

    def _publish_last(self) -> None:
        """So that a stop which comes later, while others are still at their ends, does not wait for this rank."""
        if self._store is None or self._asked:
            return
        with suppress(RolesError):
            last = str(self._begun).encode()
            self._store.set(f"{self._prefix}/{self._rank}", last)
            if not self._rank:
                self._store.set(f"{self._prefix}/after", last)

    def _forget(self) -> None:
        if self._ears is None:
            return
        self._ears = None
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _asked_by_another(self, _: bytes) -> None:
        ears = self._ears
        if ears is not None:
            try:
                ears[1].send(_ASKED_BY_ANOTHER)
            except OSError:  # full of signals already, or just closed
                return

    def _listen(self) -> None:
        assert self._ears is not None
        heard = self._ears[0]
        first: float | None = None
        with heard:
            while data := heard.recv(64):
                if self._earlier_descriptor >= 0:
                    os.write(self._earlier_descriptor, data)
                if signal.SIGTERM in data:
                    now = time.monotonic()
                    if first is not None and now - first > ECHO_S:
                        _end("ended by a second SIGTERM, without saving")
                    first = first if first is not None else now
                if signal.SIGTERM in data or _ASKED_BY_ANOTHER in data:
                    threading.Thread(target=self._stop, name="torchyard-stop", daemon=True).start()

    def _stop(self) -> None:
        with self._changed:
            if self._asked:
                return
            self._asked = True
            begun = self._begun
        try:
            after = begun if self._store is None else self._agree(self._store, begun)
        except RolesError as error:
            _end(f"ended by SIGTERM without saving: the ranks could not agree on a step to end after ({error})")
        with self._changed:
            self._after = after
            self._changed.notify_all()

    def _agree(self, store: JoinStore, begun: int) -> int:
        """The step after which all leave. Raises StoreLost and StoreTimeout.

        In a gang that has failed some are gone, and nothing can be agreed: the keeper says so before its SIGTERM.
        """
        store.watch(self._failed, lambda _: _end("ended: another of its gang has failed"))
        store.set(f"{self._prefix}/{self._rank}", str(begun).encode())
        store.set(f"{self._prefix}/asked", b"1")
        if self._rank:
            return int(store.get(f"{self._prefix}/after", AGREEMENT_S))
        deadline = time.monotonic() + AGREEMENT_S
        published = [
            int(store.get(f"{self._prefix}/{rank}", max(0.0, deadline - time.monotonic())))
            for rank in range(self._size)
        ]
        store.set(f"{self._prefix}/after", str(max(published)).encode())
        return max(published)


def _heard(*_: Any) -> None:
    """Python's own handler has nothing to do: the thread has read the signal before it runs."""


def _end(why: str) -> None:
    print(f"torchyard: {why}", file=sys.stderr, flush=True)
    os._exit(128 + signal.SIGTERM)
