"""Tests of collecting the facts of a host, with working, broken and missing interpreters."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, write_gpus
from tests.agent.telemetry.sample_programs import conversation
from tests.waiting import wait_until
from torchyard_agent.telemetry import host_facts as facts
from torchyard_agent.telemetry import training_python
from torchyard_agent.telemetry.host_facts import host_facts, nvml_problem
from torchyard_agent.telemetry.process_usage import ProcessTrees

VERSIONS = Path.home() / ".pyenv" / "versions"


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    training_python._known.clear()


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def codes(found: dict[str, list[dict[str, str]]]) -> list[str]:
    return [problem["code"] for problem in found["problems"]]


def test_a_host_with_torch_has_no_problem(tmp_path: Path) -> None:
    found = host_facts(sys.executable, str(tmp_path))
    assert found["problems"] == []
    assert found["python"] == {"path": sys.executable, "version": platform.python_version()}
    assert found["torch"].startswith("2.")
    assert found["numpy"]
    assert found["agent_python"] == {"path": sys.executable, "version": platform.python_version()}
    assert found["hostname"] == socket.gethostname()
    assert found["kernel"] == platform.release()
    assert 1 <= found["cpus"] <= (os.cpu_count() or 1)
    assert found["memory_gb"] > 0.1
    assert found["disk_free_gb"] > 0


def test_torch_is_found_without_importing_it() -> None:
    before = time.process_time() + sum(os.times()[2:4])
    assert training_python.find(sys.executable).torch
    # The limit on CPU time is far too low to import torch, which takes seconds.
    assert time.process_time() + sum(os.times()[2:4]) - before < 1.0


def test_a_torch_that_was_built_in_place_is_found_by_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.0a0+git1234'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert training_python.find("/usr/bin/python3").torch == "2.9.0a0+git1234"


def test_a_python_without_torch_is_a_problem_that_names_it(tmp_path: Path) -> None:
    bare = script(tmp_path / "python", '#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n')
    found = host_facts(bare, str(tmp_path))
    assert found["torch"] is None
    assert found["python"]["version"]
    (problem,) = found["problems"]
    assert problem["code"] == "no_torch"
    assert problem["message"] == f"torch is not installed for {bare}"
    assert f"{bare} -m pip install torch" in problem["hint"]


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15"])
def test_a_python_that_is_too_old_is_a_problem(tmp_path: Path, version: str) -> None:
    python = VERSIONS / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no Python {version} here")
    found = host_facts(str(python), str(tmp_path))
    assert codes(found) == ["python_too_old"]
    assert found["problems"][0]["message"].startswith(f"{python} is Python {version}, too old")


def test_a_missing_interpreter_is_a_problem(tmp_path: Path) -> None:
    found = host_facts(str(tmp_path / "none"), str(tmp_path))
    assert codes(found) == ["python_missing"]
    assert found["python"] == {"path": str(tmp_path / "none"), "version": None}


def test_a_program_that_is_no_python_is_a_problem_with_its_output(tmp_path: Path) -> None:
    liar = script(tmp_path / "python", "#!/bin/sh\necho 'module torch/2.4 not found' >&2\nexit 3\n")
    found = host_facts(liar, str(tmp_path))
    assert codes(found) == ["python_broken"]
    assert found["problems"][0]["message"].endswith("(exit status 3): module torch/2.4 not found")


def test_a_file_that_cannot_be_executed_is_a_problem(tmp_path: Path) -> None:
    found = host_facts(script(tmp_path / "python", "\0not a program"), str(tmp_path))
    assert codes(found) == ["python_broken"]


def test_an_interpreter_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_python, "PROBE_S", 2.0)
    hanging = script(tmp_path / "python", f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\nwait\n")
    began = time.monotonic()
    assert codes(host_facts(hanging, str(tmp_path))) == ["python_broken"]
    assert time.monotonic() - began < 60
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: ProcessTrees().sample({"child": [child]}, 1.0)["child"]["processes"] == 0)


def test_other_output_of_an_interpreter_is_ignored(tmp_path: Path) -> None:
    noisy = script(tmp_path / "python", f'#!/bin/sh\nprintf "activating..."\nexec {sys.executable} "$@"\n')
    assert training_python.find(noisy).torch


def test_home_and_variables_in_the_path_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(tmp_path / "py", "#!/bin/sh\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENVS", str(tmp_path))
    assert training_python.resolve("~/py") == python
    assert training_python.resolve("$ENVS/py") == python


def test_without_a_path_the_logins_python3_is_taken_and_else_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert training_python.find(None).problem == {
        "code": "python_missing",
        "message": "neither python3 nor python is on the PATH",
        "hint": "Choose an interpreter that has torch.",
    }
    python = script(tmp_path / "python", "#!/bin/sh\n")
    assert training_python.resolve(None) == python
    python3 = script(tmp_path / "python3", "#!/bin/sh\n")
    assert training_python.resolve(None) == python3


def test_an_interpreter_is_run_once_until_its_packages_change(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    asked = tmp_path / "asked"
    python = script(
        tmp_path / "python",
        f'#!/bin/sh\necho once >> {asked}\nPYTHONPATH={packages} exec /usr/bin/python3 -S "$@"\n',
    )
    assert training_python.find(python).torch is None
    assert training_python.find(python).torch is None
    assert asked.read_text() == "once\n"
    (packages / "torch-2.13.0.dist-info").mkdir()
    (packages / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    os.utime(packages, (1, 1))  # The folder's time changes even if the clock's resolution is low.
    assert training_python.find(python).torch == "2.13.0"
    assert asked.read_text() == "once\nonce\n"


def test_a_disk_that_is_nearly_full_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "LEAST_FREE_GB", 10**9)
    assert codes(host_facts(sys.executable, str(tmp_path))) == ["disk_nearly_full"]
    assert facts.disk_problem("/home/x", 0.25)["message"] == "only 256 MiB are free for /home/x"


def test_device_files_without_the_library_are_a_problem(tmp_path: Path) -> None:
    device = tmp_path / "nvidiactl"
    assert nvml_problem("it cannot be loaded", (str(device),)) is None
    device.touch()
    problem = nvml_problem("it cannot be loaded", (str(device),))
    assert problem is not None
    assert problem["code"] == "nvml_missing"
    assert problem["message"].endswith("NVML does not work: it cannot be loaded")


def test_gpus_and_their_driver_are_facts_and_a_lost_one_is_a_problem(
    nvml_environment: dict[str, str], gpu_file: Path, tmp_path: Path
) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a"), FakeGpu("GPU-b", lost=True)])
    with conversation(nvml_environment) as python:
        python.say("from torchyard_agent.telemetry import host_facts")
        found = python.say(f"(host_facts.host_facts({sys.executable!r}, {str(tmp_path)!r}))")
    assert found["gpus"] == [{"index": 0, "uuid": "GPU-a", "name": "NVIDIA H100 80GB HBM3", "memory_mb": 81559}]
    assert found["driver"] == "550.54.15"
    assert codes(found) == ["gpu_failed"]
    assert found["problems"][0]["message"].startswith("GPU 1 (GPU) has fallen off the bus")


def test_a_search_lists_interpreters_with_their_torch_and_those_with_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    bare = home / "project" / ".venv" / "bin"
    bare.mkdir(parents=True)
    script(bare / "python", f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    broken = home / "venv" / "bin"
    broken.mkdir(parents=True)
    script(broken / "python", "#!/bin/sh\necho no >&2\nexit 3\n")
    (broken / "python3").symlink_to("python")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setattr(training_python, "PLACES", ("~/.venv/bin/python", "~/venv/bin/python", "~/*/.venv/bin/python"))
    found = training_python.search(str(broken / "python3"))
    mine = found[0]
    assert Path(mine["path"]).parent == Path(sys.executable).parent
    assert mine["torch"].startswith("2.")
    assert mine["problem"] is None
    assert [one["path"] for one in found[-2:]] == [str(bare / "python"), str(broken / "python3")]
    assert (found[-2]["torch"], found[-1]["version"]) == (None, None)
    assert "does not work as a Python (exit status 3): no" in found[-1]["problem"]
