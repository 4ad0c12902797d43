"""Measures the CPU time of exchanging a chunk with a reducer, which predictions of reduction_server use."""

from __future__ import annotations

import os
import time

import torch

from torchyard_roles.errors import RolesError
from torchyard_roles.exchange.tensor_connection import Peer, listen
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import SMALLEST_CHUNK, ReduceClient

CHUNKS, ROUNDS = 64, 8
CONNECT_S = 5.0


def chunk_cpu_s() -> float | None:
    """Returns the CPU time in seconds that a worker and a reducer together spend on one chunk of SMALLEST_CHUNK bytes.

    Both are threads of this process, and exchange over loopback. The result is the fastest of several rounds, because
    other threads of the script also use CPU time. Returns None if loopback cannot be used.
    """
    try:
        return _measure()
    except (OSError, RolesError):
        return None


def _measure() -> float:
    key = os.urandom(32)
    listener = listen("127.0.0.1", 0)
    peer = Peer("reducer-0", *listener.getsockname()[:2])
    reducer = Reducer(listener, key).start()
    try:
        client = ReduceClient([peer], [1.0], key, 0, 1, chunk_bytes=SMALLEST_CHUNK, connect_s=CONNECT_S)
        try:
            flat = torch.zeros(CHUNKS * SMALLEST_CHUNK // 4, dtype=torch.float32, device="cpu")
            times = []
            for step in range(ROUNDS):
                began = time.process_time()
                client.reduce(flat, step, 0).result()
                times.append(time.process_time() - began)
            return min(times) / CHUNKS
        finally:
            client.close()
    finally:
        reducer.close()
