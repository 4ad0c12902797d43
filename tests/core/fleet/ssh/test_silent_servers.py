"""Tests of SSH servers that stop answering during the login, and of the resulting messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard_core.errors import Unreachable
from torchyard_core.fleet.host_key_trust import show_key
from torchyard_core.fleet.inventory import Host, read_fleet
from torchyard_core.fleet.ssh import SshDialer, dialer
from torchyard_core.next_steps import SetHostField


@contextmanager
def server(*, closes: bool) -> Iterator[int]:
    """Yields the port of a server that sends only its banner. Afterwards, it closes the connection or sends nothing
    more.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                if closes:
                    client.close()
                else:
                    clients.append(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for client in clients:
                client.close()


def refusal(port: int, folder: Path) -> Unreachable:
    known = Host(name="gpu-a", address="127.0.0.1", port=port)
    with pytest.raises(Unreachable) as refused:
        SshDialer(folder / "known_hosts").connect(known)
    return refused.value


def test_a_path_that_loses_large_packets_is_not_taken_for_a_flooded_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "HANDSHAKE_TIMEOUT_S", 1.0)
    with server(closes=False) as port:
        error = refusal(port, tmp_path)
    assert f"gpu-a (127.0.0.1:{port}) sends its SSH banner and then nothing more" in error.message
    assert "MTU" in error.hint
    assert "ping -M do -s 1472 127.0.0.1" in error.hint


def test_a_server_that_closes_before_the_login_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "DROPS_FOR_S", 0.5)
    with server(closes=True) as port:
        error = refusal(port, tmp_path)
    assert "accepts the connection and closes it before the login" in error.message
    assert "MaxStartups" in error.hint


def test_an_address_that_is_no_host_name_is_not_known(tmp_path: Path) -> None:
    """If there are more than 63 letters between two dots, Python raises UnicodeError instead of OSError."""
    host = Host(name="gpu-a", address="x" * 64)
    with pytest.raises(Unreachable, match=f"the address {'x' * 64} of gpu-a is not known to this computer"):
        SshDialer(tmp_path / "known_hosts").connect(host)


def test_an_unknown_jump_host_is_named_once_with_both_places_to_correct_it(tmp_path: Path) -> None:
    jump = "j" * 64
    host = Host(name="gpu-a", address="127.0.0.1", proxy_jump=jump)
    with pytest.raises(Unreachable, match=f"the address {jump} is not known to this computer") as caught:
        SshDialer(tmp_path / "known_hosts").connect(host)
    assert caught.value.host == jump
    assert caught.value.next == (SetHostField("gpu-a", "proxy_jump"),)
    assert caught.value.hint == (
        "Use an IP address, or a Host of ~/.ssh/config. "
        "Set `proxy_jump` of gpu-a in the fleet file, then run `torchyard hosts check gpu-a`."
    )


def test_the_key_of_an_unknown_jump_host_leads_to_the_host_behind_it(tmp_path: Path) -> None:
    """The jump host is not in the fleet file, so the next step edits the host that is reached through it."""
    jump = "j" * 64
    file = tmp_path / "fleet.yaml"
    file.write_text(f"version: 1\nhosts: [{{name: gpu-a, address: 127.0.0.1, proxy_jump: {jump}}}]\n")
    fleet = read_fleet(file)
    with pytest.raises(Unreachable, match="is not known to this computer") as caught:
        show_key(fleet, jump, SshDialer(tmp_path / "known_hosts"))
    assert caught.value.next == (SetHostField("gpu-a", "proxy_jump"),)
