"""Graceful stop: ranks that receive SIGTERM at different times all stop after the same step.

While a rank waits in a collective, it runs no Python signal handlers, so a thread reads the signal from the wake-up
descriptor. The thread *publishes* the last step that its rank has begun, and from then on the rank waits before each
step. The first rank of the group determines the maximum of all published steps. All ranks continue to that step, which
they can finish because all of them take part in it, and stop after it.

    thread of a rank            join store                         training thread
    SIGTERM  ─────────────────> stop/<gang>/<generation>/<rank>
    rank 0, all published:      stop/<gang>/<generation>/after ──> waits at a boundary until `after` is set
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from torchyard_roles.errors import RolesError

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

AGREEMENT_S = 10.0
"""Longest time in seconds to wait until all ranks publish their steps. A rank that takes longer has probably exited."""
ECHO_S = 0.5
"""Time in seconds for which a second SIGTERM is ignored, since some programs signal a process and then its group."""
EXPECTED_S = 1.0
"""Longest wait in seconds for the request to stop after another group has stopped."""
_REQUESTED_BY_PEER = b"\xff"


class GracefulStop:
    """The graceful stop of one rank.

    Args:
        store: The join store, or None for a process that trains alone.
        ranks: Returns the ranks that are not lost. The first of them determines the last step. The default is all
            ranks.
        stop_file: The path of a file that exists if the run is being stopped. If the file does not exist, SIGTERM ends
            only this rank, and the others detect its loss. If the path is empty, every SIGTERM stops the run.
        patience_s: Time in seconds after SIGTERM within which the stop file may still appear. A scheduler signals ranks
            and keepers at the same time. The keepers then write the file, and signal the ranks again.

    Attributes:
        exit_code: The exit status of this process after a stop: 0 if the run is being stopped, otherwise 143 (SIGTERM).
    """

    def __init__(
        self,
        store: JoinStore | None,
        gang: str,
        generation: int,
        rank: int,
        size: int,
        ranks: Callable[[], Sequence[int]] | None = None,
        stop_file: str = "",
        patience_s: float = 0.0,
    ) -> None:
        self._store = store if size > 1 else None
        self._prefix = f"stop/{gang}/{generation}"
        self._rank = rank
        self._ranks = ranks or (lambda: range(size))
        self._stop_file = stop_file
        self._patience_s = patience_s
        self.exit_code = 0
        self._changed = threading.Condition()
        self._begun = 0
        self._requested = False
        self._after: int | None = None
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._earlier_descriptor = -1
        self._process = os.getpid()

    def install(self, step: int) -> bool:
        """Starts handling SIGTERM. `step` is the number of finished steps.

        Returns:
            False if the script has its own handler, or if the calling thread is not the main thread. Only the main
            thread may set a handler.
        """
        self._begun = step
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return False
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        self._sockets = receiver, sender
        signal.signal(signal.SIGTERM, _ignore_signal)
        self._earlier_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        # A forked child must not keep this handler of SIGTERM.
        os.register_at_fork(after_in_child=self._reset_in_child)
        threading.Thread(target=self._listen, name="torchyard-stopping", daemon=True).start()
        if self._store is not None:
            self._store.watch(f"{self._prefix}/asked", self._on_peer_request)
        return True

    @property
    def is_requested(self) -> bool:
        """Whether this rank has received SIGTERM, or another rank has requested the stop."""
        return self._requested

    def wait_for_request(self) -> None:
        """Waits at most EXPECTED_S for a stop request. The groups of a run receive stop requests at different times."""
        with self._changed:
            self._changed.wait_for(lambda: self._requested, EXPECTED_S)

    def continue_from(self, step: int) -> None:
        """Sets the number of finished steps when this rank joins the other ranks."""
        with self._changed:
            self._begun = step

    def may_begin(self, step: int, *, begin: bool = True) -> bool:
        """Returns whether training may continue after `step`. If not, all ranks stop after this step.

        If a stop is requested, this method waits until the ranks have determined the last step. `begin` is False if the
        caller does not begin a step immediately afterwards.
        """
        with self._changed:
            while self._requested and self._after is None:
                self._changed.wait()
            if self._after is not None and step >= self._after:
                return False
            if begin:
                self._begun = step + 1
            return True

    def uninstall(self) -> None:
        """Stops handling SIGTERM, and publishes the last step of this rank.

        If this is the main thread, SIGTERM has its default action again or, after a stop, is ignored: a rank that stops
        at the request of another rank may receive SIGTERM from the keeper of its own host only while it exits.
        """
        if self._sockets is None or os.getpid() != self._process:
            return
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._earlier_descriptor)
            if signal.getsignal(signal.SIGTERM) is _ignore_signal:
                signal.signal(signal.SIGTERM, signal.SIG_IGN if self._requested else signal.SIG_DFL)
        _, sender = self._sockets
        self._sockets = None
        sender.close()  # Closing the sender ends the thread that reads signals.
        self._publish_last()

    def _publish_last(self) -> None:
        """Publishes this rank's last step, so that the other ranks do not wait for this rank if they stop later."""
        if self._store is None or self._requested:
            return
        with suppress(RolesError):
            last = str(self._begun).encode()
            self._store.set(f"{self._prefix}/{self._rank}", last)
            if self._rank == self._ranks()[0]:
                self._store.set(f"{self._prefix}/after", last)

    def _reset_in_child(self) -> None:
        if self._sockets is None:
            return
        self._sockets = None
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _ignore_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_peer_request(self, _: bytes) -> None:
        sockets = self._sockets
        if sockets is not None:
            try:
                sockets[1].send(_REQUESTED_BY_PEER)
            except OSError:  # The socket is closed, or its buffer is full of signals.
                return

    def _listen(self) -> None:
        assert self._sockets is not None
        receiver = self._sockets[0]
        first: float | None = None
        with receiver:
            while data := receiver.recv(64):
                if self._earlier_descriptor >= 0:
                    os.write(self._earlier_descriptor, data)
                if signal.SIGTERM in data:
                    now = time.monotonic()
                    if first is not None and now - first > max(ECHO_S, self._patience_s):
                        _end("ended by a second SIGTERM, without saving")
                    first = first if first is not None else now
                if signal.SIGTERM in data or _REQUESTED_BY_PEER in data:
                    by_peer = signal.SIGTERM not in data
                    threading.Thread(target=self._stop, args=(by_peer,), name="torchyard-stop", daemon=True).start()

    def _stop(self, by_peer: bool) -> None:
        if not by_peer and self._stop_file and not self._is_stopped():
            self.exit_code = 128 + signal.SIGTERM
            if self._store is not None:
                _end("ended by SIGTERM without saving: the run was not stopped")
        with self._changed:
            if self._requested:
                return
            self._requested = True
            begun = self._begun
            self._changed.notify_all()
        try:
            after = begun if self._store is None else self._agree(self._store, begun)
        except RolesError as error:
            _end(f"ended by SIGTERM without saving: the ranks could not agree on a step to end after ({error})")
        with self._changed:
            self._after = after
            self._changed.notify_all()

    def _is_stopped(self) -> bool:
        """Returns whether the stop file exists or appears in time."""
        deadline = time.monotonic() + self._patience_s
        while not Path(self._stop_file).exists():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def _agree(self, store: JoinStore, begun: int) -> int:
        """Determines the step after which all ranks stop.

        Raises StoreLost, or StoreTimeout if a rank does not publish its step in time.
        """
        store.set(f"{self._prefix}/{self._rank}", str(begun).encode())
        store.set(f"{self._prefix}/asked", b"1")
        ranks = self._ranks()
        if self._rank != ranks[0]:
            return int(store.get(f"{self._prefix}/after", AGREEMENT_S))
        deadline = time.monotonic() + AGREEMENT_S
        published = [int(store.get(f"{self._prefix}/{rank}", max(0.0, deadline - time.monotonic()))) for rank in ranks]
        store.set(f"{self._prefix}/after", str(max(published)).encode())
        return max(published)


def _ignore_signal(*_: Any) -> None:
    """Does nothing. Python requires a handler for the signal, which a thread reads from the wake-up descriptor."""


def _end(why: str) -> None:
    print(f"torchyard: {why}", file=sys.stderr, flush=True)
    os._exit(128 + signal.SIGTERM)
