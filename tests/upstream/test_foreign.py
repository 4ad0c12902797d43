"""Tests that training scripts of other projects run unmodified on three hosts, with the same results as under torchrun.

Accelerate's and torchtitan's scripts are those of their own packages; those of Lightning and transformers are short
scripts in the folder `foreign`. All need the packages of `.venv-upstream` (`make upstream`). torchtitan needs
a GPU, and is installed only where there is one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.running import REPOSITORY, logs_of, run
from tests.lab import Desktop, Lab, LabUnavailable
from tests.lab_fixtures import unavailable

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.proof, pytest.mark.timeout(600)]

MakeLab = Callable[..., Lab]
ENVIRONMENT = REPOSITORY / ".venv-upstream"
PYTHON = ENVIRONMENT / "bin" / "python"
FOREIGN = Path(__file__).parent / "foreign"
ON_CPU = {
    "OMP_NUM_THREADS": "1",
    "ACCELERATE_USE_CPU": "true",
}
SCRIPTS = [
    ("accelerate.test_utils.scripts.test_sync", 3),
    ("accelerate.test_utils.scripts.test_ops", 3),
    ("accelerate.test_utils.scripts.test_cli", 3),
    ("accelerate.test_utils.scripts.test_script", 2),
    ("boring.py", 3),
    ("tiny_trainer.py", 3),
]
"""The tested scripts with their numbers of ranks. A script is a module of an installed package or a file in `foreign`.
"""
ON_ONE_HOST = ("accelerate.test_utils.scripts.test_script",)
"""Scripts whose ranks exchange a file in their working folder, and therefore run on one host. All other scripts run on
three hosts.
"""


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (ENVIRONMENT / ".setup-done").exists():
        unavailable(LabUnavailable("Packages of other projects are missing: `make upstream` installs them."))


def results(output: str) -> list[str]:
    """Returns the lines of a script's output that contain its results, or the titles and results of its tests.

    Accelerate's scripts print such a line once per host, so equal lines count once.
    """
    said = re.findall(
        r"^(?:result: .*|.*\*\*.*\*\*.*|Successfully ran on .*|testing .*|.*[Tt]est.*passed.*)$", output, re.MULTILINE
    )
    return sorted({line.strip() for line in said})


def under_torchrun(script: str, ranks: int, logs: Path) -> list[str]:
    """Runs a script under torchrun on this computer, and returns the results that its ranks print."""
    program = ["-m", script] if script.startswith("accelerate.") else [str(FOREIGN / script)]
    return results(output_under_torchrun(program, ranks, logs, ON_CPU))


def output_under_torchrun(
    program: list[str], ranks: int, logs: Path, environment: dict[str, str], folder: Path | None = None
) -> str:
    done = subprocess.run(
        [
            str(PYTHON),
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            "--redirects=3",
            f"--log-dir={logs}",
            *program,
        ],
        env={**os.environ, **environment},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    # If the ranks shared a pipe, their lines would be mixed.
    return "".join(file.read_text() for file in logs.rglob("std*.log"))


@pytest.mark.parametrize(("script", "ranks"), SCRIPTS, ids=lambda value: str(value).rpartition("scripts.")[2])
def test_it_ends_as_under_torchrun(desktop: Desktop, lab3: Lab, tmp_path: Path, script: str, ranks: int) -> None:
    what = f"module: {script}" if script.startswith("accelerate.") else f"script: {script}"
    workdir = json.dumps(None if script.startswith("accelerate.") else str(FOREIGN))
    placement = "pack" if script in ON_ONE_HOST else "spread"
    file = tmp_path / "foreign.yaml"
    file.write_text(
        "version: 1\nname: foreign\npools:\n"
        f"  - {{name: workers, role: worker, replicas: {ranks}, placement: {placement}}}\n"
        f"program:\n  {what}\n  workdir: {workdir}\n  max_restarts: 0\n"
        f"  python: {PYTHON}\n  env: {json.dumps(ON_CPU)}\n"
    )
    outcome = run(desktop, file, "-y")
    logs = logs_of(desktop, outcome.run_id)
    assert outcome.code == 0, outcome.stderr + "".join(logs.values())
    found = results("".join(logs[f"worker-{rank}"] for rank in range(ranks)))
    assert found == under_torchrun(script, ranks, tmp_path / "logs")
    assert found


TITAN = ["--module", "llama3", "--config", "llama3_debugmodel", "--training.steps", "4", "--debug.seed", "0"]


def losses(output: str) -> list[tuple[str, str]]:
    """Returns the steps and losses in torchtitan's coloured log."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    return sorted(set(re.findall(r"step: *(\d+).*?loss: *([0-9.]+)", plain)))


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
def test_torchtitan_has_the_losses_that_it_has_under_torchrun(desktop: Desktop, lab: MakeLab, tmp_path: Path) -> None:
    work = tmp_path / "work"
    subprocess.run([str(PYTHON), str(FOREIGN / "titan_assets.py"), str(work)], check=True)
    desktop.use(lab(1))
    arguments = [*TITAN, "--debug.deterministic"]
    file = work / "titan.yaml"
    file.write_text(
        "version: 1\nname: titan\npools:\n  - {name: workers, role: worker, replicas: 1, gpus: 1}\n"
        f"program:\n  module: torchtitan.train\n  args: {json.dumps(arguments)}\n  max_restarts: 0\n"
        f"  python: {PYTHON}\n"
    )
    outcome = run(desktop, file, "-y")
    logs = logs_of(desktop, outcome.run_id)
    assert outcome.code == 0, outcome.stderr + "".join(logs.values())
    expected = output_under_torchrun(["-m", "torchtitan.train", *arguments], 1, tmp_path / "logs", {}, work)
    assert losses(logs["worker-0"]) == losses(expected)
    assert len(losses(expected)) >= 4
