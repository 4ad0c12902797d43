"""A worker's links to all parameter servers: exchanges with all of them, and recovery of lost servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torchyard_roles.errors import PeerLost
from torchyard_roles.exchange.chunk_staging import Staging
from torchyard_roles.strategies.parameter_server.server_link import Completion, Exchange, ServerLink

T = TypeVar("T")

AWAY_S = 660.0
"""Longest wait in seconds of the chief for a lost worker group, longer than a keeper waits for a lost host."""
SAY_WAITING_S = 5.0
RETRY_S = 60.0
"""Longest wait in seconds of a worker of an asynchronous strategy for a lost server."""


class Servers:
    """All parameter servers of one worker.

    Args:
        name: The name of the worker.
        reenter: Joins a server that was restarted.
    """

    def __init__(
        self, name: str, links: Sequence[ServerLink], staging: Staging, reenter: Callable[[ServerLink], None]
    ) -> None:
        self._name = name
        self._links = links
        self._staging = staging
        self._reenter = reenter

    def begin(self, exchange: Exchange) -> Completion:
        """Begins an exchange with all servers."""
        completion = Completion(len(self._links))
        for link in self._links:
            link.begin(exchange, completion)
        return completion

    def finish(self, completion: Completion, *, pulls: bool) -> None:
        """Waits for an exchange, installs the received parameters, and recovers lost servers."""
        completion.wait()
        if pulls:
            for link in self._links:
                if link not in completion.lost:
                    self._staging.install(link.chunks)
                    link.installed()
        for link in completion.lost:
            self.recover(link)

    def pull(self) -> None:
        """Receives and installs the newest parameters."""
        self.finish(self.begin(self._pulling()), pulls=True)

    def _pulling(self) -> Exchange:
        return Exchange(gradient=None, target=self._staging.target, arrived=self._staging.arrived)

    def recover(self, link: ServerLink) -> None:
        """Waits for the restart of a lost server and joins it. Raises PeerLost after RETRY_S or for another loss.

        Pushes that were in progress are lost.
        """
        name = link.peer.name
        print(f"torchyard: {self._name} has lost {name} and waits for its return.", flush=True)
        deadline = time.monotonic() + RETRY_S
        while True:
            try:
                link.connect(max(0.1, deadline - time.monotonic()))
                self._reenter(link)
                completion = Completion(1)
                link.begin(self._pulling(), completion)
                completion.wait()
                if not completion.lost:
                    self._staging.install(link.chunks)
                    link.installed()
                    print(f"torchyard: {self._name} is connected to {name} again.", flush=True)
                    return
            except PeerLost as error:
                if time.monotonic() >= deadline or not link.tolerates(error):
                    raise
            time.sleep(0.2)

    def wait_for_other_groups(self, *, logs: bool) -> None:
        """Waits until all other groups have left, or those that are left have been unreachable for AWAY_S.

        Args:
            logs: Whether to print which groups are missing.
        """
        for link in self._links:
            self._wait_for_other_groups(link, is_logged=not logs)

    def _wait_for_other_groups(self, link: ServerLink, *, is_logged: bool) -> None:
        """Waits for the other groups on one server, and recovers that server if it is lost."""
        began = here_at = time.monotonic()
        while True:
            try:
                answer = link.command({"op": "rest", "within_s": 1.0 if is_logged else SAY_WAITING_S})
            except PeerLost as error:
                if not link.tolerates(error):
                    raise
                self.recover(link)
                continue
            waiting, now = answer["waiting"], time.monotonic()
            here_at = now if answer["here"] else here_at
            if not waiting or (not answer["here"] and max(now - here_at, float(answer["away_s"])) > AWAY_S):
                return
            if not is_logged and now - began >= SAY_WAITING_S:
                groups = ", ".join(str(group) for group in waiting)
                print(f"torchyard: {self._name} waits for worker groups {groups}.", flush=True)
                is_logged = True


def on_all(each: Sequence[T], act: Callable[[T], Any]) -> None:
    """Calls `act` for all items in parallel. Raises the error of the first item that failed, in the order of items."""
    if len(each) == 1:
        act(each[0])
        return
    with ThreadPoolExecutor(len(each), thread_name_prefix="servers") as pool:
        outcomes = [pool.submit(act, one) for one in each]
    for outcome in outcomes:
        outcome.result()
