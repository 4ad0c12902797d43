"""Tests of preflight checks on lab hosts: each fault is found and named, and the message has a hint."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, write_gpus
from tests.end_to_end.running import Event, Outcome, programs_on, run, started, topology
from tests.lab import Desktop, Lab, LabHost
from tests.lab.hosts.gpus import give_gpus
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]

ON_TWO = """
    pools:
      - {name: workers, role: worker, replicas: 2, hosts: [gpu-a, gpu-b], placement: spread}
    program: {launcher: command, command: ["true"]}
"""
WITH_GPUS = """
    pools:
      - {name: workers, role: worker, replicas: 2, gpus: 1, placement: spread}
    program: {launcher: command, command: ["true"]}
"""
TORCH = """
    pools:
      - {name: workers, role: worker, replicas: 1, hosts: [gpu-a]}
    program: {script: train.py}
"""
WITH_A_STRAY = """
    import os, subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("up", flush=True)
    time.sleep(600)
"""
LATE_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec -= 60;
    return code;
}
"""
FLOOD = """
import os, socket, sys
os.nice(-10)
listener = socket.create_server(("", 7777))
print(os.getpid(), flush=True)
taker, _ = listener.accept()
while taker.recv(1 << 20):
    pass
"""
POUR = """
import os, socket, sys
os.nice(-10)  # so that it sends continuously even on a busy machine
way = socket.create_connection((sys.argv[1], 7777))
print(os.getpid(), flush=True)
while True:
    way.sendall(bytes(1 << 20))
"""


def checks(outcome: Outcome, name: str) -> list[Event]:
    return [event for event in outcome.of("check") if event["name"] == name]


def warned(outcome: Outcome, name: str) -> str:
    """Returns the message of the check with the given name, which must be a warning."""
    [found] = [event for event in checks(outcome, name) if event.get("warning")]
    assert found["ok"]
    return str(found["message"])


def succeeded(outcome: Outcome) -> Outcome:
    assert outcome.ended["state"] == "succeeded", (outcome.events[-1], outcome.stderr)
    return outcome


@contextmanager
def program(host: LabHost, *argv: str) -> Iterator[int]:
    """Starts a program on a host, which must print its PID; kills the program afterwards."""
    process = host.start(argv)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    try:
        yield pid
    finally:
        host.exec(["sh", "-c", f"kill -KILL {pid}"])
        process.communicate(timeout=60)


def test_hosts_without_problems_get_only_green_lines(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    outcome = succeeded(run(desktop, topology(tmp_path / "well", ON_TWO)))

    names = {"host", "disk", "clock", "limits", "leftovers", "bandwidth", "network"}
    assert names <= {event["name"] for event in outcome.of("check")}
    assert not [event for event in outcome.of("check") if event.get("warning") or not event["ok"]]
    [network] = checks(outcome, "network")
    assert network["message"] == "2 hosts reach each other on the data network, both ways"


def test_a_clock_that_is_a_minute_late(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-c"]
    source = tmp_path / "late.c"
    source.write_text(LATE_CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(host.home / "late.so"), str(source), "-ldl"], check=True)
    host.set_ssh_environment({"LD_PRELOAD": "/root/late.so"})

    outcome = run(
        desktop, topology(tmp_path / "late", ON_TWO.replace("replicas: 2, hosts: [gpu-a, gpu-b]", "replicas: 3"))
    )

    assert re.search(r"the clock of gpu-c is (59|60|61)\.\d s behind the other hosts'", warned(outcome, "clock"))


def test_hosts_that_do_not_reach_each_other_stop_the_launch(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    a, b = lab3["gpu-a"], lab3["gpu-b"]
    a.exec(["ip", "route", "add", "blackhole", f"{b.address}/32"], check=True)
    try:
        outcome = run(desktop, topology(tmp_path / "apart", ON_TWO))
    finally:
        a.exec(["ip", "route", "del", "blackhole", f"{b.address}/32"], check=True)

    assert outcome.code == 1
    red = [event for event in checks(outcome, "network") if not event["ok"]]
    # The check on each of the two hosts fails, because neither reaches the other.
    assert {event["host"] for event in red} == {"gpu-a", "gpu-b"}
    assert f"gpu-a does not reach gpu-b at {b.address} port" in outcome.error["message"]
    assert "firewall of gpu-b" in outcome.error["hint"]
    assert "`data_address` of gpu-b" in outcome.error["hint"]
    wait_until(lambda: not programs_on(lab3))
    assert not [run for host in (a, b) for run in (host.home / ".torchyard" / "hosts" / host.name / "runs").glob("*")]


def test_bandwidth_is_measured_once_a_day_and_shows_the_slow_link(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    for host in lab3.hosts:
        host.shape("200mbit")
        # Agents inherit the priority of the login that starts them. With a high priority, they can measure even on a
        # busy machine.
        host.exec(["sh", "-c", "renice -n -10 -p $(pgrep -x sshd)"], check=True)
    desktop.bandwidths.unlink()
    file = topology(tmp_path / "slow", ON_TWO)

    first = succeeded(run(desktop, file))
    before = lab3["gpu-a"].bytes_received
    second = succeeded(run(desktop, file))

    [line] = checks(first, "bandwidth")
    figure = float(line["message"].removeprefix("gpu-a ↔ gpu-b ").removesuffix(" Mbit/s"))
    # The measurement skips the first 0.1 s, but TCP's buffers may hold another 0.1 s of data.
    assert 100 < figure < 280
    assert checks(second, "bandwidth")[0]["message"] == line["message"]
    assert lab3["gpu-a"].bytes_received - before < 1_000_000


def test_a_busy_link_is_not_measured_and_an_old_figure_is_called_old(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    file = topology(tmp_path / "busy", ON_TWO)
    known = json.loads(desktop.bandwidths.read_text())
    known = {key: {**figure, "at": figure["at"] - 3 * 86400} for key, figure in known.items()}
    desktop.bandwidths.write_text(json.dumps(known))
    b, c = lab3["gpu-b"], lab3["gpu-c"]
    with program(c, "python3", "-c", FLOOD), program(b, "python3", "-c", POUR, c.address):
        outcome = succeeded(run(desktop, file))

    [line] = checks(outcome, "bandwidth")
    assert "(measured 3 days ago: the network of gpu-b is busy)" in line["message"]
    assert json.loads(desktop.bandwidths.read_text()) == known


def test_leftovers_of_an_earlier_run_are_ended_and_reported(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    text = TORCH.replace("{script: train.py}", "{launcher: command, command: [python3, stray.py]}")
    process = desktop.start("run", topology(tmp_path / "stray", text, stray_py=WITH_A_STRAY), "--json")
    run_id = started(process, "run_submitted")["run_id"]
    started(process, "run_state", state="running")
    wait_until(lambda: sum("sleep(600)" in line for line in programs_on(lab3)) >= 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # The daemon is killed first, because it would otherwise clean up after the killed keeper.
    for pattern in (["-x", "torchyard-agent"], ["-f", "torchyard_agent.keeper.main"]):
        pids = host.exec(["pgrep", *pattern], check=True).stdout.split()
        host.exec(["sh", "-c", f"kill -KILL {' '.join(pids)}"], check=True)
        wait_until(lambda pids=pids: not set(map(int, pids)) & {pid for pid, _ in host.processes()})
    assert any("sleep(600)" in line for line in programs_on(lab3))

    outcome = succeeded(run(desktop, topology(tmp_path / "next", ON_TWO)))

    assert f"that the earlier run {run_id} had left on gpu-a" in warned(outcome, "leftovers")
    wait_until(lambda: not any("sleep(600)" in line for line in programs_on(lab3)))


def test_little_shared_memory_and_few_open_files(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    file = topology(tmp_path / "small", TORCH, train_py="print('well')")
    assert desktop.torchyard("deploy", "gpu-a").returncode == 0
    daemon = host.exec(["pgrep", "-x", "torchyard-agent"], check=True).stdout.split()[0]
    host.exec(["prlimit", "--pid", daemon, "--nofile=512:512"], check=True)
    host.exec(["mount", "-t", "tmpfs", "-o", "size=16m", "none", "/dev/shm"], check=True)
    try:
        outcome = succeeded(run(desktop, file))
    finally:
        host.exec(["umount", "-l", "/dev/shm"], check=True)

    assert "only 16 MiB of shared memory (/dev/shm) are free on gpu-a" in warned(outcome, "shm")
    assert "may open only 512 files" in warned(outcome, "limits")


def test_gpus_that_have_had_errors(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(2)
    (hosts["gpu-a"].home / "kmsg").write_text(
        "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    hosts["gpu-a"].exec(["mount", "--bind", "/root/kmsg", "/dev/kmsg"], check=True)
    give_gpus(hosts["gpu-a"], [FakeGpu("GPU-a", ecc_errors=2, bus=0x3B)])
    told_on_b = give_gpus(hosts["gpu-b"], [FakeGpu("GPU-b", bus=0x5E, repair_pending=True)], driver="535.1", cuda=12020)
    desktop = make_desktop(hosts)
    file = topology(tmp_path / "gpus", WITH_GPUS)

    outcome = succeeded(run(desktop, file, "--book", "1h"))
    write_gpus(told_on_b, [FakeGpu("GPU-b", repair_failed=True)])
    refused = run(desktop, file, "--book", "1h")

    said = " ".join(event["message"] for event in checks(outcome, "gpu"))
    assert "GPU 0 of gpu-a has had 2 uncorrectable memory errors (ECC)" in said
    assert "GPU 0 of gpu-a has had XID errors since the host booted: 79." in said
    assert "GPU 0 of gpu-b has broken memory that is replaced only by a reset." in said
    assert "gpu-b has NVIDIA driver 535.1; gpu-a has 550.54.15." in warned(outcome, "driver")
    assert refused.code == 1
    assert "GPU 0 of gpu-b has no spare memory left" in refused.error["message"]
    assert "Choose another GPU" in refused.error["hint"]


def test_a_gpu_in_use_is_reported_with_its_user(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(1)
    desktop = make_desktop(hosts)
    with program(hosts["gpu-a"], "sh", "-c", "echo $$; exec sleep 600") as pid:
        give_gpus(hosts["gpu-a"], [FakeGpu("GPU-a", compute=[(pid, 70_000)])])
        outcome = run(desktop, topology(tmp_path / "used", WITH_GPUS.replace("replicas: 2", "replicas: 1")))

    assert outcome.code == 1
    assert "used by root" in outcome.error["message"] or "in use by root (sleep" in outcome.error["message"]
