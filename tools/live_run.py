"""A live run for screenshots, on simulated hosts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from tests.gui.runs import fake_hosts

from torchyard_core.topology.model import Topology
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.windows.signal_connections import SignalConnections

RUNS_FOR_S = 1500
SLOW = "worker-7"
POOLS = {
    "one": (
        "{name: chief, role: chief, replicas: 1, gpus: 0}",
        "{name: workers, role: worker, replicas: 1, gpus: 0}",
    ),
    "eight": (
        "{name: chief, role: chief, replicas: 1, gpus: 1}",
        "{name: workers, role: worker, replicas: 19, gpus: 1, hosts: [gpu-a, gpu-b, gpu-c]}",
        "{name: eval, role: evaluator, replicas: 1, gpus: 2, hosts: [gpu-f]}",
    ),
}
NAMES = {"one": "digits", "eight": "resnet-imagenet"}
LOG = "epoch {epoch:>2} step {step:>5}  loss {loss:.4f}  1,494 samples/s\n"


def begin_live_run(wiring: SignalConnections, state: str, design: Topology | None = None) -> fake_hosts.Acting:
    """Begins a simulated run on the sample hosts. Its start time is `RUNS_FOR_S` seconds in the past."""
    fake_hosts.BEGAN = time.time() - RUNS_FOR_S
    name = design.name if design is not None else NAMES[state]
    cast = fake_hosts.Acting(
        wiring.fleet.facts(), *POOLS[state], name=name, run_id="20261121-093000-7f3e", design=design
    )
    for replica in cast.plan.replicas:
        # The numbers of steps and the losses match `Acting.measure`, which simulates twelve steps every three seconds.
        losses = {step: 0.41 + 1.8 * math.exp(-step / 360) for step in range(0, 4 * RUNS_FOR_S - 10, 10)}
        lines = (LOG.format(epoch=step // 1251, step=step, loss=loss) for step, loss in losses.items())
        cast.logs[replica.name] = "".join(lines).encode()
    cast.note(wiring.home)
    wiring.fleet._fleet = fake_hosts.ActingFleet(cast)  # type: ignore[assignment]  # The pictures need no contact with a real host.
    cast.start()
    return cast


def feed_run(
    page: RunsPage,
    cast: fake_hosts.Acting,
    settle: Callable[[], None],
    step: Mapping[str, float] | None = None,
    served: Mapping[str, float] | None = None,
) -> None:
    """Shows the run, and feeds it with all samples since its start.

    Args:
        step: Additional step metrics of the trainers.
        served: Metrics of the servers.
    """
    page.show_run(cast.run_id)
    settle()
    feed = page.feed
    assert feed is not None
    assert all(cast.links[host].hears("telemetry") for host in cast.plan.hosts), "the acted run is not followed"
    for at in range(5, RUNS_FOR_S, 3):
        cast.measure(at, slow=SLOW, step=step, served=served)
        feed._take_samples()  # Only the newest waiting sample of each host is kept.
    feed._look_for_silence = lambda: None  # type: ignore[method-assign]  # Pictures are static.
    feed._silence_timer.stop()
    settle()


def log_opener(page: RunsPage) -> Callable[[bool], None]:
    """Returns a function that opens or closes the log dock."""
    return page.run_view.log.set_open
