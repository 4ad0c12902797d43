"""TCP ports that are reserved for a run until its processes listen on them."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterator, Sequence

from torchyard_agent.protocol.jsonrpc import RpcError


class NoPortFree(RpcError):
    """Raised if too few ports are free, in the range that the firewall permits or on the whole host."""

    def __init__(self, wanted: int, free: int, first_last: Sequence[int] | None):
        if first_last is None:
            where, hint = "of this host's ports", "List the used ports on the host: `ss -tan`."
        else:
            where = f"of the ports {first_last[0]}-{first_last[1]}"
            hint = "Wait for runs there to end, or widen `ports` of this host in the fleet file and in its firewall."
        count = "1 is" if wanted == 1 else f"{wanted} are"
        left = "none is" if free == 0 else f"only {free} {'is' if free == 1 else 'are'}"
        super().__init__(f"{count} needed {where}, but {left} free", "no_port", hint)


class HeldPorts:
    """TCP ports that are bound but not listened on. The kernel does not assign bound ports to other processes.

    The processes that use the ports (torch's TCPStore, NCCL, gloo, Torchyard's servers) also bind them, with
    SO_REUSEADDR, and listen. The reservation remains for the next generation of the gang.
    """

    def __init__(self, sockets: dict[int, socket.socket]):
        self._sockets = sockets

    @property
    def ports(self) -> list[int]:
        return list(self._sockets)

    def take(self, port: int) -> socket.socket:
        """Returns the bound socket of a port, on which this process may listen. The caller must close the socket."""
        return self._sockets.pop(port)

    def release(self) -> None:
        """Releases all ports. May be called repeatedly."""
        sockets, self._sockets = self._sockets, {}
        for held in sockets.values():
            held.close()


def hold_ports(count: int, first_last: Sequence[int] | None = None, address: str = "") -> HeldPorts:
    """Reserves `count` ports. Raises NoPortFree if fewer are free, and then reserves none.

    Ports that have connections in TIME_WAIT are skipped.

    Args:
        first_last: The range [first, last] from which ports are chosen, or None for any port.
        address: The address at which ports are reserved, or "" for all IPv4 and IPv6 addresses, at which TCPStore
            listens.
    """
    held: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as opened:
        for port in _candidates(count, first_last):
            if len(held) == count:
                break
            bound = None if port in held else _bind(port, address)
            if bound is not None:
                held[bound.getsockname()[1]] = opened.enter_context(bound)
        if len(held) < count:
            raise NoPortFree(count, len(held), first_last)
        opened.pop_all()
    return HeldPorts(held)


def _candidates(count: int, first_last: Sequence[int] | None) -> Iterator[int]:
    """Yields the ports to try, beginning at a random port in the range.

    Concurrent launches therefore rarely collide.
    """
    if first_last is None:
        yield from [0] * (count + 16)
        return
    first, last = first_last
    size = last - first + 1
    start = random.randrange(size) if size > 0 else 0
    for step in range(size):
        yield first + (start + step) % size


def _bind(port: int, address: str) -> socket.socket | None:
    """Returns a socket that is bound to the port, or None if the port is in use or privileged.

    The socket is bound without SO_REUSEADDR, because bind() then fails if any other socket is bound to the port, even
    if that socket is not listening. The option is set afterwards, so the process that uses the port can also bind it.
    """
    for family, where in _places(address):
        bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != ""))
            bound.bind((where, port))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return bound
        except OSError as error:
            bound.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return None
            if family == socket.AF_INET6 and address == "":
                continue  # This host has no IPv6.
            raise
    return None


def _places(address: str) -> list[tuple[int, str]]:
    if address == "":
        return [(socket.AF_INET6, "::"), (socket.AF_INET, "")] if socket.has_ipv6 else [(socket.AF_INET, "")]
    return [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]
