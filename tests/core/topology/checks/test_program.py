"""Tests of the checks of a topology's program, and of the files that the program needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.topology.checks.found_problems import SERVERS, WORKERS, problems
from torchyard_core.topology.file import read_topology


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("{}", ["no-program launcher torch needs `script` or `module`"]),
        ("{script: ''}", ["no-program launcher torch needs `script` or `module`"]),
        ("{launcher: command}", ["no-program launcher command needs `command`, like [python, trainer.py]"]),
        ("{script: a.py, module: b}", ["launcher `script` and `module` are both given; keep one"]),
        (
            "{launcher: command, command: [a], script: a.py}",
            ["launcher `script` is for launcher torch; launcher command runs `command`"],
        ),
        (
            "{command: [a]}",
            ["launcher `command` is for launcher command; launcher torch runs `script` or `module`"],
        ),
        (
            "{script: a.py, exclude: ['data/', '!', '[z-a]']}",
            [
                "bad-pattern the pattern `!` cannot be understood; write it as in .gitignore",
                "bad-pattern the pattern `[z-a]` cannot be understood; write it as in .gitignore",
            ],
        ),
        ('{script: a.py, args: ["a\\0b"]}', ["bad-text text for a program cannot hold a NUL character"]),
        (
            "{script: a.py, env: {RANK: '1', TORCHYARD_X: a, NCCL_SOCKET_IFNAME: ib0}}",
            [
                "reserved-variable Torchyard itself sets RANK; remove it here",
                "reserved-variable Torchyard itself sets TORCHYARD_X; remove it here",
            ],
        ),
        (
            "{script: a.py, env: {'A B': x, '': y, 1A: z, 'A=B': w}}",
            [
                f"bad-variable '{name}' cannot name an environment variable: letters, digits and _ only, no digit first"
                for name in ("A B", "", "1A", "A=B")
            ],
        ),
        (
            "{script: a.py, secrets: [MASTER_ADDR, 'my key', KEY], env: {KEY: abc}}",
            [
                "secret-shown the secret KEY is also written here in the open; remove one of the two",
                "reserved-variable Torchyard itself sets MASTER_ADDR; remove it here",
                "bad-variable 'my key' cannot name an environment variable: letters, digits and _ only, no digit first",
            ],
        ),
    ],
)
def test_programs_that_cannot_run(program: str, lines: list[str]) -> None:
    assert problems(WORKERS, program=program) == [f"7: error {line}" for line in lines]


@pytest.mark.parametrize("variable", ["MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TF_CONFIG", "TORCHELASTIC_RUN_ID"])
def test_a_pool_may_not_set_what_torchyard_sets_either(variable: str) -> None:
    [line] = problems(f"{{name: w, role: worker, replicas: 1, env: {{{variable}: x}}}}")
    assert line == f"5: error reserved-variable Torchyard itself sets {variable}; remove it here"


def test_braces_that_are_no_placeholder_are_no_problem() -> None:
    assert problems(WORKERS, program="{script: a.py, args: ['{x}', '{}', '{rank', '{{rank}}']}") == []


# Tests that the program's files exist


def checked(folder: Path, program: str, strategy: str = "") -> list[str]:
    path = folder / "t.yaml"
    pools = f"{WORKERS}, {SERVERS}" if strategy else WORKERS
    text = f"version: 1\nname: x\npools: [{pools}]\nprogram: {program}\n"
    path.write_text(f"{text}strategy: {strategy}\n" if strategy else text)
    return [problem.printed("t").removeprefix("t:") for problem in read_topology(path).check()]


def test_an_existing_script_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    assert checked(tmp_path, "{script: src/train.py}") == []
    assert checked(tmp_path, "{script: train.py, workdir: src}") == []
    assert checked(tmp_path, "{script: /opt/team/train.py}") == []
    assert checked(tmp_path, "{script: anything.py, workdir: null}") == []
    assert checked(tmp_path, "{module: pkg.train}") == []


def test_a_script_that_is_not_there_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    assert checked(tmp_path, "{script: src/trian.py}") == [
        "4: error script-missing the script src/trian.py is not in the working folder; did you mean `src/train.py`?"
    ]
    assert checked(tmp_path, "{script: other/x.py}") == [
        "4: error script-missing the script other/x.py is not in the working folder"
    ]
    assert checked(tmp_path, "{script: src}") == ["4: error script-missing the script src is a folder"]


def test_a_script_that_clips_gradients_cannot_have_backup_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("norm = cluster.clip_gradients(1.0)\n")
    (tmp_path / "other.py").write_text("# cluster.clip_gradients(1.0)\n")
    backups = "{kind: sandblaster, backup_workers: 1}"
    [line] = checked(tmp_path, "{script: train.py}", backups)
    assert "error strategy-clips train.py calls cluster.clip_gradients(), which cannot be used with" in line
    assert checked(tmp_path, "{script: other.py}", backups) == []
    assert checked(tmp_path, "{script: train.py}", "{kind: sandblaster}") == []


def test_a_script_outside_the_working_folder_would_not_be_sent(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "train.py").write_text("")
    [line] = checked(tmp_path, "{script: ../train.py, workdir: src}")
    assert line.endswith("the script ../train.py lies outside the working folder, and would not be sent")


@pytest.mark.parametrize(
    ("workdir", "what"),
    [
        ("nowhere", "nowhere is not there"),
        ("t.yaml", "t.yaml is a file, not a folder"),
        ("~nobody-here/x", "~nobody-here/x is not there"),
        ("x" * 300, "is not there"),
    ],
)
def test_a_working_folder_that_is_none(tmp_path: Path, workdir: str, what: str) -> None:
    [line] = checked(tmp_path, f"{{script: a.py, workdir: {workdir}}}")
    assert line.startswith("4: error workdir-missing the working folder ")
    assert line.endswith(what)


def test_a_missing_notify_program_is_a_warning(tmp_path: Path) -> None:
    [line] = checked(tmp_path, "{module: m, notify: ./tell.sh}")
    assert line == "4: warning notify-missing ./tell.sh is not in the working folder"
    assert checked(tmp_path, "{module: m, notify: mail-me}") == []


def test_checking_never_leaves_the_topology_s_folder_for_a_script_that_is_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    [line] = checked(tmp_path, "{script: pipe.py}")
    assert "script-missing" in line
