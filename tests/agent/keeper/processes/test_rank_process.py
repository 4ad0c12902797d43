"""Tests of a rank's environment and command, without starting the rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.keeper.processes import rank_process
from torchyard_agent.keeper.processes.rank_process import ARCHIVE, RunPlace
from torchyard_agent.keeper.rank_metrics import LatestMetrics
from torchyard_agent.protocol import metrics_report

PLACE = RunPlace("run-1", "gpu-a", "/runs/run-1", "\0torchyard/0/x/report/run-1")


def environment(login: dict[str, str], env: dict[str, str] | None = None, **secrets: str) -> dict[str, str]:
    rank: Any = {"rank": 0, "local_rank": 1, "argv": ["true"], "env": env or {}}
    return rank_process.environment(login, PLACE, "worker-0", rank, secrets)


def test_secrets_override_the_plan_and_the_plan_the_login() -> None:
    made = environment({"A": "login", "B": "login", "C": "login"}, {"B": "plan", "C": "plan"}, C="secret")
    assert (made["A"], made["B"], made["C"]) == ("login", "plan", "secret")


def test_roles_can_be_imported_and_the_users_own_path_stays() -> None:
    assert environment({})["PYTHONPATH"] == ARCHIVE
    assert environment({"PYTHONPATH": f"/mine:{ARCHIVE}:/other"})["PYTHONPATH"] == f"{ARCHIVE}:/mine:/other"
    assert environment({"PYTHONPATH": "/mine"}, {"PYTHONPATH": "/planned"})["PYTHONPATH"] == f"{ARCHIVE}:/planned"


def test_variables_of_the_host_are_set() -> None:
    made = environment({})
    assert made["TORCHYARD_REPORT"] == "@torchyard/0/x/report/run-1"
    assert made["TORCHYARD_RUN_DIR"] == "/runs/run-1"
    assert made["TORCHELASTIC_ERROR_FILE"] == "/runs/run-1/errors/worker-0.1.json"


def test_variables_of_an_outer_run_are_removed() -> None:
    outer = {"RANK": "7", "WORLD_SIZE": "8", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "y", "TORCHYARD_ROLE": "ps"}
    made = environment({**outer, "LD_LIBRARY_PATH": "/cuda", "PATH": "/bin"})
    assert not set(outer) & set(made)
    assert (made["LD_LIBRARY_PATH"], made["PATH"]) == ("/cuda", "/bin")


def test_without_setup_lines_there_is_no_shell() -> None:
    assert rank_process.command(["python", "train.py"], [], "/x") == ["python", "train.py"]
    assert rank_process.command(["python", "train.py"], ["true"], "/x")[-3:] == [
        "torchyard-setup",
        "python",
        "train.py",
    ]


def test_a_replicas_numbers_are_those_of_its_first_rank_with_the_throughput_of_all() -> None:
    latest = LatestMetrics({"worker-0"})
    assert latest.all() == {}
    assert latest.take(metrics_report.encode("worker-0", 1, {"step": 4, "loss": 9.0, "throughput": 10.0})) == "worker-0"
    assert (
        latest.take(metrics_report.encode("worker-0", 0, {"step": 3, "loss": float("inf"), "throughput": 2.5}))
        == "worker-0"
    )
    assert latest.of("worker-0") == {"step": 4, "loss": None, "throughput": 12.5}


def test_a_server_has_no_step() -> None:
    latest = LatestMetrics({"ps-0"})
    latest.take(metrics_report.encode("ps-0", 0, {"version": 12, "clients": 3, "bytes_s": 1e6}))
    assert latest.of("ps-0") == {"version": 12, "clients": 3, "bytes_s": 1e6}


def test_custom_metrics_with_valid_names_are_kept() -> None:
    latest = LatestMetrics({"worker-0"})
    hostile = {"a b": 1, "\x1b[31mred": 2, "x" * 65: 3, "1st": 4, "é": 5, "flag": True, "text": "6", "": 7, "x\n": 8}
    assert latest.take(metrics_report.encode("worker-0", 0, {"step": 1, "accuracy": 0.5, **hostile})) == "worker-0"
    assert latest.of("worker-0") == {"step": 1, "accuracy": 0.5}
    assert latest.take(metrics_report.encode("worker-0", 0, {"accuracy": float("nan")})) == "worker-0"
    assert latest.of("worker-0") == {"step": 1, "accuracy": None}


def test_a_replica_has_at_most_32_custom_metrics() -> None:
    latest = LatestMetrics({"worker-0"})
    latest.take(metrics_report.encode("worker-0", 0, {f"a{number}": number for number in range(40)}))
    assert list(latest.of("worker-0")) == [f"a{number}" for number in range(32)]
    latest.take(metrics_report.encode("worker-0", 0, {"b": 1.0, "a0": 7.0, "step": 3}))
    assert latest.of("worker-0") == {"step": 3, "a0": 7.0, **{f"a{number}": number for number in range(1, 32)}}


def test_invalid_reports_are_dropped() -> None:
    latest = LatestMetrics({"worker-0"})
    huge = b'{"replica": "worker-0", "local_rank": 0, "metrics": {"step": 1' + b"0" * 400 + b"}}"
    for datagram in (b"", b"\xff", b"[]", b"[" * 5000, huge, metrics_report.encode("worker-9", 0, {"step": 1})):
        assert latest.take(datagram) is None
    assert latest.all() == {}


@pytest.mark.parametrize(
    ("printed", "is_missing"),
    [
        ("ModuleNotFoundError: No module named 'torch'", True),
        ("/usr/bin/python3: No module named torch", True),
        ("ModuleNotFoundError: No module named 'torchvision'", False),
        ("ModuleNotFoundError: No module named 'torch.something'", False),
    ],
)
def test_an_interpreter_without_torch_is_incurable_and_explained(
    tmp_path: Path, printed: str, is_missing: bool
) -> None:
    place = PLACE._replace(folder=str(tmp_path))
    (tmp_path / "logs").mkdir()
    header = "Traceback (most recent call last):\n  File 'a'\n" if printed.startswith("Module") else ""
    Path(place.log_file("worker-0", 0)).write_text(f"{header}{printed}\n")
    rank: Any = {"rank": 0, "local_rank": 0, "argv": ["python3"], "env": {}}
    cause = rank_process.cause_of(place, "worker-0", rank, [], 1, out_of_memory=False)
    assert cause.curable is not is_missing
    assert ("the interpreter on gpu-a has no torch: name one" in cause.text) is is_missing
