"""The addresses and interfaces of this host."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from torchyard_agent.protocol.jsonrpc import RpcError

_DISCARD_PORT = 9
"""An arbitrary port. Nothing is sent to it, because connect() on a UDP socket only chooses a route."""
_RTM_GETADDR = 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")
_ADDRESS_MESSAGE = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_NETLINK_TIMEOUT_S = 2.0


def address_towards(host: str) -> str:
    """Returns the local address through which this host reaches `host` (a name or an address).

    Raises RpcError if `host` cannot be resolved or reached.
    """
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
    raise RpcError(f"this host has no route to {host}: {reason}", "no_route", _NO_ROUTE)


_NO_ROUTE = "Set `data_address` of the hosts in the fleet file to addresses at which they reach each other."


def interface_of(address: str) -> str | None:
    """Returns the name of the network interface that has this IPv4 or IPv6 address, or None if no interface has it."""
    plain = address.split("%", 1)[0]
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            packed = socket.inet_pton(family, plain)
            for index, own in _own_addresses(family):
                if own == packed:
                    return socket.if_indextoname(index)
    return None


def _own_addresses(family: int) -> Iterator[tuple[int, bytes]]:
    """Yields (interface index, packed address) of all addresses of this host.

    Reads them through rtnetlink(7), as the command `ip address` does.
    """
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
                # On a point-to-point link, _IFA_ADDRESS is the address of the peer.
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
