"""Tests that `torchyard validate` prints the problems of a topology, and `plan` the placement of its replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.core.cli.command_runner import answer, torchyard
from tests.lab import Desktop

MakeDesktop = Callable[..., Desktop]

GOOD = """\
version: 1
name: digits
strategy: {kind: all_reduce}
pools:
  - {name: chief, role: chief, replicas: 1, gpus: 2, hosts: [gpu-a]}
  - {name: workers, role: worker, replicas: 1, hosts: [gpu-b]}
program: {script: train.py, args: [--epochs, "2"], secrets: [TOKEN]}
"""
GPUS = [{"index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100", "memory_mb": 81920} for index in range(4)]


@pytest.fixture
def desktop(make_desktop: MakeDesktop, tmp_path: Path) -> Desktop:
    """Returns a desktop with a script and two hosts, one of which has been checked and has four GPUs."""
    desktop = make_desktop()
    hosts = [{"name": "gpu-a", "address": "192.0.2.1"}, {"name": "gpu-b", "address": "192.0.2.2"}]
    desktop.fleet_file.write_text(yaml.safe_dump({"version": 1, "hosts": hosts}))
    facts = {"address": "192.0.2.1", "cpus": 8, "memory_gb": 64.0, "gpus": GPUS, "checked_at": "2026-11-21T09:00:00Z"}
    python = {"path": "/opt/torch/bin/python", "version": "3.11.9"}
    desktop.fleet_file.with_name("facts.json").write_text(json.dumps({"gpu-a": {**facts, "python": python}}))
    (tmp_path / "train.py").write_text("")
    return desktop


def written(tmp_path: Path, text: str = GOOD) -> Path:
    file = tmp_path / "digits.yaml"
    file.write_text(text)
    return file


def test_validate_says_that_nothing_is_wrong(desktop: Desktop, tmp_path: Path) -> None:
    file = written(tmp_path)
    fine = torchyard(desktop, "validate", file)
    assert (fine.stdout, fine.stderr) == (f"{file}: no problems.\n", "")
    assert answer(desktop, "validate", file) == {"file": str(file), "problems": []}
    desktop.fleet_file.unlink()
    assert "Hosts were not checked: there is no fleet file" in torchyard(desktop, "validate", file).stderr


def test_validate_prints_a_line_for_each_problem(desktop: Desktop, tmp_path: Path) -> None:
    file = written(tmp_path, GOOD.replace("[gpu-b]", "[gpu-x]").replace("args:", "arguments:"))
    lines = torchyard(desktop, "validate", file, code=1).stdout.splitlines()
    assert any(line.startswith(f"{file}:7: error unknown-key ") and "args" in line for line in lines)
    problems = answer(desktop, "validate", file, code=1)["problems"]
    assert [
        f"{file}:{found['line']}: {found['severity']} {found['code']} {found['message']}" for found in problems
    ] == lines


def test_validate_knows_the_fleet_where_there_is_one(
    desktop: Desktop, make_desktop: MakeDesktop, tmp_path: Path
) -> None:
    file = written(tmp_path, GOOD.replace("[gpu-b]", "[gpu-x]"))
    assert f"{file}:6: error unknown-host" in torchyard(desktop, "validate", file, code=1).stdout
    torchyard(make_desktop(), "validate", file)


SEARCH = """\
version: 1
parameters: {lr: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
trials: 3
"""


def test_validate_checks_a_search_as_a_launch_does(desktop: Desktop, tmp_path: Path) -> None:
    search, file = tmp_path / "search.yaml", written(tmp_path, GOOD.replace("[--epochs,", "[--lr, '{params.rl}',"))
    search.write_text(SEARCH.replace("low: 0", "low: 2"))
    lines = torchyard(desktop, "validate", file, search, code=1).stdout.splitlines()
    assert lines == [
        f"{file}:7:42: error parameter-unknown {{params.rl}} is no parameter of {search}; did you mean {{params.lr}}?",
        f"{search}:2:47: error range the range of lr is empty: low 2 is above high 1",
    ]
    refused = torchyard(desktop, "sweep", file, search, code=1).stderr
    assert refused.splitlines() == [*lines, "torchyard: Correct the file, then start it again."]
    found = answer(desktop, "validate", file, search, code=1)
    assert [problem["code"] for problem in found["problems"]] == ["parameter-unknown"]
    assert [(problem["line"], problem["column"]) for problem in found["search"]["problems"]] == [(2, 47)]

    file.write_text(file.read_text().replace("{params.rl}", "{params.lr}"))
    search.write_text(SEARCH)
    fine = torchyard(desktop, "validate", file, search)
    assert (fine.stdout, fine.stderr) == (f"{file}: no problems.\n{search}: no problems.\n", "")


def test_validate_checks_a_search_alone(desktop: Desktop, tmp_path: Path) -> None:
    search = tmp_path / "search.yaml"
    search.write_text(SEARCH.replace("trials: 3\n", "trails: 3\n"))
    wrong = torchyard(desktop, "validate", search, code=1)
    assert f"{search}:4:9: error unknown-key unknown key `trails`; did you mean `trials`?" in wrong.stdout
    search.write_text(SEARCH)
    fine = torchyard(desktop, "validate", search)
    assert fine.stdout == f"{search}: no problems.\n"
    assert f"validate TOPOLOGY {search}` checks both" in fine.stderr
    assert answer(desktop, "validate", search) == {"file": str(search), "problems": []}
    refused = torchyard(desktop, "validate", search, "--set", "name=x", code=2)
    assert "is a search file; with --set, FILE is a topology" in refused.stderr


def test_validate_takes_settings(desktop: Desktop, tmp_path: Path) -> None:
    file = written(tmp_path)
    torchyard(desktop, "validate", file, "--set", "pools.chief.replicas=2", code=1)
    wrong = torchyard(desktop, "validate", file, "--set", "pools.worker.replicas=2", code=2)
    assert "did you mean `workers`" in wrong.stderr


@pytest.mark.parametrize("text", ["a: [", "\x00", "- - -: ]["])
def test_what_is_no_yaml_ends_with_exit_code_2(desktop: Desktop, tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    for command in ("validate", "plan"):
        done = torchyard(desktop, command, file, "--json", code=2)
        assert "digits.yaml" in json.loads(done.stdout)["error"]["message"]
        assert "digits.yaml" in done.stderr


def test_plan_tells_where_each_replica_would_run(desktop: Desktop, tmp_path: Path) -> None:
    file = written(tmp_path)
    planned = answer(desktop, "plan", file)

    assert list(planned) == ["name", "strategy", "replicas", "problems", "nodes"]
    chief, worker = planned["replicas"]
    assert list(chief) == ["name", "role", "index", "gang", "rank", "ranks", "host", "gpus", "command", "env"]
    assert (chief["host"], chief["rank"], chief["ranks"], chief["gpus"]) == ("gpu-a", 0, 2, ["GPU-0", "GPU-1"])
    assert (worker["host"], worker["rank"], worker["gpus"]) == ("gpu-b", 2, [])
    assert chief["command"] == ["/opt/torch/bin/python", "train.py", "--epochs", "2"]
    assert chief["env"]["TOKEN"] == "***"

    result = torchyard(desktop, "plan", file)
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["REPLICA", "ROLE", "RANKS", "GANG", "HOST", "GPUS", "COMMAND"]
    assert rows[1][:6] == ["chief-0", "chief", "0-1", "trainers", "gpu-a", "0-1"]
    assert rows[2][:6] == ["worker-0", "worker", "2", "trainers", "gpu-b", "-"]
    assert "warning unchecked-host" in result.stderr
    assert "gpu-b" in result.stderr

    one = torchyard(desktop, "plan", file, "--show", "chief-0").stdout
    assert one.startswith("/opt/torch/bin/python train.py --epochs 2\n")
    assert "\nWORLD_SIZE=3\n" in one
    assert "chief-0, worker-0" in torchyard(desktop, "plan", file, "--show", "chief-1", code=2).stderr


def test_a_plan_that_cannot_be_started_ends_with_exit_code_1(desktop: Desktop, tmp_path: Path) -> None:
    file = written(tmp_path)
    done = torchyard(desktop, "plan", file, "--set", "pools.chief.gpus=8", "--json", code=1)
    planned = json.loads(done.stdout)
    assert planned["replicas"][0]["host"] is None
    assert "no-room" in [problem["code"] for problem in planned["problems"]]
    assert "error no-room" in done.stderr
    nothing = answer(desktop, "plan", written(tmp_path, "version: 1\nname: x\n"), code=1)
    assert nothing["replicas"] == []
    assert nothing["problems"]


def test_a_plan_for_a_cluster_reads_its_nodes_or_says_why_it_cannot(desktop: Desktop, tmp_path: Path) -> None:
    fleet = yaml.safe_load(desktop.fleet_file.read_text())
    login = {"address": "127.0.0.1", "port": 1}  # No server listens there.
    desktop.fleet_file.write_text(
        yaml.safe_dump({**fleet, "clusters": [{"name": "hpc", "kind": "slurm", "login": login}]})
    )
    on_cluster = GOOD.replace("[gpu-a]", "[hpc]").replace("[gpu-b]", "[hpc]")
    for arguments in ([written(tmp_path), "--on", "hpc"], [written(tmp_path, on_cluster)]):
        assert "127.0.0.1" in torchyard(desktop, "plan", *arguments, code=3).stderr
    assert "no cluster `hpd`; did you mean `hpc`" in torchyard(
        desktop, "plan", written(tmp_path), "--on", "hpd", code=2
    ).stderr  # fmt: skip
    mixed = written(tmp_path, GOOD.replace("[gpu-a]", "[hpc]"))
    assert "all pools of a run need the same place" in torchyard(desktop, "plan", mixed, code=2).stderr


def test_files_of_a_sweep_in_the_wrong_order_are_recognised(desktop: Desktop, tmp_path: Path) -> None:
    search, file = tmp_path / "search.yaml", written(tmp_path, GOOD)
    search.write_text(SEARCH)
    refused = torchyard(desktop, "sweep", search, file, code=2).stderr
    assert "they are in the wrong order. Name the topology first." in refused
    assert f" validate {file} {search}`" in torchyard(desktop, "validate", search, file, code=2).stderr
