"""Small runs for tests of commands about runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HOSTS = ("gpu-a", "gpu-b", "gpu-c")
TALKING = """\
import os, pathlib, sys, time
name = os.environ["TORCHYARD_REPLICA"]
for number in range(int(sys.argv[2])):
    print(name, "line", number, flush=True)
pathlib.Path(os.environ["TORCHYARD_RUN_DIR"], "model.bin").write_text(name)
time.sleep(float(sys.argv[1]))
print(name, "no newline at the end", end="", flush=True)
"""


def sleeping(folder: Path, *, seconds: float = 600, hosts: Sequence[str] = HOSTS, lines: int = 3) -> Path:
    """Writes a topology with one worker per host. Each worker prints `lines` lines, sleeps, and prints a last line."""
    folder.mkdir()
    (folder / "talk.py").write_text(TALKING)
    file = folder / "talk.yaml"
    pools = "".join(f"  - {{name: on-{host}, role: worker, replicas: 1, hosts: [{host}]}}\n" for host in hosts)
    command = f'[python3, talk.py, "{seconds}", "{lines}"]'
    file.write_text(
        f"version: 1\nname: talk\npools:\n{pools}program: {{launcher: command, command: {command}, stop_grace_s: 1}}\n"
    )
    return file
