"""The links of one worker to all parameter servers: exchanges with all servers, and reconnecting to lost servers."""

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
"""Longest time in seconds for which the chief waits for a lost worker group.

It exceeds the time for which a keeper waits for a lost host.
"""
SAY_WAITING_S = 5.0
RETRY_S = 60.0
"""Longest time in seconds for which a worker of an asynchronous strategy waits for a lost server."""


class Servers:
    """The links of one worker to all parameter servers.

    Args:
        name: The name of the worker.
        reenter: A function that joins a server that was restarted.
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
        """Waits until an exchange is complete, installs the received parameters, and reconnects to lost servers."""
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
        """Waits until a lost server has restarted, and joins it again.

        Raises PeerLost after RETRY_S, or if another peer is lost.

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
        """Waits until all other groups have left, or the remaining groups have been unreachable for AWAY_S.

        Args:
            logs: Whether to print which groups have not yet left.
        """
        for link in self._links:
            self._wait_for_other_groups(link, is_logged=not logs)

    def _wait_for_other_groups(self, link: ServerLink, *, is_logged: bool) -> None:
        """Waits until the other groups have left one server, and reconnects if that server is lost."""
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
    """Calls `act` for all items in parallel. Raises the error of the first item whose call failed, if any."""
    if len(each) == 1:
        act(each[0])
        return
    with ThreadPoolExecutor(len(each), thread_name_prefix="servers") as pool:
        outcomes = [pool.submit(act, one) for one in each]
    for outcome in outcomes:
        outcome.result()
