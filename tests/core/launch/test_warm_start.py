"""Tests of selecting the programs for which interpreters import torch early."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from torchyard_core.launch.warm_start import IMPORTS, early_imports, imports_package
from torchyard_core.topology.model import Launcher, Program


def imports(
    folder: Path, source: str = "", modules: dict[str, str] | None = None, program: Program | None = None
) -> tuple[str, ...]:
    """Returns the modules that are imported early for a script with the given source code. `modules` contains the
    source code of further modules by path.
    """
    for name, text in {"train": source, **(modules or {})}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(dedent(text))
    return early_imports(program or Program(script="train.py"), folder)


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.nn as nn",
        "from torch import nn",
        "def main():\n    import torch",
        "import torchyard_roles as ty",
        "from torchvision import datasets",
        "import os\nimport torch\nos.environ['MASTER_PORT'] = '1'\nos.environ.setdefault('WANDB_MODE', 'offline')",
        "import sys, torch\nsys.path.append('..')\nprint(sys.path[0])",
        "import os, torch\nprint(os.environ['OMP_NUM_THREADS'], os.environ.get('TORCH_LOGS'))",
        "import os, torch\nos.path.join('a').path.insert(1)",
        "import torch\nclass A:\n    def f(self):\n        self.path = 1",
    ],
)
def test_a_script_that_imports_torch(tmp_path: Path, source: str) -> None:
    assert imports(tmp_path, source) == IMPORTS


@pytest.mark.parametrize(
    "source",
    [
        "import numpy",
        "",
        "# import torch",
        "import torchlike",
        "from . import torch",
        "import torch\nx = (",
        "import os, torch\nos.environ['OMP_NUM_THREADS'] = '4'",
        "import os\nos.environ.setdefault('KMP_AFFINITY', 'x')\nimport torch",
        "from os import environ\nenviron['TORCH_LOGS'] = '+dynamo'\nimport torch",
        "import os, torch\nfor name in 'AB':\n    os.environ[name] = '1'",
        "import os, torch\nos.environ.update(MKL_NUM_THREADS='1')",
        "import os, torch\nos.environ.update({'A': '1', 'PYTORCH_CUDA_ALLOC_CONF': 'x'})",
        "import os, torch\nos.environ.update(load())",
        "import os, torch\nos.putenv('LD_PRELOAD', 'x')",
        "import os, torch\ndel os.environ['OMP_NUM_THREADS']",
        "import sys\nsys.path.insert(0, '/opt/torch')\nimport torch",
        "import sys\nsys.path[:0] = ['/opt/torch']\nimport torch",
        "import sys\nsys.path = []\nimport torch",
        "import sys\nsys.setdlopenflags(2)\nimport torch",
    ],
)
def test_a_script_that_does_not_or_must_come_first(tmp_path: Path, source: str) -> None:
    assert imports(tmp_path, source) == ()


def test_modules_of_its_own_count_as_far_as_they_are_imported(tmp_path: Path) -> None:
    net = {"models/__init__": "", "models/net": "import torch"}
    assert imports(tmp_path / "a", "import models.net", {"models/net": "import torch"}) == IMPORTS
    assert imports(tmp_path / "b", "from models import net", net) == IMPORTS
    inside = {"models/__init__": "from . import net", "models/net": "from .deep.parts import layer"}
    assert imports(tmp_path / "c", "import models", {**inside, "models/deep/parts": "import torch"}) == IMPORTS
    assert imports(tmp_path / "d", "import models", net) == ()
    settings = {"settings": "import os\nos.environ['OMP_NUM_THREADS'] = '1'"}
    assert imports(tmp_path / "e", "import torch\nimport settings", settings) == ()
    assert imports(tmp_path / "f", "import numpy", net) == ()


def test_modules_and_relative_pythonpaths_are_followed(tmp_path: Path) -> None:
    module, package = Program(module="pkg.train"), Program(module="pkg")
    assert imports(tmp_path / "a", "", {"pkg/__init__": "", "pkg/train": "import torch"}, module) == IMPORTS
    assert imports(tmp_path / "b", "", {"pkg/__main__": "import torch"}, package) == IMPORTS
    assert imports(tmp_path / "c", "", {}, Program(module="torch.distributed.run")) == ()
    lib = {"src/lib": "import torch"}
    assert imports(tmp_path / "d", "import lib", lib) == ()
    within = Program(script="train.py", env={"PYTHONPATH": "src"})
    assert imports(tmp_path / "e", "import lib", lib, within) == IMPORTS
    below = {"inner/run": "import lib", "inner/lib": "import torch"}
    assert imports(tmp_path / "f", "", below, Program(script="inner/run.py")) == IMPORTS


def test_what_cannot_be_known_here_is_not_guessed(tmp_path: Path) -> None:
    """`setup` may activate another interpreter, and a script with an absolute path exists only on the hosts. In both
    cases, nothing is imported early.
    """
    (tmp_path / "train.py").write_text("import torch")
    assert early_imports(Program(script="train.py", setup=("source env",)), tmp_path) == ()
    assert early_imports(Program(script="/opt/train.py"), tmp_path) == ()
    assert early_imports(Program(script="missing.py"), tmp_path) == ()
    assert early_imports(Program(launcher=Launcher.COMMAND, command=("python", "train.py")), tmp_path) == ()
    assert early_imports(Program(script="train.py"), None) == ()


def test_a_program_too_large_to_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard_core.launch.warm_start.MOST_FILES", 2)
    assert imports(tmp_path, "import torch, a", {"a": "import b", "b": ""}) == ()


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    assert imports(tmp_path, "import torch, b", {"b": "import c", "c": "import b"}) == IMPORTS


@pytest.mark.parametrize(
    ("source", "modules", "expected"),
    [
        ("import torchyard_roles as ty", {}, True),
        ("from torchyard_roles import join", {}, True),
        ("import os, trainer\nos.environ['OMP_NUM_THREADS'] = '1'", {"trainer": "import torchyard_roles"}, True),
        ("import torch\nfrom torch.nn.parallel import DistributedDataParallel", {}, False),
        ("import trainer", {"trainer": "import torch"}, False),
        ("import torch\nx = (", {}, None),
    ],
)
def test_whether_a_program_joins_the_run(
    tmp_path: Path, source: str, modules: dict[str, str], expected: bool | None
) -> None:
    imports(tmp_path, source, modules)
    assert imports_package(Program(script="train.py"), tmp_path, "torchyard_roles") is expected


def test_what_a_program_outside_of_the_working_folder_imports_is_not_known(tmp_path: Path) -> None:
    elsewhere = [
        Program(script="/opt/train.py"),
        Program(script="missing.py"),
        Program(module="accelerate.commands.launch"),
        Program(launcher=Launcher.COMMAND, command=("python", "train.py")),
    ]
    assert [imports_package(each, tmp_path, "torchyard_roles") for each in elsewhere] == [None] * 4
    assert imports_package(Program(script="train.py"), None, "torchyard_roles") is None
