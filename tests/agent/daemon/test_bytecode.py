"""Tests that a bytecode file in an archive is either complete or absent, even if the disk is full."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

from torchyard_agent.daemon import bytecode as compiling


def test_every_module_has_bytecode_afterwards(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name in ("one.py", "package/two.py"):
        (tmp_path / name).write_text("value = 1\n")
    (tmp_path / "broken.py").write_text("value = (\n")

    subprocess.run([sys.executable, "-I", "-S", compiling.__file__, str(tmp_path)], check=True)

    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("__pycache__/*"))
    tag = sys.implementation.cache_tag
    assert made == [f"__pycache__/one.{tag}.pyc", f"package/__pycache__/two.{tag}.pyc"]


def test_a_truncated_bytecode_file_is_replaced(tmp_path: Path) -> None:
    source = tmp_path / "one.py"
    source.write_text("value = 'as long as it needs to be'\n")
    compiling.compile_one(str(source))
    bytecode = Path(cache_from_source(str(source)))
    whole = bytecode.read_bytes()
    bytecode.write_bytes(whole[:-10])

    compiling.compile_one(str(source))

    assert bytecode.read_bytes() == whole
    assert [path.name for path in bytecode.parent.iterdir()] == [bytecode.name]
