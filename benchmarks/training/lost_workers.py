"""Benchmark of `on_worker_loss: continue`: a step without losses, compared with all_reduce, and the time after a loss.

    .venv/bin/python -m benchmarks lost_workers

Each of two workers on loopback is one process, which trains two copies of a model. Blocks of steps alternate A B B A
between the two kinds of exchange, so that the load of the machine affects both. A value is the mean time of a step in a
block, and neighbouring blocks are compared: step times vary by a fifth, so a difference of 2% would be invisible in the
medians of a few steps. Then one worker is killed, and the time until the other takes its next step is measured from the
announcement of the new membership, which a keeper sends when it detects the loss.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import Promise, record, show
from benchmarks.training.roles import by_round

ROOT = Path(__file__).parents[2]
WORKERS = 2
WIDTH = 768
BATCH = 192
STEPS = 5
BLOCKS = 360
"""With 120 blocks, the ratio has a standard error of 1%, half of the margin that is promised."""
AGAIN_S = 3.0
OVERHEAD = 1.02


def train(rank: int) -> None:
    import torch

    from torchyard_roles.environment import read
    from torchyard_roles.strategies.all_reduce import AllReduce
    from torchyard_roles.strategies.continuing_all_reduce import ContinuingAllReduce

    torch.set_num_threads(1)
    kinds = {"all_reduce": AllReduce(read(os.environ)), "continue": ContinuingAllReduce(read(os.environ))}
    models = {}
    for name, kind in kinds.items():
        kind.start(torch.device("cpu"))
        torch.manual_seed(1)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        model = torch.nn.Sequential(*layers)
        models[name] = kind.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-4), torch.device("cpu"))
    batch = torch.randn(BATCH, WIDTH)

    def step(name: str) -> None:
        model, optimizer = models[name]
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    found: dict[str, list[float]] = {name: [] for name in kinds}
    for name in kinds:
        # The first steps are not measured, because buckets are rearranged after 1, 2, 4, 8 and 16 exchanges.
        for _ in range(20):
            step(name)
    for block in range(BLOCKS):
        for name in list(kinds)[:: 1 if block % 4 in (0, 3) else -1]:
            began = time.perf_counter()
            for _ in range(STEPS):
                step(name)
            found[name].append((time.perf_counter() - began) / STEPS)
    members = kinds["continue"].members
    assert members is not None
    if rank == WORKERS - 1:
        print(json.dumps({"dies": True}), flush=True)
        signal.pause()
    lost_at = time.monotonic()
    while not members.membership.wait_for_change(0, 0.001):
        lost_at = time.monotonic()
    step("continue")
    print(json.dumps({"steps": found, "again_s": time.monotonic() - lost_at}), flush=True)
    os._exit(0)  # A regular exit would wait for the lost worker in all_reduce's process group.


def main() -> list[Promise]:
    from tests.ports import free_port
    from tests.roles.join_stores import KEY, serve_in_a_process
    from tests.roles.processes import bare_environment, trainer_environment

    from torchyard_roles.coordination.join_store_client import JoinStore

    served = serve_in_a_process()
    port = free_port()
    peers = json.dumps({"trainers": [[f"worker-{rank}", "127.0.0.1", 1, 1, 0] for rank in range(WORKERS)]})
    more = {
        "TORCHYARD_STORE": served.address,
        "TORCHYARD_KEY": KEY.hex(),
        "TORCHYARD_PEERS": peers,
        "TORCHYARD_STRATEGY": "all_reduce",
        "TORCHYARD_GANG": "trainers",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}",
    }
    workers = []
    try:
        for rank in range(WORKERS):
            environment = {**bare_environment(), **trainer_environment(rank, WORKERS, port), **more}
            command = [sys.executable, "-m", "benchmarks.training.lost_workers", str(rank)]
            workers.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        last = workers[-1]
        assert last.stdout is not None
        assert json.loads(last.stdout.readline())["dies"]
        last.kill()
        store = JoinStore.connect(served.address, KEY, "benchmark")
        lost = json.dumps({"number": 1, "lost": [f"worker-{WORKERS - 1}"]}).encode()
        store.set("members/trainers/0", lost)
        results = [json.loads(worker.communicate(timeout=300)[0].splitlines()[-1]) for worker in workers[:-1]]
        store.close()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        served.end()
    found = {name: [t for one in results for t in one["steps"][name]] for name in results[0]["steps"]}
    show(f"a step of {WORKERS} workers on loopback", found)
    again_s = max(one["again_s"] for one in results)
    promises = [
        Promise("a step that may lose workers, over all_reduce", by_round(found, "continue", "all_reduce"), OVERHEAD),
        Promise("from the detection of a loss to the end of the next step", again_s, AGAIN_S, "s"),
    ]
    record("lost_workers", found, promises)
    return promises


if __name__ == "__main__":
    if sys.argv[1:]:
        train(int(sys.argv[1]))
    else:
        main()
