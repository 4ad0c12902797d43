"""Tests of the package that is published: its files, and a training run that uses only the package."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.running import DIGITS, REPOSITORY

PACKAGES = {
    "torchyard_core": "core/torchyard_core",
    "torchyard_agent": "agent/torchyard_agent",
    "torchyard_roles": "agent/torchyard_roles",
    "torchyard_gui": "gui/torchyard_gui",
    "torchyard_resources": "resources",
}
BUILT_FROM = ("core", "agent", "gui", "resources", "pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")

Command = Callable[..., subprocess.CompletedProcess[str]]


def built(what: str, source: Path, into: Path) -> Path:
    """Builds an sdist or a wheel from the folder `source`, as pip and `build` do; returns its path."""
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel that is built from the source distribution, as installers build it."""
    folder = tmp_path_factory.mktemp("built")
    for name in BUILT_FROM:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / "tree" / name, ignore=IGNORED)
        else:
            shutil.copy(source, folder / "tree" / name)
    with tarfile.open(built("sdist", folder / "tree", folder)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [source] = (folder / "unpacked").iterdir()
    return built("wheel", source, folder)


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    """The wheel contains exactly those files of the repository that belong to the package, byte for byte."""
    wanted = {}
    for package, folder in PACKAGES.items():
        root = REPOSITORY / folder
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                wanted[f"{package}/{file.relative_to(root).as_posix()}"] = file.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}

    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == []


@pytest.fixture
def torchyard(wheel: Path, tmp_path: Path) -> Iterator[Command]:
    """Yields a function that runs the installed command for a user with an empty home folder.

    Torch and the dependencies are imported from the test's own environment. Torchyard itself is not, because Python
    ignores that environment's .pth link to the repository in a folder that another .pth file adds.
    """
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, timeout=120)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    home = tmp_path / "user"
    home.mkdir()
    fleet = f"version: 1\nhosts:\n  - {{name: this-computer, local: true, agent_dir: {tmp_path / 'agent'}}}\n"
    (tmp_path / "fleet.yaml").write_text(fleet)
    # A variable such as PYTHONPATH could make the repository importable, so none is inherited.
    variables = {
        "HOME": str(home),
        "PATH": f"{environment}/bin:/usr/bin:/bin",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        own = ["--home", tmp_path / "home", "--fleet", tmp_path / "fleet.yaml"]
        command = [environment / "bin" / "torchyard", *own, *arguments]
        return subprocess.run(
            list(map(str, command)), cwd=home, env=variables, capture_output=True, text=True, timeout=150, check=False
        )

    yield run
    gone = run("undeploy", "--yes")
    assert gone.returncode == 0, gone.stdout + gone.stderr


@pytest.mark.train
def test_the_installed_wheel_trains_an_example(torchyard: Command, tmp_path: Path) -> None:
    shutil.copytree(DIGITS, tmp_path / "digits", ignore=IGNORED)
    done = torchyard("run", tmp_path / "digits" / "this-computer.yaml", '--set=program.args=["--epochs", "2"]')

    assert done.returncode == 0, done.stdout + done.stderr
    assert "test accuracy" in done.stdout
    assert "succeeded" in done.stdout
    assert (tmp_path / "agent").is_dir()
    assert (tmp_path / "home").is_dir()
    assert list((tmp_path / "user").iterdir()) == []  # No file was written to the user's home.
