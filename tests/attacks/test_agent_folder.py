"""Tests that code planted in the agent's folder by other users of a host is never run."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.end_to_end.running import log_of, run, topology
from tests.lab import Desktop, Lab, LabHost
from torchyard_core.fleet.agent_archive import build_archive

pytestmark = pytest.mark.lab


def accessible_to_others(folder: Path) -> list[str]:
    """Returns the paths in the folder that other users may access, with their modes. Links are ignored."""
    found = [folder, *folder.rglob("*")]
    return [
        f"{path} {stat.filemode(path.lstat().st_mode)}"
        for path in found
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    ]


def agent_folder(host: LabHost) -> Path:
    return host.home / ".torchyard"


@pytest.mark.usefixtures("bare_hosts")
def test_the_folder_is_private_under_any_umask_and_programs_keep_theirs(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    host = lab3["gpu-b"]
    (host.home / ".bashrc").write_text("umask 002\n")
    text = """\
        pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]
        program: {launcher: command, command: [sh, -c, "umask; echo x > mine"]}
    """
    done = run(desktop, topology(tmp_path / "program", text))

    assert done.code == 0, done.stderr
    assert log_of(desktop, done.run_id, "worker-0") == "0002\n"
    folder = agent_folder(host)
    work = folder / "hosts" / "gpu-b" / "runs" / done.run_id / "work"
    assert (work / "mine").stat().st_mode & 0o777 == 0o664
    assert [line for line in accessible_to_others(folder) if not line.startswith(str(work))] == []


def test_a_folder_that_others_may_write_is_refused(desktop: Desktop, lab3: Lab) -> None:
    folder = agent_folder(lab3["gpu-b"])
    for path in (folder, folder / "store"):
        before = path.stat().st_mode
        path.chmod(0o775)
        try:
            refused = desktop.torchyard("hosts", "check", "gpu-b")
        finally:
            path.chmod(before)
        assert refused.returncode != 0
        assert "where other users could plant code: other users may write to" in refused.stdout + refused.stderr
    assert desktop.torchyard("hosts", "check", "gpu-b").returncode == 0


def test_planted_sources_of_the_right_size_do_not_run(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-b"]
    place = agent_folder(host) / "store" / build_archive().sha256
    victim = place / "torchyard_agent" / "__init__.py"
    source = victim.read_text()
    planted = "raise SystemExit(9) # "
    victim.unlink()  # Removed rather than overwritten, because other tests share its content.
    victim.write_text(planted + source[len(planted) :])
    (place / "zlib.so").write_text("")

    assert desktop.torchyard("hosts", "check", "gpu-b").returncode == 0

    assert victim.read_text() == source
    assert not (place / "zlib.so").exists()
