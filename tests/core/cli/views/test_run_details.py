"""Tests that `runs show` prints the exchange and waiting times of a step if a replica has reported them."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.cli.views.run_details import print_run
from torchyard_core.formatting import format_byte_rate, utc_now


def shown(**metrics: dict[str, float | None]) -> dict[str, Any]:
    replicas = [{"name": name.replace("_", "-"), "host": "gpu-a", "state": "running"} for name in ("worker_0", "ps_0")]
    return {
        "run_id": "20261122-000000-abcd",
        "name": "digits",
        "state": "running",
        "reason": "",
        "fresh": True,
        "submitted": "2026-11-22T00:00:00Z",
        "launched_from": "",
        "restarted_from": "",
        "hosts": ["gpu-a"],
        "asked": [],
        "replicas": replicas,
        "metrics": {name.replace("_", "-"): reported for name, reported in metrics.items()},
    }


def cells(text: str, replica: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(replica)).split()


def test_columns_are_there_where_a_replica_has_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    reported = {"step": 12.0, "loss": 0.5, "exchange_s": 0.012, "wait_s": 1.5, "staleness": 2.0}
    print_run(shown(worker_0=reported))
    text = capsys.readouterr().out
    head = next(line for line in text.splitlines() if line.startswith("REPLICA"))
    assert head.split()[5:] == ["STEP", "LOSS", "SAMPLES/S", "EXCHANGE", "WAITING", "STALE", "REASON"]
    assert cells(text, "worker-0")[5:] == ["12", "0.5", "-", "12", "ms", "1.50", "s", "2"]
    assert cells(text, "ps-0")[5:] == ["-", "-", "-", "-", "-", "-"]


def test_servers_tell_their_versions_clients_and_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(shown(worker_0={"step": 12.0}, ps_0={"version": 1204.0, "clients": 3.0, "bytes_s": 12_340_000.0}))
    text = capsys.readouterr().out
    head = next(line for line in text.splitlines() if line.startswith("REPLICA"))
    assert head.split()[8:] == ["VERSION", "CLIENTS", "TRAFFIC", "REASON"]
    assert cells(text, "ps-0")[5:] == ["-", "-", "-", "1,204", "3", "12.3", "MB/s"]
    assert [format_byte_rate(each) for each in (640, 1500, 117_600_000, 2.4e9)] == [
        "640 B/s",
        "1.5 kB/s",
        "118 MB/s",
        "2.4 GB/s",
    ]


def test_what_scripts_report_by_names_of_their_own_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(shown(worker_0={"step": 12.0, "accuracy": 0.93751, "epoch": 3.0, "lr": None}, ps_0={"version": 1.0}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "worker-0  accuracy 0.9375, epoch 3, lr NaN"
    assert "accuracy" not in "".join(lines[:-1])


def test_a_run_without_reports_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_run(shown(worker_0={"step": 12.0}))
    assert "EXCHANGE" not in capsys.readouterr().out


def test_the_last_membership_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    last = {"step": 812, "members": ["worker-0", "worker-1", "worker-2"], "lost": ["worker-3"]}
    print_run({**shown(), "memberships": [{"step": 7, "members": [], "lost": []}, last]})
    assert "step 812: 3 of 4 workers; lost: worker-3" in capsys.readouterr().out.splitlines()
    print_run({**shown(), "memberships": [{**last, "step": 900, "members": ["a", "b"], "lost": []}]})
    assert "step 900: 2 of 2 workers" in capsys.readouterr().out.splitlines()


def test_the_jobs_of_a_run_on_a_cluster_are_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    first = {"job_id": "7", "group": "", "state": "RUNNING", "problem": ""}
    other = {"job_id": "8", "group": "group-1", "state": "", "problem": "n2: the disk is full"}
    print_run({**shown(), "jobs": [first]})
    assert "job 7 (RUNNING)" in capsys.readouterr().out.splitlines()
    print_run({**shown(), "jobs": [first, other]})
    assert "jobs 7 (RUNNING), 8 of group-1 (n2: the disk is full)" in capsys.readouterr().out.splitlines()


def test_a_run_on_a_cluster_has_a_column_for_the_nodes_while_it_has_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    replicas = [{"name": f"worker-{rank}", "host": f"hpc.{rank + 1}", "state": "running"} for rank in range(2)]
    print_run({**shown(), "replicas": replicas, "nodes": {"hpc.1": "n7"}})
    text = capsys.readouterr().out
    assert cells(text, "REPLICA")[:4] == ["REPLICA", "HOST", "NODE", "STATE"]
    assert cells(text, "worker-0")[:4] == ["worker-0", "hpc.1", "n7", "running"]
    assert cells(text, "worker-1")[:4] == ["worker-1", "hpc.2", "-", "running"]
    print_run({**shown(), "replicas": replicas, "nodes": {}})
    assert "NODE" not in capsys.readouterr().out


def test_interruptions_and_missing_telemetry_of_a_run_on_a_cluster_are_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    interruptions = [
        {"time": utc_now(), "job": "7", "restart": number, "cause": cause}
        for number, cause in enumerate(("REQUEUED", "PREEMPTED"))
    ]
    print_run({**shown(), "interruptions": interruptions[:1], "telemetry_problem": "no way"})
    first = capsys.readouterr().out.splitlines()
    assert any(line.startswith("1 interruption by Slurm, the last ") and line.endswith(": REQUEUED") for line in first)
    assert "live telemetry is missing: no way" in first
    print_run({**shown(), "interruptions": interruptions})
    assert "2 interruptions by Slurm, the last " in capsys.readouterr().out
