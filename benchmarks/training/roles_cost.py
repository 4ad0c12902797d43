"""Benchmark of the CPU time for exchanging gradients on loopback, in core-seconds per GB, compared with gloo.

    .venv/bin/python -m benchmarks roles_cost

CPU time is also meaningful on a busy machine. There are two workers and one reducer or one parameter server, each in a
separate process. A value is the CPU time of a process (getrusage()) divided by the GB of gradients that each worker
sends and receives, or, for a reducer or server, by the GB of all workers. The system calls for sending and receiving
alone take 0.31 core-seconds per GB.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Promise, record, show

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
WORKERS = 2
BYTES = 60_000_000
STEPS = 8
ROUNDS = 3
KIB = 1024
GLOO = "gloo, a rank"
ARMS = {
    # The kind, the bytes per chunk, and an earlier result in core-seconds per GB, measured together with GLOO_BEFORE.
    # The promise is at most half of the earlier ratio to gloo.
    "reducer, 128 KiB": ("reducer", 128 * KIB, 1.0),
    "reducer, 1 MiB": ("reducer", 1024 * KIB, 0.62),
    "reducer, 4 MiB": ("reducer", 4096 * KIB, 0.62),
    "server, SGD": ("SGD", 0, 1.1),
    "server, AdamW": ("AdamW", 0, 2.2),
}
GLOO_BEFORE = 0.47


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(kind: str) -> None:
    """Runs a reducer or a server, which prints its port, and then its CPU time for each input line."""
    import torch

    from torchyard_roles.exchange.tensor_connection import listen
    from torchyard_roles.strategies.parameter_server.push_acceptance import Rules
    from torchyard_roles.strategies.parameter_server.server_pair import ServerSettings
    from torchyard_roles.strategies.parameter_server.server_process import ParameterServer
    from torchyard_roles.strategies.reduction_server.reducer import Reducer

    torch.set_num_threads(1)
    gc.freeze()  # The real processes of reducers and servers also freeze their objects at the start.
    listener = listen("127.0.0.1", 0)
    if kind == "reducer":
        Reducer(listener, KEY).start()
    else:
        server = ParameterServer(ServerSettings("ps-0", 0, 1, Rules(groups=1)), KEY)
        threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for _ in sys.stdin:
        print(cpu_s(), flush=True)
    os._exit(0)


def train(kind: str, chunk: int, rank: int, port: int) -> None:
    """Runs a worker. For each input line, the worker runs steps and prints their CPU time."""
    import torch

    torch.set_num_threads(1)
    exchange = {"gloo": by_gloo, "reducer": by_reducer}.get(kind, by_server)(kind, chunk, rank, port)
    for number in range(3):
        exchange(number)
    print("ready", flush=True)
    number = 3
    for _ in sys.stdin:
        before = cpu_s()
        for _ in range(STEPS):
            exchange(number)
            number += 1
        print(cpu_s() - before, flush=True)
    os._exit(0)


def by_gloo(kind: str, chunk: int, rank: int, port: int) -> Callable[[int], object]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    gradients = torch.ones(BYTES // 4)
    return lambda number: dist.all_reduce(gradients.fill_(1.0))


def by_reducer(kind: str, chunk: int, rank: int, port: int) -> Callable[[int], object]:
    import torch

    from torchyard_roles.exchange.tensor_connection import Peer
    from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient

    peer = Peer("reducer-0", "127.0.0.1", port)
    client = ReduceClient([peer], [1.0], KEY, rank, WORKERS, chunk_bytes=chunk, divisor=WORKERS)
    gradients = torch.ones(BYTES // 4)
    return lambda number: client.reduce(gradients, number, 0).result()


def by_server(kind: str, chunk: int, rank: int, port: int) -> Callable[[int], object]:
    import torch

    from torchyard_roles.exchange.chunk_staging import Staging
    from torchyard_roles.exchange.parameter_layout import Layout
    from torchyard_roles.exchange.tensor_connection import Peer
    from torchyard_roles.strategies.parameter_server import messages, remote_optimizer
    from torchyard_roles.strategies.parameter_server.server_link import Completion, Exchange, ServerLink

    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(BYTES // 32)) for _ in range(8))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
    layout, parameters = Layout.of(model, optimizer)
    chunks = layout.chunks(1)
    said: dict[str, Any] = {"name": f"worker-{rank}", "pair": 0, "group": 0, "groups": 1, "rank": rank, "size": WORKERS}
    said |= {"generation": 0, "shard": 0, "shards": 1}
    link = ServerLink(Peer("ps-0", "127.0.0.1", port), KEY, said)
    link.serves(chunks)
    link.connect(60)
    description = messages.text_of(
        {
            "layout": layout.fingerprint(),
            "options": remote_optimizer.arguments(optimizer),
            "optimizer": kind,
            "chunk_bytes": None,
            "rows": {"buffers": 0, "constants": 0},
        }
    )
    staging = Staging(parameters, in_place=True)
    link.command({"op": "join" if rank else "begin"}, description)
    if not rank:
        for each in chunks:
            link.tell({"op": "assign", "chunk": each.number}, staging.values(each))
        link.command({"op": "open"})
    gradients = [torch.ones_like(parameter) for parameter in parameters]

    def exchange(number: int) -> None:
        completion = Completion(1)
        staging.offer(gradients, copied=False)
        link.begin(Exchange(staging.gradient, staging.target, staging.arrived), completion)
        completion.wait()

    return exchange


def measure(kind: str, chunk: int) -> tuple[list[float], list[float]]:
    """Returns the core-seconds per GB in each round, for a worker and for the server or reducer, if any."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.training.roles_cost", *map(str, args)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'agent'}"
        processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        return processes[-1]

    def said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def tell(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    server = None
    try:
        if kind == "gloo":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        else:
            server = start("serve", kind)
            port = int(said(server))
        workers = [start("train", kind, chunk, rank, port) for rank in range(WORKERS)]
        assert [said(worker) for worker in workers] == ["ready"] * WORKERS
        trained: list[float] = []
        served: list[float] = []
        whole = BYTES * STEPS / 1e9
        for _ in range(ROUNDS):
            marks = []
            if server is not None:
                tell(server)
                marks.append(float(said(server)))
            for worker in workers:
                tell(worker)
            trained.append(statistics.mean(float(said(worker)) for worker in workers) / whole)
            if server is not None:
                tell(server)
                marks.append(float(said(server)))
                served.append((marks[1] - marks[0]) / whole / WORKERS)
        return trained, served
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=30)


def main() -> list[Promise]:
    found = {GLOO: measure("gloo", 0)[0]}
    for name, (kind, chunk, _) in ARMS.items():
        trained, served = measure(kind, chunk)
        found[name] = served
        found[f"{name}: a worker"] = trained
    found[GLOO] += measure("gloo", 0)[0]
    show("CPU time per GB of gradients each way, on loopback", found, "s/GB")
    gloo = statistics.median(found[GLOO])
    promises = [
        Promise(f"{name}: CPU time over a gloo rank's", statistics.median(found[name]) / gloo, before / GLOO_BEFORE / 2)
        for name, (_, _, before) in ARMS.items()
    ]
    record("roles_cost", found, promises)
    return promises


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["train"]:
        train(sys.argv[2], *(int(argument) for argument in sys.argv[3:]))
    else:
        main()
