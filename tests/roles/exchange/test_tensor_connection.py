"""Tests of connections that carry tensors: transfers, refusals, lost peers and closing."""

from __future__ import annotations

import ast
import os
import re
import select
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import torchyard_roles
from tests.waiting import wait_until
from torchyard_agent.protocol import authenticated_transport
from torchyard_agent.protocol.authenticated_transport import FrameCodec
from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange import sockets, tensor_connection
from torchyard_roles.exchange.tensor_connection import MAX_HEADER, Connection, Peer, listen
from torchyard_roles.strategies.parameter_server.server_link import ServerLink
from torchyard_roles.strategies.parameter_server.worker_session import Session

pytestmark = pytest.mark.train

KEY = os.urandom(32)
DEADLINE_S = 30
Ends = tuple[Connection, Connection]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as listener:
        yield listener


def peer_of(listener: socket.socket) -> Peer:
    return Peer("reducer-0", *listener.getsockname())


@pytest.fixture
def ends(listener: socket.socket) -> Iterator[Ends]:
    """The two ends of a connection: the caller's end and the listener's end."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Connection.connect, peer_of(listener), KEY, {"name": "worker-3"}, 5)
        accepted, introduction = Connection.accept(listener.accept()[0], KEY)
        assert introduction == {"name": "worker-3"}
        accepted.answer({"version": 7})
        caller, answer = calling.result(5)
    assert answer == {"version": 7}
    assert (caller.peer, accepted.peer) == ("reducer-0", "worker-3")
    yield caller, accepted
    caller.close()
    accepted.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_of_any_dtype_arrives_in_the_memory_that_was_meant_for_it(ends: Ends, dtype: torch.dtype) -> None:
    caller, accepted = ends
    sent = (torch.arange(1000) % 2).to(dtype)
    whole = torch.zeros(1200, dtype=dtype)
    caller.send({"step": 1}, sent)
    header = accepted.receive()
    assert header["step"] == 1
    accepted.receive_into(whole[100:1100])
    assert torch.equal(whole[100:1100], sent)
    assert not whole[:100].any()
    assert not whole[1100:].any()
    assert accepted.received_bytes == caller.sent_bytes > sent.numel() * sent.element_size()


def test_large_tensors_pass_each_other_in_both_directions(ends: Ends) -> None:
    sent = torch.randn(4_000_000)

    def exchange(end: Connection) -> torch.Tensor:
        sending = threading.Thread(target=end.send, args=({}, sent))
        sending.start()
        received = torch.empty_like(sent)
        end.receive()
        end.receive_into(received)
        sending.join()
        return received

    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(received, sent) for received in pool.map(exchange, ends))


def test_no_tensor_differs_from_an_empty_one_and_a_payload_can_be_discarded(ends: Ends) -> None:
    caller, accepted = ends
    caller.send({"number": 1})
    caller.send({"number": 2}, torch.empty(0))
    caller.send({"number": 3}, torch.ones(700_000))
    caller.send({"number": 4})
    assert accepted.receive() == {"number": 1}
    assert accepted.receive() == {"number": 2, "bytes": 0, "dtype": "float32"}
    accepted.receive_into(torch.empty(0))
    accepted.receive()
    accepted.discard()
    assert accepted.receive() == {"number": 4}


def test_what_is_posted_does_not_wait_for_the_receiver_and_arrives_in_order(ends: Ends) -> None:
    caller, accepted = ends
    # 64 MB are more than the kernel's buffers hold while the peer receives nothing.
    large = torch.arange(16_000_000, dtype=torch.float32)
    accepted.post({"number": 1}, large)
    accepted.post({"number": 2})
    blocking = threading.Thread(target=accepted.send, args=({"number": 3},))
    blocking.start()
    assert caller.receive()["number"] == 1
    received = torch.empty_like(large)
    caller.receive_into(received)
    assert torch.equal(received, large)
    assert [caller.receive(), caller.receive()] == [{"number": 2}, {"number": 3}]
    accepted.flush(DEADLINE_S)
    blocking.join(DEADLINE_S)
    assert caller.received_bytes == accepted.sent_bytes


def test_what_is_posted_to_a_caller_that_was_not_answered_yet_follows_the_answer(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Connection.connect, peer_of(listener), KEY, {"name": "worker-3"}, DEADLINE_S)
        accepted, _ = Connection.accept(listener.accept()[0], KEY)
        accepted.post({"lost": "worker-1"})
        accepted.answer({"ready": True})
        caller, answer = calling.result(DEADLINE_S)
    assert answer == {"ready": True}
    assert caller.receive() == {"lost": "worker-1"}
    caller.close()
    accepted.close()


def test_closing_gives_up_what_was_posted_to_one_that_does_not_read(ends: Ends) -> None:
    _, accepted = ends
    accepted.post({}, torch.zeros(16_000_000))
    accepted.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rest to worker-3"]


def test_a_message_is_taken_piece_by_piece_without_waiting_for_it(ends: Ends) -> None:
    caller, accepted = ends
    assert accepted.receive_now() is None
    sent = torch.arange(2_000_000, dtype=torch.float32)
    sending = threading.Thread(target=caller.send, args=({"step": 1}, sent))
    sending.start()
    received = torch.empty_like(sent)
    with selectors.DefaultSelector() as selector:
        selector.register(accepted, selectors.EVENT_READ)
        header = None
        while header is None:
            assert selector.select(DEADLINE_S)
            header = accepted.receive_now()
        while not accepted.receive_into_now(received):
            assert selector.select(DEADLINE_S)
    sending.join(DEADLINE_S)
    assert header["step"] == 1
    assert torch.equal(received, sent)
    assert accepted.received_bytes == caller.sent_bytes
    assert accepted.receive_now() is None


@pytest.mark.parametrize("expected", [torch.empty(11), torch.empty(5, dtype=torch.float64)])
def test_another_size_or_dtype_is_refused_before_a_byte_is_received(ends: Ends, expected: torch.Tensor) -> None:
    caller, accepted = ends
    expected.fill_(7)
    caller.send({}, torch.zeros(10))
    accepted.receive()
    before = accepted.received_bytes
    with pytest.raises(ProtocolError, match=r"worker-3 on .* announced 40 bytes of float32, but .* belong there"):
        accepted.receive_into(expected)
    assert accepted.received_bytes == before
    assert (expected == 7).all()


def test_a_caller_with_another_key_is_refused_and_both_ends_raise(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Connection.connect, peer_of(listener), os.urandom(32), {"name": "x"}, 60)
        with pytest.raises(ProtocolError, match=r"the caller does not know the run's secret"):
            Connection.accept(listener.accept()[0], KEY)
        with pytest.raises(ProtocolError, match=r"reducer-0 on 127.0.0.1 refused this process: it has another key"):
            calling.result(5)


def test_a_listener_with_another_key_is_refused(listener: socket.socket) -> None:
    def pretend() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(authenticated_transport.ListenerHandshake(KEY).to_send)
            sock.recv(authenticated_transport.ANSWER_BYTES, socket.MSG_WAITALL)
            sock.sendall(os.urandom(authenticated_transport.PROOF_BYTES))

    pretender = threading.Thread(target=pretend)
    pretender.start()
    with pytest.raises(ProtocolError, match="the listener does not know the run's secret"):
        Connection.connect(peer_of(listener), KEY, {}, 5)
    pretender.join()


def test_what_was_changed_on_its_way_is_refused() -> None:
    mine, others = socket.socketpair()
    receiving = Connection(mine, FrameCodec(KEY, b"hello", b"nonce", is_caller=False), "worker-3", "far")
    sealed = bytearray(FrameCodec(KEY, b"hello", b"nonce", is_caller=True).seal(b'{"step": 1}'))
    sealed[-2] ^= 1
    others.sendall(sealed)
    with pytest.raises(ProtocolError, match="MAC"):
        receiving.receive()
    receiving.close()
    others.close()


def test_a_refusal_reaches_the_caller_as_the_sentence_it_is(listener: socket.socket) -> None:
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Connection.connect, peer_of(listener), KEY, {}, 60)
        connection, _ = Connection.accept(listener.accept()[0], KEY)
        connection.refuse("Another model trains here.")
        with pytest.raises(ProtocolError, match=r"^Another model trains here\.$"):
            calling.result(5)


def test_a_header_over_the_limit_is_not_sent(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        ends[0].send({"text": "x" * MAX_HEADER})


def test_a_peer_that_does_not_listen_is_lost_by_name_after_the_deadline() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(PeerLost, match=r"^ps-2 on 127.0.0.1 is gone: connection refused\.$"):
            Connection.connect(Peer("ps-2", *bound.getsockname()), KEY, {}, 0.3)


@pytest.mark.parametrize(
    ("deadline_s", "pause_s"),
    [
        pytest.param(DEADLINE_S, authenticated_transport.HANDSHAKE_DEADLINE_S + 0.5, id="longer than a handshake"),
        pytest.param(0.4, 1.5, id="longer than a short deadline for connecting"),
    ],
)
def test_a_caller_waits_for_the_answer_of_a_busy_process(
    listener: socket.socket, deadline_s: float, pause_s: float
) -> None:
    """The caller must not connect again: the end of the first session would be reported as the loss of a worker."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Connection.connect, peer_of(listener), KEY, {"name": "worker-3"}, deadline_s)
        accepted, _ = Connection.accept(listener.accept()[0], KEY)
        time.sleep(pause_s)  # The listener's process is busy for this time.
        accepted.answer({})
        caller, _ = calling.result(DEADLINE_S)
    assert not select.select([listener], [], [], 0.2)[0], "the caller has called twice"
    caller.close()
    accepted.close()


def test_a_peer_that_ends_is_named_and_closing_wakes_a_waiting_thread(ends: Ends) -> None:
    caller, accepted = ends
    caller.close()
    with pytest.raises(PeerLost, match=r"worker-3 on 127.0.0.1 is gone: it closed the connection"):
        accepted.receive()
    with ThreadPoolExecutor(1) as pool, socket.socket() as _:
        waiting = pool.submit(accepted.receive)
        accepted.close()
        with pytest.raises(PeerLost):
            waiting.result(5)


def is_shut_down(connection: Connection) -> bool:
    poll = select.poll()
    poll.register(connection, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def test_a_descriptor_is_not_closed_under_a_thread_that_is_about_to_send(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection could get the number of a closed descriptor before the thread sends."""
    caller, _ = ends
    is_about_to, goes_on = threading.Event(), threading.Event()
    send_all = sockets.send_all

    def stand_still(sock: socket.socket, parts: list[bytes | memoryview]) -> int:
        is_about_to.set()
        assert goes_on.wait(DEADLINE_S)
        assert sock.fileno() != -1
        return send_all(sock, parts)

    monkeypatch.setattr(tensor_connection, "send_all", stand_still)
    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(caller.send, {"op": "hello"})
        assert is_about_to.wait(DEADLINE_S)
        closing = pool.submit(caller.close)
        wait_until(lambda: is_shut_down(caller))
        goes_on.set()
        with pytest.raises(PeerLost, match="closed here"):
            sending.result(DEADLINE_S)
        closing.result(DEADLINE_S)
    assert caller.fileno() == -1


def test_a_server_link_closes_its_descriptor_after_the_thread_that_receives(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_about_to, goes_on, numbers = threading.Event(), threading.Event(), list[int]()

    def stand_still(link: ServerLink, connection: Connection, header: dict[str, object]) -> None:
        is_about_to.set()
        assert goes_on.wait(DEADLINE_S)
        numbers.append(connection.fileno())

    monkeypatch.setattr(ServerLink, "_take", stand_still)
    link = ServerLink(peer_of(listener), KEY, {"name": "worker-0"})
    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(link.connect, 5)
        accepted, _ = Connection.accept(listener.accept()[0], KEY)
        accepted.answer({})
        calling.result(DEADLINE_S)
        connection = link._connection
        assert connection is not None
        accepted.send({"op": "anything"})
        assert is_about_to.wait(DEADLINE_S)
        closing = pool.submit(link.close, goodbye=False)
        wait_until(lambda: connection.closed)
        goes_on.set()
        closing.result(DEADLINE_S)
    assert numbers[0] != -1
    assert connection.fileno() == -1
    accepted.close()


def test_a_replaced_session_is_closed_by_its_own_thread(ends: Ends) -> None:
    """The thread that accepts the worker again must not close a socket from which the session's thread is reading."""
    _, accepted = ends
    Session(None, accepted, 0, 0, 1, 0).cut()
    assert accepted.closed
    assert accepted.fileno() != -1


def test_nothing_that_comes_from_elsewhere_is_unpickled() -> None:
    """Headers are JSON, payloads are raw bytes, and files are read with `weights_only`.

    Only the metadata of torch's distributed checkpoints is a pickle. `sharded_files` reads it with an unpickler that
    allows few classes.
    """
    folder = Path(torchyard_roles.__file__).parent
    sources = {
        path: path.read_text()
        for path in (*folder.rglob("*.py"), *Path(authenticated_transport.__file__).parent.glob("*.py"))
    }
    assert len(sources) > 40
    for path, text in sources.items():
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        names = {(ast.unparse(call.func), ast.unparse(call)) for call in calls}
        if path.name == "sharded_files.py":
            assert not [call for name, call in names if name in ("pickle.load", "pickle.loads", "pickle.Unpickler")]
        else:
            assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle)", text, re.M), path
        assert not [call for name, call in names if name.endswith("_object_list") or name.endswith("all_gather_object")]
        assert not [call for name, call in names if name == "torch.load" and "weights_only=True" not in call], path
