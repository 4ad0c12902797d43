"""The launch panel during the phases of a scripted launch, for screenshots. No host is contacted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchyard_core.errors import KeyUnknown, RunFailed
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import confirm_size
from torchyard_core.topology.file import TopologyFile, read_topology
from torchyard_gui.bridge.launch_job import LaunchJob
from torchyard_gui.launch import panel as launch_panel
from torchyard_gui.launch.panel import LaunchPanel
from torchyard_gui.windows.signal_connections import SignalConnections

AGENT = "agent 0.1.0 on Python 3.12.3"
FINGERPRINT = "SHA256:Gm3nqWq0vQ7yq1m2m0E5sO8o9cYyXr5m5jB8o2hK1dQ"


LARGE = {"weights/resnet50-pretrained.pt": 412_000_000, "data/val.tar": 6_700_000_000, "notes.txt": 12_000}


class StagedLaunch(LaunchJob):
    """A launch job without hosts, whose signals are emitted by `phases`."""

    def start(self) -> None:
        pass


def phases(wiring: SignalConnections) -> Iterator[tuple[str, LaunchPanel]]:
    """Puts the launch panel into each state to show; yields the name of the screenshot and the panel."""
    setattr(launch_panel, "LaunchJob", StagedLaunch)  # noqa: B010  # The pictures need no contact with a real host.
    assert wiring.document.path is not None
    source = read_topology(wiring.document.path)
    hosts = ["gpu-a", "gpu-b", "gpu-c", "gpu-f"]
    panel = wiring.launch_panel

    job = _reached(panel, source, hosts[:2], len(hosts))
    yield "checking", panel

    job.is_over = True
    job = _reached(panel, source, hosts, len(hosts))
    _looked(job, hosts)
    job.asked.emit(confirm_size(Path("imagenet"), LARGE, 4))
    yield "asking", panel

    panel.question.hide()
    job.progressed.emit("sending", 13_400_000, 32_000_000)
    yield "sending", panel

    job.progressed.emit("sending", 32_000_000, 32_000_000)
    job.progressed.emit("preparing", 4, 4)
    job.progressed.emit("starting", 1, 4)
    yield "starting", panel

    job.is_over = True
    job = _reached(panel, source, hosts[:3], len(hosts))
    why = f"the host key of gpu-f (gpu-f.example:22) is not known: it shows {FINGERPRINT}."
    job.checked.emit(Check("host", "gpu-f", False, why, "", code="key_unknown"))
    _fail(job, KeyUnknown("gpu-f", why, fingerprint=FINGERPRINT))
    yield "unknown-key", panel

    job = _reached(panel, source, hosts, len(hosts))
    _looked(job, hosts[:3])
    python = "/opt/venv/bin/python"
    why = f"torch is not installed for {python} on gpu-f."
    hint = f"Run `{python} -m pip install torch` there, or set `python` to an environment that has it."
    job.checked.emit(Check("torch", "gpu-f", False, why, hint))
    _fail(job, RunFailed(why, code="torch", hint=hint))
    yield "failed-check", panel
    panel.hide()


def _reached(panel: LaunchPanel, source: TopologyFile, hosts: list[str], of: int) -> LaunchJob:
    panel.launch(source)
    job = panel.job
    assert job is not None
    job.checked.emit(Check("topology", "", True, "resnet-imagenet"))
    for number, host in enumerate(hosts):
        job.progressed.emit("reaching", number, of)
        job.checked.emit(Check("host", host, True, AGENT))
    job.progressed.emit("reaching", len(hosts), of)
    return job


def _looked(job: LaunchJob, hosts: list[str]) -> None:
    job.progressed.emit("looking", len(hosts), len(hosts))
    for host in hosts:
        job.checked.emit(Check("python", host, True, "Python 3.12.3 at /opt/venv/bin/python"))
        job.checked.emit(Check("torch", host, True, "torch 2.13.0"))
        job.checked.emit(Check("disk", host, True, "512 GB free" if host != "gpu-c" else "37 GB free"))


def _fail(job: LaunchJob, error: KeyUnknown | RunFailed) -> None:
    job.is_over = True
    job.failed.emit(error)
