"""Logins on bastions. Hosts with the same route to a bastion share one login, which is closed when no host needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from torchyard_core.errors import HostError
from torchyard_core.fleet.ssh.route import Route

if TYPE_CHECKING:
    from torchyard_core.fleet.ssh.connection import SshConnection

Connect = Callable[[Route], "SshConnection"]


class Bastion:
    """A shared login on a bastion. It is closed when the last connection releases it."""

    def __init__(self, bastions: Bastions):
        self.login: Future[SshConnection] = Future()
        self.users = 0
        self._bastions = bastions

    @property
    def usable(self) -> bool:
        """Whether the login is in progress or active."""
        return not self.login.done() or (self.login.exception() is None and self.login.result().is_active)

    @property
    def connection(self) -> SshConnection:
        return self.login.result()

    def release(self) -> None:
        """Ends the use of the login by one connection. The last release closes the login."""
        self._bastions.release(self)


class Bastions:
    def __init__(self, connect: Connect):
        self._connect = connect
        self._lock = threading.Lock()
        self._shared: dict[Route, Bastion] = {}

    def lease(self, route: Route) -> Bastion:
        """Returns the login on a bastion. The first caller logs in, and later callers share the login.

        Each caller has to release the returned bastion. Raises HostError if the login fails.
        """
        with self._lock:
            bastion = self._shared.get(route)
            first = bastion is None or not bastion.usable
            if bastion is None or first:
                bastion = self._shared[route] = Bastion(self)
            bastion.users += 1
        if first:
            try:
                bastion.login.set_result(self._connect(route))
            except BaseException as error:  # All threads that wait for this login get the error from the future.
                bastion.login.set_exception(error)
        try:
            bastion.login.result()
        except HostError as error:
            self.release(bastion)
            raise _copy(error) from error
        # After KeyboardInterrupt, the caller must not remain counted as a user of the bastion.
        except BaseException:
            self.release(bastion)
            raise
        return bastion

    def release(self, bastion: Bastion) -> None:
        with self._lock:
            bastion.users -= 1
            if bastion.users:
                return
            for route in [route for route, shared in self._shared.items() if shared is bastion]:
                del self._shared[route]
        if bastion.login.done() and bastion.login.exception() is None:
            bastion.login.result().close()


def _copy(error: HostError) -> HostError:
    """Returns a copy of the error that another thread can raise."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.args = error.args
    return copy
