"""Benchmark of a step's exchange over links with limited bandwidth: gloo's ring, reducers, and reducers with workers.

    .venv/bin/python -m benchmarks.training.roles_exchange --workers 4 --reducers 4 --rate 200

Every worker and reducer is a process on its own lab host, whose network link has a limited bandwidth. All arms run
alternately in one launch. A value is the duration of one exchange on the slowest worker; all workers begin at the same
time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
PORT = 29600
EXCHANGES = {"reducers", "mixed"}


def run_worker(plan: dict[str, Any]) -> None:
    """Runs one rank, which takes part in all arms. Rank 0 prints a JSON line for every round."""
    import torch
    import torch.distributed as dist

    from torchyard_roles.exchange.tensor_connection import Peer, listen
    from torchyard_roles.strategies.reduction_server.reducer import Reducer
    from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient
    from torchyard_roles.strategies.reduction_server.reduction_plan import choose

    torch.set_num_threads(1)
    rank, workers, reducers = plan["rank"], plan["workers"], plan["reducers"]
    dist.init_process_group("gloo", init_method=f"tcp://{workers[0]}:{PORT - 1}", rank=rank, world_size=len(workers))
    gradients = torch.full((plan["bytes"] // 4,), float(rank + 1))
    expected = len(workers) * (len(workers) + 1) / 2
    plans = {
        "reducers": [1.0] * len(reducers) + [0.0] * len(workers),
        "mixed": list(choose(len(workers), len(reducers)).weights),
    }
    clients, locals_ = {}, []
    for number, arm in enumerate(plan["arms"]):
        if arm not in plans:
            continue
        port = PORT + number  # Each arm has its own reducers, which are idle during the turns of other arms.
        local = Reducer(listen(workers[rank], port), KEY, f"worker-{rank}").start()
        locals_.append(local)
        peers = [Peer(f"reducer-{each}", address, port) for each, address in enumerate(reducers)]
        peers += [Peer(f"worker-{each}", address, port) for each, address in enumerate(workers)]
        own = {len(reducers) + rank: local}
        clients[arm] = ReduceClient(peers, plans[arm], KEY, rank, len(workers), local=own, **plan["tuning"])
    for step in range(plan["rounds"] + 1):
        times = {}
        for arm in plan["arms"]:
            flat = gradients.clone()
            dist.barrier()
            start = time.perf_counter()
            if arm in clients:
                clients[arm].reduce(flat, step, 0).result()
            else:
                dist.all_reduce(flat)
            taken = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            times[arm] = taken.item()
            assert flat.min().item() == flat.max().item() == expected
        if rank == 0:
            print(json.dumps(times), flush=True)
    dist.barrier()
    for client in clients.values():
        client.close()
    for local in locals_:
        local.finish(5)
    dist.destroy_process_group()


def run_reducer(plan: dict[str, Any]) -> None:
    """Runs one reducer for each arm until the standard input is closed or the process is killed."""
    import torch

    from torchyard_roles.exchange.tensor_connection import listen
    from torchyard_roles.strategies.reduction_server.reducer import Reducer

    torch.set_num_threads(1)
    for number, _ in enumerate(plan["arms"]):
        Reducer(listen(plan["address"], PORT + number), KEY, plan["name"]).start()
    sys.stdin.read()


def measure(
    workers: int, reducers: int, rate_mbit: int, size: int, rounds: int, arms: list[str], tuning: dict[str, int]
) -> dict[str, list[float]]:
    """Returns the seconds of each arm in each round. An initial round is measured and discarded."""
    from tests.lab.lab import Lab

    names = [f"worker-{number}" for number in range(workers)] + [f"reducer-{number}" for number in range(reducers)]
    with (
        tempfile.TemporaryDirectory(prefix="torchyard-lab-") as folder,
        Lab(directory=Path(folder), hosts=names) as lab,
    ):
        for host in lab.hosts:
            host.shape(f"{rate_mbit}mbit")
        addresses = [host.address for host in lab.hosts]
        plan = {
            "workers": addresses[:workers],
            "reducers": addresses[workers:],
            "bytes": size,
            "rounds": rounds,
            "arms": arms,
            "tuning": tuning,
        }
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        processes: list[subprocess.Popen[str]] = []
        for number, host in enumerate(lab.hosts):
            mine = {**plan, "rank": number, "address": host.address, "name": host.name}
            what = "worker" if number < workers else "reducer"
            command = [
                sys.executable,
                "-m",
                "benchmarks.training.roles_exchange",
                "--as",
                what,
                "--plan",
                json.dumps(mine),
            ]
            processes.append(host.start(["sh", "-c", f'cd {ROOT} && exec "$@"', "sh", *command], env=environment))
        try:
            output, _ = processes[0].communicate(timeout=60 + 20 * rounds * len(arms))
        finally:
            for host in lab.hosts:
                host.kill()  # Killing a host kills its processes, which closes their pipes.
            for process in processes:
                process.communicate(timeout=30)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if processes[0].returncode or len(lines) != rounds + 1:
            raise SystemExit(output)
        return {arm: [line[arm] for line in lines[1:]] for arm in arms}


def bounds(workers: int, reducers: int, rate_mbit: int, size: int) -> dict[str, float]:
    """Returns the theoretical minimum of each arm in seconds, by the formulas in docs/strategies/README.md."""
    from torchyard_roles.strategies.reduction_server.reduction_plan import times

    whole = size * 8 / (rate_mbit * 1e6)
    found = times(workers, reducers)
    return {arm: whole * found.get(arm, min(found.values())) for arm in ("ring", *EXCHANGES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="role", choices=("worker", "reducer"), help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reducers", type=int, default=4)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of each host's cable")
    parser.add_argument("--bytes", type=int, default=60_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", default="ring,reducers")
    parser.add_argument("--chunk", type=int, help="bytes of a chunk")
    parser.add_argument("--window", type=int, help="chunks on their way to one reducer")
    options = parser.parse_args()
    if options.role:
        sys.path.insert(0, str(ROOT / "agent"))
        {"worker": run_worker, "reducer": run_reducer}[options.role](options.plan)
        return
    tuning = {"chunk_bytes": options.chunk, "window": options.window}
    tuning = {name: value for name, value in tuning.items() if value}
    shape = options.workers, options.reducers, options.rate, options.bytes
    arms = options.arms.split(",")
    found = measure(*shape, options.rounds, arms, tuning)
    limits = bounds(*shape)
    for arm in arms:
        median = statistics.median(found[arm])
        print(
            f"{arm:10} best {min(found[arm]):6.3f} s  median {median:6.3f} s  bound {limits[arm]:6.3f} s  "
            f"best/bound {min(found[arm]) / limits[arm]:.3f}  median/bound {median / limits[arm]:.3f}"
        )


if __name__ == "__main__":
    main()
