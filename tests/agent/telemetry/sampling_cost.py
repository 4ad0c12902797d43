"""Measures the cost of sampling, for tests and developers.

    LD_LIBRARY_PATH=… FAKE_NVML_FILE=… python -I -S sampling_cost.py AGENT_FOLDER SAMPLES REPLICAS

Starts REPLICAS real processes, each with a child and a few threads, samples the processes, and prints one line of JSON:
{"cpu_ms": CPU time of a sample, "resident_mb", "anonymous_mb": memory after ten samples, "gpus", "replicas"}.
"""

import json
import os
import sys
import time

THREADS = 8
_REPLICA = f"""
import os, sys, threading
if os.fork() == 0:
    import time
    time.sleep(600)
for _ in range({THREADS}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os.killpg(0, 9)
"""


def memory(kind: str) -> float:
    """Returns the memory of this process in MiB, as given by its VmRSS or RssAnon."""
    with open("/proc/self/status") as status:  # noqa: PTH123 - pathlib would count as memory of the sampler
        return next(int(line.split()[1]) for line in status if line.startswith(kind)) / 1024


def start_replica() -> "tuple[int, int]":
    """Starts a replica; returns its PID and a pipe. The replica exits when the pipe is closed.

    Uses fork, because importing subprocess would increase the memory that is measured.
    """
    stdin, hold = os.pipe()
    ready, stdout = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, 256)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REPLICA])
    os.close(stdin)
    os.close(stdout)
    assert os.read(ready, 5) == b"ready"
    os.close(ready)
    return pid, hold


def main(agent: str, samples: int, count: int) -> None:
    sys.path.insert(0, agent)
    from torchyard_agent.telemetry.sampler import Sampler

    started = [start_replica() for _ in range(count)]
    replicas = {f"run/worker-{number}": [pid] for number, (pid, _) in enumerate(started)}
    sampler = Sampler("/tmp")
    for _ in range(10):
        last = sampler.sample(replicas)
    resident, anonymous = memory("VmRSS"), memory("RssAnon")
    spent = 0.0
    for _ in range(samples):
        before = time.process_time()
        last = sampler.sample(replicas)
        spent += time.process_time() - before
        time.sleep(0.05)
    for _, hold in started:
        os.close(hold)
    print(
        json.dumps(
            {
                "cpu_ms": round(1000 * spent / max(samples, 1), 3),
                "resident_mb": round(resident, 1),
                "anonymous_mb": round(anonymous, 1),
                "gpus": len(last["gpus"]),
                "replicas": {name: about["processes"] for name, about in last["replicas"].items()},
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
