"""Tests of determining a host's own addresses and of reserving ports, with real sockets, interfaces and torch's
TCPStore.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torchyard_agent.network_addresses import address_towards, interface_of
from torchyard_agent.port_reservation import HeldPorts, NoPortFree, hold_ports
from torchyard_agent.protocol.jsonrpc import RpcError

AGENT = Path(__file__).resolve().parents[2] / "agent"


def free_range(size: int) -> tuple[int, int]:
    """Returns a range of ports, none of which is in use."""
    for first in range(20000, 30000, 100):
        with contextlib.suppress(NoPortFree):
            hold_ports(size, (first, first + size - 1)).release()
            return first, first + size - 1
    raise AssertionError("no free range")


def own_addresses() -> list[tuple[str, str]]:
    """Returns this host's addresses with their interfaces, as `ip` lists them."""
    try:
        output = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("there is no `ip` here")
    return [
        (interface["ifname"], address["local"])
        for interface in json.loads(output)
        for address in interface["addr_info"]
        if "local" in address
    ]


def test_every_own_address_leads_to_its_interface() -> None:
    for interface, address in own_addresses():
        assert interface_of(address) == interface


def test_a_second_address_of_an_interface_is_known_too() -> None:
    added = subprocess.run(["ip", "address", "add", "127.66.1.1/32", "dev", "lo"], capture_output=True)
    if added.returncode != 0:
        pytest.skip("only root can add an address")
    try:
        assert interface_of("127.66.1.1") == "lo"
    finally:
        subprocess.run(["ip", "address", "del", "127.66.1.1/32", "dev", "lo"], check=True)


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::7", "no address", ""])
def test_an_address_of_another_host_has_no_interface(address: str) -> None:
    assert interface_of(address) is None


def test_the_address_towards_a_host_is_the_one_that_leads_there() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("localhost") in ("127.0.0.1", "::1")
    for _, address in own_addresses():
        if "." in address:
            assert address_towards(address) == address


def test_a_name_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(RpcError, match=r"this host cannot resolve no-such-host\.invalid") as refused:
        address_towards("no-such-host.invalid")
    assert refused.value.code == "no_route"
    assert "data_address" in refused.value.hint


def test_held_ports_are_different_and_not_listened_on() -> None:
    held = hold_ports(5)
    try:
        assert len(set(held.ports)) == 5
        for port in held.ports:
            with socket.socket() as caller:
                assert caller.connect_ex(("127.0.0.1", port)) != 0
    finally:
        held.release()


def test_ports_come_from_the_range_until_it_is_used_up() -> None:
    first, last = free_range(4)
    some = hold_ports(3, (first, last))
    assert set(some.ports) <= set(range(first, last + 1))
    with pytest.raises(NoPortFree) as refused:
        hold_ports(2, (first, last))
    assert str(refused.value) == f"2 are needed of the ports {first}-{last}, but only 1 is free"
    assert refused.value.code == "no_port"
    rest = hold_ports(1, (first, last))  # The refused reservation must not hold any port.
    with pytest.raises(NoPortFree, match=r"1 is needed .* but none is free"):
        hold_ports(1, (first, last))
    some.release()
    some.release()
    rest.release()
    hold_ports(4, (first, last)).release()


def test_the_same_port_is_never_held_twice_by_two_processes() -> None:
    first, last = free_range(40)
    source = (
        "import sys\n"
        "from torchyard_agent.port_reservation import hold_ports\n"
        "held = hold_ports(10, (int(sys.argv[1]), int(sys.argv[2])))\n"
        "print(*held.ports, flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(AGENT)}
    command = [sys.executable, "-c", source, str(first), str(last)]
    with contextlib.ExitStack() as stack:
        holders = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
            for _ in range(4)
        ]
        ports: list[str] = []
        for holder in holders:
            assert holder.stdout is not None
            ports += holder.stdout.readline().split()
        for holder in holders:
            assert holder.stdin is not None
            holder.stdin.close()
    assert len(ports) == 40
    assert len(set(ports)) == 40


def test_concurrent_requests_never_hold_a_port_twice() -> None:
    first, last = free_range(30)
    held: list[HeldPorts] = []
    start = threading.Barrier(6)

    def ask() -> None:
        start.wait()
        held.append(hold_ports(5, (first, last)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ports = [port for some in held for port in some.ports]
    for some in held:
        some.release()
    assert len(ports) == len(set(ports)) == 30


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("reuse", [0, 1])
def test_a_port_in_use_is_skipped(address: str, reuse: int) -> None:
    first, last = free_range(2)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        server.bind((address, first))
        server.listen()
        held = hold_ports(1, (first, last))
        assert held.ports == [last]
        held.release()


def test_a_port_with_connections_in_time_wait_is_skipped() -> None:
    first, last = free_range(2)
    with socket.create_server(("127.0.0.1", first)) as server:
        caller = socket.create_connection(("127.0.0.1", first))
        accepted, _ = server.accept()
        accepted.close()  # The port stays in TIME_WAIT at the end that closes the connection first.
        assert caller.recv(1) == b""
        caller.close()
    held = hold_ports(1, (first, last))
    assert held.ports == [last]
    held.release()


def test_a_held_port_is_not_given_to_another_process() -> None:
    ports = hold_ports(50)
    try:
        for reuse in (0, 1):
            with contextlib.ExitStack() as stack:
                for _ in range(500):
                    other = stack.enter_context(socket.socket())
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                    other.bind(("", 0))
                    assert other.getsockname()[1] not in ports.ports
    finally:
        ports.release()


@pytest.mark.parametrize("where", ["", "127.0.0.1"])
def test_a_process_with_reuseaddr_listens_over_a_held_port(where: str) -> None:
    held = hold_ports(1, address=where)
    (port,) = held.ports
    try:
        # The second iteration stands for a restarted process that listens on the same port again.
        for _ in range(2):
            with (
                socket.create_server(("127.0.0.1", port)) as server,
                socket.create_connection(("127.0.0.1", port)) as caller,
                server.accept()[0] as accepted,
            ):
                caller.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
    finally:
        held.release()


def test_a_held_socket_can_be_listened_on_itself() -> None:
    held = hold_ports(2, address="127.0.0.1")
    port, other = held.ports
    with held.take(port) as server:
        server.listen()
        socket.create_connection(("127.0.0.1", port)).close()
        assert held.ports == [other]
    held.release()


@pytest.mark.train
def test_torchs_tcp_store_listens_over_a_held_port() -> None:
    pytest.importorskip("torch", reason="it is torch's store that binds over a held port")
    held = hold_ports(1)
    (port,) = held.ports
    source = (
        "import sys\n"
        "from torch.distributed import TCPStore\n"
        "for libuv in (True, False):\n"
        "    store = TCPStore('127.0.0.1', int(sys.argv[1]), 1, is_master=True, use_libuv=libuv)\n"
        "    store.set('answer', f'{libuv}')\n"
        "    print(TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False).get('answer').decode())\n"
        "    del store\n"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", source, str(port)], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.stdout == "True\nFalse\n", ended.stderr
        with pytest.raises(NoPortFree):
            hold_ports(1, (port, port))
    finally:
        held.release()
