"""Ways between hosts on the data network: whether one reaches the other at a port, and how fast bytes come across.

A host listens for a moment at ports that a run holds there (bound, not listening, which lets us listen over them) or
at one of its range. Who comes says a token that only the desktop of the launch knows; strangers are sent away. No
connection is closed the polite way, so that none lingers in TIME_WAIT at a port that a rank is about to take.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from functools import partial
from typing import Any

from torchyard_agent import network_addresses, port_reservation
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.unix_socket_rpc import Connection, Method

CONNECT_S = 3.0
"""A first SYN that was lost is sent again after 1 s."""
GREETING_S = 2.0
LISTEN_S = 60.0
"""Nobody listens longer, whatever became of the desktop."""
LONGEST_PULL_S = 1.0
STALLED_S = 0.8
"""A pair that carries nothing for so long is given up: all pairs take turns, and each has 2 s at most."""
WARM_UP_S = 0.1
"""Of a measurement, for TCP to open its window."""
BUSY_BYTES_S = 5_000_000
BUSY_SHARE = 0.05
"""More than this of an interface's speed, and than the bytes above, is traffic that no measurement should disturb."""
LOOK_AT_TRAFFIC_S = 0.3
"""Those who train exchange in bursts, a step apart."""
_CHUNK = 1 << 20
_RESET = struct.pack("ii", 1, 0)

Params = dict[str, Any]


class Ways:
    """The methods `network.*`. Each launch listens under its own token."""

    def __init__(self) -> None:
        self._listeners: dict[str, _Listener] = {}

    def table(self) -> dict[str, Method]:
        return {
            "network.listen": self.listen,
            "network.reach": self.reach,
            "network.pull": self.pull,
            "network.close": self.close,
        }

    async def listen(self, connection: Connection, params: Params) -> Any:
        """Listens at `address`: at each of `ports` (held for a run), or at one of `port_range` (null: any).

        Returns `address`, `ports` and, with `traffic`, whether the interface there is `busy` with something else.
        """
        token = str(params["token"])
        address = params.get("address") or network_addresses.address_towards(str(params["towards"]))
        self._end(token)
        listener = self._listeners[token] = _Listener(token, address)
        try:
            ports = params.get("ports")
            if ports is None:
                listener.hold(params.get("port_range"))
            else:
                for port in ports:
                    listener.add(int(port))
        except BaseException:
            self._end(token)
            raise
        connection.on_close.append(partial(self._end, token))
        asyncio.get_running_loop().call_later(LISTEN_S, self._end, token)
        busy = await _is_busy(address) if params.get("traffic") else False
        return {"address": address, "ports": listener.ports, "busy": busy}

    async def reach(self, connection: Connection, params: Params) -> Any:
        """Tries every target {`host`, `address`, `port`}; those that were not reached, each with its `error`."""
        token, source = str(params["token"]), params.get("source")
        tried = [_try(token, source, target) for target in params["targets"]]
        return [failure for failure in await asyncio.gather(*tried) if failure is not None]

    async def pull(self, connection: Connection, params: Params) -> Any:
        """Takes bytes from `address`:`port` for `seconds`; returns how many came a second (`bytes_s`)."""
        seconds = min(float(params["seconds"]), LONGEST_PULL_S)
        where = (str(params["address"]), int(params["port"]))
        pulling = partial(_pull, str(params["token"]), params.get("source"), where, seconds)
        try:
            return {"bytes_s": await asyncio.get_running_loop().run_in_executor(None, pulling)}
        except OSError as error:
            raise RpcError(f"{where[0]}:{where[1]} gave no data: {_reason(error)}", "no_way") from error

    async def close(self, connection: Connection, params: Params) -> Any:
        """Ends the listening; done when this returns."""
        self._end(str(params["token"]))
        return {}

    def _end(self, token: str) -> None:
        listener = self._listeners.pop(token, None)
        if listener is not None:
            listener.close()


class _Listener:
    """Sockets of one token at one address."""

    def __init__(self, token: str, address: str):
        self._token = token.encode() + b"\n"
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # Behind NAT the host does not have the address that others reach it by.
        self._address = address if network_addresses.interface_of(address) else ""
        self._sockets: list[socket.socket] = []
        self._held: port_reservation.HeldPorts | None = None
        self._visitors: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> list[int]:
        return [int(listening.getsockname()[1]) for listening in self._sockets]

    def add(self, port: int) -> None:
        """Listens at a port that somebody of this user holds. Raises OSError."""
        listening = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._address, port))
        self._serve(listening)

    def hold(self, port_range: Any) -> None:
        """Listens at a port of the range. Raises NoPortFree."""
        held = port_reservation.hold_ports(1, port_range, self._address)
        listening = held.take(held.ports[0])
        self._sockets.append(listening)
        self._serve(listening)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()
        for visitor in self._visitors:
            visitor.cancel()

    def _serve(self, listening: socket.socket) -> None:
        listening.listen(64)
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._meet, listening)

    def _meet(self, listening: socket.socket) -> None:
        try:
            visitor, _ = listening.accept()
        except OSError:
            return
        visitor.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._talk(visitor))
        self._visitors.add(task)
        task.add_done_callback(self._visitors.discard)

    async def _talk(self, visitor: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _close_without_lingering(visitor)
        handed_over = False
        try:
            said = b""
            wanted = len(self._token) + len(b"pull\n")
            deadline = loop.time() + GREETING_S
            while len(said) < wanted and loop.time() < deadline:
                data = await asyncio.wait_for(loop.sock_recv(visitor, wanted - len(said)), deadline - loop.time())
                if not data:
                    return
                said += data
            if said == self._token + b"here\n":
                await loop.sock_sendall(visitor, b"here\n")
                with contextlib.suppress(OSError):
                    await asyncio.wait_for(loop.sock_recv(visitor, 1), GREETING_S)  # until the other side has left
            elif said == self._token + b"pull\n":
                handed_over = True
                await loop.run_in_executor(None, _pour, visitor)
        except (OSError, asyncio.TimeoutError):
            pass  # a stranger, or one that has gone
        finally:
            if not handed_over:
                visitor.close()


async def _try(token: str, source: str | None, target: Params) -> Params | None:
    """The target with its `error`; None where it was reached."""
    loop = asyncio.get_running_loop()
    address, port = str(target["address"]), int(target["port"])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as way:
        way.setblocking(False)
        _close_without_lingering(way)
        try:
            if source and network_addresses.interface_of(source):
                way.bind((source, 0))
            await asyncio.wait_for(loop.sock_connect(way, (address, port)), CONNECT_S)
            await asyncio.wait_for(loop.sock_sendall(way, f"{token}\nhere\n".encode()), GREETING_S)
            said = await asyncio.wait_for(loop.sock_recv(way, 16), GREETING_S)
        except asyncio.TimeoutError:
            return {**target, "error": f"no answer within {CONNECT_S:.0f} s"}
        except OSError as error:
            return {**target, "error": _reason(error)}
    return None if said == b"here\n" else {**target, "error": "something else answers there"}


def _pull(token: str, source: str | None, where: tuple[str, int], seconds: float) -> float:
    """Bytes a second, once the connection is warm. Blocks; raises OSError."""
    own = (source, 0) if source and network_addresses.interface_of(source) else None
    with socket.create_connection(where, STALLED_S, own) as way:
        _close_without_lingering(way)
        way.sendall(f"{token}\npull\n".encode())
        buffer = memoryview(bytearray(_CHUNK))
        begin = counting = time.monotonic()
        came = 0
        while True:
            size = way.recv_into(buffer)
            now = time.monotonic()
            if not size:
                raise ConnectionResetError("the other side has closed")
            if now - begin < WARM_UP_S:
                counting, came = now, 0
                continue
            came += size
            if now - begin >= seconds:
                return came / max(now - counting, 1e-6)


def _pour(visitor: socket.socket) -> None:
    """Sends zeros until the other side has enough of them."""
    chunk = bytes(_CHUNK)
    visitor.settimeout(GREETING_S)
    end = time.monotonic() + LONGEST_PULL_S + GREETING_S
    with contextlib.suppress(OSError), visitor:
        while time.monotonic() < end:
            visitor.sendall(chunk)


async def _is_busy(address: str) -> bool:
    """Whether the interface of this address carries traffic that a measurement would disturb, or be disturbed by."""
    interface = network_addresses.interface_of(address)
    if interface is None:
        return False
    before, begin = _traffic(interface), time.monotonic()
    await asyncio.sleep(LOOK_AT_TRAFFIC_S)
    rate = (_traffic(interface) - before) / (time.monotonic() - begin)
    speed = _number(f"/sys/class/net/{interface}/speed") * 125_000  # in Mbit/s; -1 where it is not known
    return rate > max(BUSY_BYTES_S, BUSY_SHARE * speed)


def _traffic(interface: str) -> int:
    """Bytes that the interface has carried in its busier direction."""
    folder = f"/sys/class/net/{interface}/statistics"
    return max(_number(f"{folder}/rx_bytes"), _number(f"{folder}/tx_bytes"))


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0


def _close_without_lingering(way: socket.socket) -> None:
    way.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error) or "no answer"
