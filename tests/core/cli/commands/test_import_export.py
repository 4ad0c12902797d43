"""Tests of `torchyard import`, `export` and `presets`: documents are written to stdout, and remarks to stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.core.cli.command_runner import answer, torchyard
from tests.core.interop import samples
from tests.lab import Desktop
from torchyard_core.topology.file import read_topology, topology_from_text
from torchyard_core.topology.strategies.presets import all_presets

MakeDesktop = Callable[..., Desktop]


@pytest.fixture
def desktop(make_desktop: MakeDesktop) -> Desktop:
    return make_desktop()


def test_import_prints_a_topology_and_says_what_stayed_behind(desktop: Desktop, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(samples.CLOUDML_GPUS, encoding="utf-8")
    done = torchyard(desktop, "import", "cloudml", file)
    topology = topology_from_text(done.stdout).topology
    assert topology is not None
    assert [pool.replicas for pool in topology.pools] == [1, 4, 2, 1]
    assert f"{file}:16: `packageUris` is left out" in done.stderr
    output = answer(desktop, "import", "cloudml", file)
    assert output["topology"] == topology.as_data()
    assert {"message", "line"} == set(output["remarks"][0])


def test_import_and_export_write_files_that_the_other_reads(desktop: Desktop, tmp_path: Path) -> None:
    given, made, back = tmp_path / "job.conf", tmp_path / "made.yaml", tmp_path / "back.conf"
    given.write_text(samples.SINGA, encoding="utf-8")
    assert torchyard(desktop, "import", "singa", given, "-o", made).stdout == ""
    assert read_topology(made).topology is not None
    assert torchyard(desktop, "export", "singa", made, "-o", back).stdout == ""
    assert torchyard(desktop, "export", "singa", made, "-o", "-").stdout == back.read_text(encoding="utf-8")
    again = topology_from_text(torchyard(desktop, "import", "singa", back).stdout).topology
    first = read_topology(made).topology
    assert again is not None
    assert first is not None
    assert again.pools == first.pools


def test_a_document_goes_from_one_command_into_the_next(desktop: Desktop, tmp_path: Path) -> None:
    (tmp_path / "job.conf").write_text(samples.SINGA, encoding="utf-8")
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    line = '"$0" import singa job.conf 2>/dev/null | tee made.yaml | "$0" validate - && "$0" export singa - <made.yaml'
    command = ["bash", "-o", "pipefail", "-c", line, str(Path(sys.executable).parent / "torchyard")]
    done = subprocess.run(
        command, env=desktop.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("stdin: no problems.\ncluster {\n  nworker_groups: 2\n"), done.stdout


def test_each_command_that_takes_a_file_reads_stdin_where_it_is_a_dash(desktop: Desktop, tmp_path: Path) -> None:
    for command in (["validate"], ["plan"], ["run"], ["import", "singa"], ["export", "singa"]):
        assert "stdin: the file is empty." in torchyard(desktop, *command, "-", code=2).stderr
    (tmp_path / "no.yaml").write_text(samples.WHOLE.replace("role: ps", "role: pss"), encoding="utf-8")
    output = torchyard(desktop, "run", "-", code=1, stdin=tmp_path / "no.yaml").stderr
    assert "stdin:5: error wrong-value" in output


def test_a_document_of_another_format_ends_with_2(desktop: Desktop, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(samples.VERTEX, encoding="utf-8")
    done = torchyard(desktop, "import", "cloudml", file, code=2)
    assert done.stdout == ""
    assert "this looks like a Vertex job, not CloudML" in done.stderr
    assert answer(desktop, "import", "cloudml", file, code=2)["error"]["code"] == "bad_document"
    assert "Did you mean `cloudml`?" in torchyard(desktop, "import", "cloud-ml", file, code=2).stderr
    assert "there is no such file" in torchyard(desktop, "import", "cloudml", tmp_path / "no", code=2).stderr


POOL = "{machineSpec: {machineType: n1-standard-4}, containerSpec: {imageUri: i}}"
REDUCER = "{containerSpec: {imageUri: reductionserver}, pythonPackageSpec: {pythonModule: ps.main}}"
REFUSED = [
    ("vertex", "workerPoolSpecs:\n  - replicaCount: 2\n", "2: worker pool 0 has replicaCount 2. Allowed is 1"),
    (
        "vertex",
        "workerPoolSpecs:\n" + f"  - {POOL}\n" * 5,
        "6: these are 5 worker pools. A job has at most four: 0",
    ),
    (
        "vertex",
        f"workerPoolSpecs:\n  - {POOL}\n  - {{}}\n  - {REDUCER}\n",
        "4: the pool runs two things. Allowed is one of `containerSpec` and `pythonPackageSpec`: pool 2 holds "
        "parameter servers or reducers, not both.",
    ),
    (
        "tf-config",
        '{"cluster": {"chief": ["a:1"],\n "master": ["b:1"]}}',
        "2: the cluster has a chief and a master. Allowed is one of the two.",
    ),
    ("tensorflow", '{"worker":\n {10000: "a:1"}}', "2: a sparse index is 10000, beyond every list. Allowed are whole"),
    (
        "singa",
        'name: "x"\nneuralnet { }\n',
        "1: there is no `cluster { … }` in this file. It must hold",
    ),
]


def test_what_a_system_would_refuse_is_refused_with_the_line_and_what_is_allowed(
    desktop: Desktop, tmp_path: Path
) -> None:
    file = tmp_path / "doc"
    for name, text, output in REFUSED:
        file.write_text(text, encoding="utf-8")
        done = torchyard(desktop, "import", name, file, code=2)
        assert done.stdout == ""
        assert f"{file}:{output}" in " ".join(done.stderr.split()), done.stderr


def test_export_takes_its_options(desktop: Desktop, tmp_path: Path) -> None:
    file = tmp_path / "tf.yaml"
    file.write_text(samples.WHOLE, encoding="utf-8")
    done = torchyard(desktop, "export", "kubernetes", file, "--as", "job", "--image", "registry/x:1")
    assert next(iter(yaml.safe_load_all(done.stdout)))["kind"] == "Service"
    config = torchyard(desktop, "export", "tf-config", file, "--replica", "ps-1").stdout
    assert yaml.safe_load(config)["task"] == {"type": "ps", "index": 1}
    more = torchyard(desktop, "export", "slurm", file, "--set", "pools.workers.replicas=9").stdout
    assert "--nodes=8" in more
    assert answer(desktop, "export", "slurm", file)["text"].startswith("#!/bin/bash")
    torchyard(desktop, "export", "slurm", file, "--image", "x", code=2)


def test_export_of_a_topology_with_errors_says_them_and_ends_with_1(desktop: Desktop, tmp_path: Path) -> None:
    file = tmp_path / "tf.yaml"
    file.write_text(samples.WHOLE + "strategy: {kind: reduction_server}\n", encoding="utf-8")
    done = torchyard(desktop, "export", "slurm", file, code=1)
    assert done.stdout == ""
    assert f"{file}:13: error strategy-needs" in done.stderr
    output = answer(desktop, "export", "slurm", file, code=1)
    assert (output["text"], output["problems"][0]["code"]) == (None, "strategy-needs")


def test_presets_are_listed_and_shown_as_topologies(desktop: Desktop) -> None:
    listed = torchyard(desktop, "presets", "list").stdout
    for name in ("all_reduce", "horovod", "STANDARD_1", "complex_model_l_gpu", "32 CPUs, 120 GB, 8 × K80"):
        assert name in listed
    assert {one.key for one in all_presets()} < {one["name"] for one in answer(desktop, "presets", "list")}
    shown = torchyard(desktop, "presets", "show", "premium_1").stdout
    topology = topology_from_text(shown).topology
    assert topology is not None
    assert [pool.replicas for pool in topology.pools] == [1, 19, 11]
    assert answer(desktop, "presets", "show", "premium_1")["topology"] == topology.as_data()
    assert "memory_gb: 52" in torchyard(desktop, "presets", "show", "large_model").stdout
    assert "Did you mean `premium_1`?" in torchyard(desktop, "presets", "show", "premium", code=2).stderr
