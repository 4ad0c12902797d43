"""Measures the connections between hosts on the data network: whether ports can be reached, and throughput.

A host briefly listens on the ports that it has reserved for a run, or on one port of a given range. Clients send a
token that they and the listener received from the desktop. Connections are reset instead of closed, because a closed
connection would remain in TIME_WAIT on a port that a rank is about to use.
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
"""Timeout in seconds for connecting. It allows for a lost SYN, which the kernel sends again after 1 s."""
GREETING_S = 2.0
LISTEN_S = 60.0
"""Longest time in seconds for which a listener stays open, even if the desktop has disconnected."""
LONGEST_PULL_S = 1.0
STALLED_S = 0.8
"""A measurement fails if no data arrives for this many seconds, because it would otherwise delay the measurements of
other hosts.
"""
WARM_UP_S = 0.1
"""Time in seconds at the start of a measurement that is not counted, because TCP is still opening its window."""
BUSY_BYTES_S = 5_000_000
BUSY_SHARE = 0.05
"""An interface counts as busy if its traffic exceeds both this fraction of its speed and BUSY_BYTES_S."""
OBSERVE_S = 0.3
"""Time in seconds for which traffic is measured. Training traffic is bursty, with one burst per step."""
_CHUNK = 1 << 20
_RESET = struct.pack("ii", 1, 0)

Params = dict[str, Any]


class NetworkProbe:
    """The methods `network.*`. Each launch uses its own token."""

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
        """Listens at `address`, on each of a run's reserved `ports` or on one port of `port_range`.

        A `port_range` of null means any port. If `address` is missing, the host's address on the route to `towards` is
        used. Returns `address`, `ports` and `busy`. `busy` is true if the interface is carrying other traffic, which is
        measured only if `traffic` is true.
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
        except BaseException:  # The sockets are also closed if the call is cancelled.
            self._end(token)
            raise
        connection.on_close.append(partial(self._end, token))
        asyncio.get_running_loop().call_later(LISTEN_S, self._end, token)
        busy = await _is_busy(address) if params.get("traffic") else False
        return {"address": address, "ports": listener.ports, "busy": busy}

    async def reach(self, connection: Connection, params: Params) -> Any:
        """Connects to each of the `targets`, which are {`host`, `address`, `port`}.

        Returns the targets that cannot be reached, each with an additional `error`.
        """
        token, source = str(params["token"]), params.get("source")
        tried = [_try(token, source, target) for target in params["targets"]]
        return [failure for failure in await asyncio.gather(*tried) if failure is not None]

    async def pull(self, connection: Connection, params: Params) -> Any:
        """Receives data from `address`:`port` for `seconds`, but at most LONGEST_PULL_S.

        Returns the rate in bytes per second (`bytes_s`).
        """
        seconds = min(float(params["seconds"]), LONGEST_PULL_S)
        where = (str(params["address"]), int(params["port"]))
        pulling = partial(_pull, str(params["token"]), params.get("source"), where, seconds)
        try:
            return {"bytes_s": await asyncio.get_running_loop().run_in_executor(None, pulling)}
        except OSError as error:
            raise RpcError(f"{where[0]}:{where[1]} gave no data: {_reason(error)}", "no_way") from error

    async def close(self, connection: Connection, params: Params) -> Any:
        """Stops listening. The listening sockets are closed before the method returns."""
        self._end(str(params["token"]))
        return {}

    def _end(self, token: str) -> None:
        listener = self._listeners.pop(token, None)
        if listener is not None:
            listener.close()


class _Listener:
    """The listening sockets of one launch at one address. They answer only clients that send the token."""

    def __init__(self, token: str, address: str):
        self._token = token.encode() + b"\n"
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # If the host is behind NAT, none of its interfaces has the address at which other hosts reach it. The sockets
        # are then bound to all addresses.
        self._address = address if network_addresses.interface_of(address) else ""
        self._sockets: list[socket.socket] = []
        self._held: port_reservation.HeldPorts | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> list[int]:
        return [int(listening.getsockname()[1]) for listening in self._sockets]

    def add(self, port: int) -> None:
        """Listens on a port that a process of this user has reserved. Raises OSError if this fails."""
        listening = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._address, port))
        self._serve(listening)

    def hold(self, port_range: Any) -> None:
        """Listens on a port of the range. Raises NoPortFree if none is free."""
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
        for client in self._tasks:
            client.cancel()

    def _serve(self, listening: socket.socket) -> None:
        listening.listen(64)
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve_client(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_client(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _reset_on_close(client)
        handed_over = False
        try:
            greeting = b""
            length = len(self._token) + len(b"pull\n")
            deadline = loop.time() + GREETING_S
            while len(greeting) < length and loop.time() < deadline:
                data = await asyncio.wait_for(loop.sock_recv(client, length - len(greeting)), deadline - loop.time())
                if not data:
                    return
                greeting += data
            if greeting == self._token + b"here\n":
                await loop.sock_sendall(client, b"here\n")
                with contextlib.suppress(OSError):  # Waits at most GREETING_S until the client disconnects.
                    await asyncio.wait_for(loop.sock_recv(client, 1), GREETING_S)
            elif greeting == self._token + b"pull\n":
                handed_over = True
                await loop.run_in_executor(None, _send_zeros, client)
        except (OSError, asyncio.TimeoutError):
            pass  # The client disconnected, or did not send its token in time.
        finally:
            if not handed_over:
                client.close()


async def _try(token: str, source: str | None, target: Params) -> Params | None:
    """Connects to a target. Returns None if this succeeds, otherwise the target with its `error`."""
    loop = asyncio.get_running_loop()
    address, port = str(target["address"]), int(target["port"])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        _reset_on_close(probe)
        try:
            if source and network_addresses.interface_of(source):
                probe.bind((source, 0))
            await asyncio.wait_for(loop.sock_connect(probe, (address, port)), CONNECT_S)
            await asyncio.wait_for(loop.sock_sendall(probe, f"{token}\nhere\n".encode()), GREETING_S)
            answer = await asyncio.wait_for(loop.sock_recv(probe, 16), GREETING_S)
        except asyncio.TimeoutError:
            return {**target, "error": f"no answer within {CONNECT_S:.0f} s"}
        except OSError as error:
            return {**target, "error": _reason(error)}
    return None if answer == b"here\n" else {**target, "error": "another program answers there"}


def _pull(token: str, source: str | None, where: tuple[str, int], seconds: float) -> float:
    """Receives data, and returns the bytes per second after the warm-up. Blocks the calling thread.

    Raises OSError if the connection fails.
    """
    own = (source, 0) if source and network_addresses.interface_of(source) else None
    with socket.create_connection(where, STALLED_S, own) as connection:
        _reset_on_close(connection)
        connection.sendall(f"{token}\npull\n".encode())
        buffer = memoryview(bytearray(_CHUNK))
        begin = counted_from = time.monotonic()
        received = 0
        while True:
            size = connection.recv_into(buffer)
            now = time.monotonic()
            if not size:
                raise ConnectionResetError("the other side has closed")
            if now - begin < WARM_UP_S:
                counted_from, received = now, 0
                continue
            received += size
            if now - begin >= seconds:
                return received / max(now - counted_from, 1e-6)


def _send_zeros(client: socket.socket) -> None:
    """Sends zeros until the client disconnects or LONGEST_PULL_S + GREETING_S have passed. Closes the connection."""
    chunk = bytes(_CHUNK)
    client.settimeout(GREETING_S)
    end = time.monotonic() + LONGEST_PULL_S + GREETING_S
    with contextlib.suppress(OSError), client:
        while time.monotonic() < end:
            client.sendall(chunk)


async def _is_busy(address: str) -> bool:
    """Returns whether the interface with this address is carrying other traffic, which a measurement would disturb."""
    interface = network_addresses.interface_of(address)
    if interface is None:
        return False
    before, begin = _traffic(interface), time.monotonic()
    await asyncio.sleep(OBSERVE_S)
    rate = (_traffic(interface) - before) / (time.monotonic() - begin)
    # The file contains the speed in Mbit/s, or -1 if it is unknown.
    speed = _number(f"/sys/class/net/{interface}/speed") * 125_000
    return rate > max(BUSY_BYTES_S, BUSY_SHARE * speed)


def _traffic(interface: str) -> int:
    """Returns the number of bytes that the interface has received or sent, whichever is greater."""
    folder = f"/sys/class/net/{interface}/statistics"
    return max(_number(f"{folder}/rx_bytes"), _number(f"{folder}/tx_bytes"))


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0


def _reset_on_close(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error) or "no answer"
