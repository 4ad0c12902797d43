"""This host's own addresses, and TCP ports held for a run until its processes listen on them."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
from collections.abc import Iterator, Sequence

from torchyard_agent.protocol.jsonrpc import RpcError

_DISCARD_PORT = 9
"""A UDP socket's `connect` sends nothing; any port does."""
_RTM_GETADDR = 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")
_ADDRESS_MESSAGE = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NETLINK_TIMEOUT_S = 2.0


def address_towards(host: str) -> str:
    """The address of this host from which it reaches `host` (a name or an address). Raises RpcError."""
    try:
        found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise RpcError(f"this host cannot resolve {host}: {error.strerror or error}", "no_route", _NO_ROUTE) from error
    reason: OSError | None = None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:
            reason = error
    raise RpcError(f"this host has no way to {host}: {reason}", "no_route", _NO_ROUTE)


_NO_ROUTE = "Set `data_address` of the hosts in the fleet file to addresses that they reach each other by."


def interface_of(address: str) -> str | None:
    """The network interface that has this address (IPv4 or IPv6, first or further), or None."""
    plain = address.split("%", 1)[0]
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            packed = socket.inet_pton(family, plain)
            for index, own in _own_addresses(family):
                if own == packed:
                    return socket.if_indextoname(index)
    return None


def _own_addresses(family: int) -> Iterator[tuple[int, bytes]]:
    """(interface's index, packed address) of all own addresses: rtnetlink(7), as `ip address` asks for them."""
    length = _HEADER.size + _ADDRESS_MESSAGE.size
    request = _HEADER.pack(length, _RTM_GETADDR, _REQUEST_DUMP, 1, 0) + _ADDRESS_MESSAGE.pack(family, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_NETLINK_TIMEOUT_S)
        kernel.send(request)
        while True:
            answer = kernel.recv(65536)
            while len(answer) >= _HEADER.size:
                size, kind, _, _, _ = _HEADER.unpack_from(answer)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return
                _, _, _, _, index = _ADDRESS_MESSAGE.unpack_from(answer, _HEADER.size)
                attributes = dict(_attributes(answer[length:size]))
                # Of a point-to-point link, _IFA_ADDRESS is the other end.
                own = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
                if own is not None:
                    yield index, own
                answer = answer[_aligned(size) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[_aligned(size) :]


def _aligned(size: int) -> int:
    return size + 3 & ~3


class NoPortFree(RpcError):
    """The range that the firewall lets through is used up."""

    def __init__(self, wanted: int, free: int, first_last: Sequence[int] | None):
        if first_last is None:
            where, hint = "of this host's ports", "Look what uses so many there: `ss -tan`."
        else:
            where = f"of the ports {first_last[0]}-{first_last[1]}"
            hint = "Let runs there end, or widen `ports` of this host in the fleet file and in its firewall."
        count = "1 is" if wanted == 1 else f"{wanted} are"
        left = "none is" if free == 0 else f"only {free} {'is' if free == 1 else 'are'}"
        super().__init__(f"{count} needed {where}, but {left} free", "no_port", hint)


class HeldPorts:
    """TCP ports that are bound, so that nobody else is given them, but not listened on.

    Whoever they are meant for (torch's TCPStore, NCCL, gloo, our own servers) binds over them with SO_REUSEADDR,
    as all of them do, and listens. They stay held meanwhile, for the next generation of a gang.
    """

    def __init__(self, sockets: dict[int, socket.socket]):
        self._sockets = sockets

    @property
    def ports(self) -> list[int]:
        return list(self._sockets)

    def take(self, port: int) -> socket.socket:
        """The bound socket itself, for listening on it in this process. It is held no longer: the caller closes it."""
        return self._sockets.pop(port)

    def release(self) -> None:
        """Lets go of all. May be called twice."""
        sockets, self._sockets = self._sockets, {}
        for held in sockets.values():
            held.close()


def hold_ports(count: int, first_last: Sequence[int] | None = None, address: str = "") -> HeldPorts:
    """Holds `count` ports, all or none. Raises NoPortFree.

    `first_last`: the range [first, last] to choose from; None for any. `address`: where to hold them; "" for all
    addresses, IPv4 and IPv6, which is what TCPStore listens on. Ports that still have connections in TIME_WAIT are
    left alone.
    """
    held: dict[int, socket.socket] = {}
    try:
        for port in _candidates(count, first_last):
            if len(held) == count:
                break
            if port in held:
                continue
            bound = _bind(port, address)
            if bound is not None:
                held[bound.getsockname()[1]] = bound
        if len(held) < count:
            raise NoPortFree(count, len(held), first_last)
    except BaseException:
        for bound in held.values():
            bound.close()
        raise
    return HeldPorts(held)


def _candidates(count: int, first_last: Sequence[int] | None) -> Iterator[int]:
    """Ports to try. From anywhere in a range, so that hosts and runs that start together rarely try the same."""
    if first_last is None:
        yield from [0] * (count + 16)
        return
    first, last = first_last
    size = last - first + 1
    start = random.randrange(size) if size > 0 else 0
    for step in range(size):
        yield first + (start + step) % size


def _bind(port: int, address: str) -> socket.socket | None:
    """A socket bound to the port, or None where anybody else has it.

    Bound without SO_REUSEADDR, which Linux allows only where nobody else has bound the port, be it without listening
    (with SO_REUSEADDR on both it would let two hold it). The option is set afterwards, which lets others bind over.
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
            if error.errno in (errno.EADDRINUSE, errno.EACCES):  # somebody has it; or below 1024 and we may not
                return None
            if family == socket.AF_INET6 and address == "":
                continue  # a host without IPv6
            raise
    return None


def _places(address: str) -> list[tuple[int, str]]:
    if address == "":
        return [(socket.AF_INET6, "::"), (socket.AF_INET, "")] if socket.has_ipv6 else [(socket.AF_INET, "")]
    return [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]
