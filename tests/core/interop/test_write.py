"""Tests that exported documents for cluster managers start the processes of the topology.

The tests run the exported scripts; a few lines of shell take the place of the cluster managers' commands.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.runner import get_runner
from torchx.specs import AppState
from torchx.specs.finder import get_component

from tests.core.interop import samples
from torchyard_core.interop.document_writer import ExportOptions
from torchyard_core.interop.format_registry import FORMATS, WRITTEN, read_foreign, write_foreign
from torchyard_core.topology.file import check_topology, topology_from_text
from torchyard_core.topology.model import Topology
from torchyard_core.topology.strategies.presets import all_presets, preset_topology

PRINT = """#!/bin/sh
{{ echo "$0 $*"; echo "TF=$TF_CONFIG"; echo "SPEC=$CLUSTER_SPEC"; echo "MODE=$MODE READY=$READY"; }} > {out}/$$
"""
SCONTROL = """#!/bin/bash
for name in ${3//,/ }; do echo "$name"; done
"""
SRUN = """#!/bin/bash
group=0; [[ $1 == --het-group=* ]] && group=${1#*=}
list=SLURM_JOB_NODELIST_HET_GROUP_$group
nodes=${!list:-$SLURM_JOB_NODELIST}
number=0
trap 'kill $(jobs -p)' TERM
for node in ${nodes//,/ }; do SLURM_PROCID=$number bash -c "${@: -1}" & number=$((number + 1)); done
status=0
for one in $(jobs -p); do
  wait -n; ended=$?
  if ((ended && !status)); then status=$ended; kill $(jobs -p) 2>/dev/null; fi  # --kill-on-bad-exit
done
exit "$status"
"""


def whole() -> Topology:
    topology = topology_from_text(samples.WHOLE).topology
    assert topology is not None
    return topology


@dataclasses.dataclass
class Started:
    """The command line and the environment with which a replica was started."""

    command: str
    tf: Any
    spec: Any
    rest: str


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Creates a folder with commands that record how they are called."""
    (tmp_path / "out").mkdir()
    for name in ("python", "torchrun"):
        _program(tmp_path / name, PRINT.format(out=tmp_path / "out"))
    _program(tmp_path / "scontrol", SCONTROL)
    _program(tmp_path / "srun", SRUN)
    return tmp_path


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def run(place: Path, command: list[str], **env: str) -> list[Started]:
    """Runs a command; returns the started replicas, sorted by command line."""
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, env={"PATH": path, **env}, cwd=place, check=True, timeout=20)
    found = []
    for file in (place / "out").iterdir():
        command_line, tf, spec, rest = file.read_text(encoding="utf-8").splitlines()
        tf_config, cluster_spec = tf.removeprefix("TF="), spec.removeprefix("SPEC=")
        found.append(
            Started(
                command_line.replace(f"{place}/", ""),
                json.loads(tf_config) if tf_config else None,
                json.loads(cluster_spec),
                rest,
            )
        )
        file.unlink()
    return sorted(found, key=lambda one: one.command)


def expanded(text: str, **env: str) -> str:
    """Expands variables as the kubelet does before it runs a container's command."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[1] else env.get(match[2], match[0])

    return re.sub(r"\$(?:(\$)|\(([^()]*)\))", one, text)


def test_a_slurm_script_starts_each_replica_with_its_own_task(place: Path) -> None:
    script = place / "job.sbatch"
    script.write_text(write_foreign("slurm", whole()).text, encoding="utf-8")
    groups = {"0": "a", "1": "b,c", "2": "d,e", "3": "f"}
    env = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": nodes for number, nodes in groups.items()}
    started = run(place, ["bash", str(script)], SLURM_JOB_NODELIST="a", **env)
    lists = "--ps=d:2224,e:2224 --workers=a:2222,b:2223,c:2223"
    chief = next(one for one in started if one.tf["task"]["type"] == "chief")
    assert chief.command == f"python it's.py {lists} --job=worker --task=0"
    assert chief.rest == "MODE=a b READY=1"
    cluster = {"chief": ["a:2222"], "worker": ["b:2223", "c:2223"], "ps": ["d:2224", "e:2224"]}
    tasks = {(one.tf["task"]["type"], one.tf["task"]["index"]) for one in started}
    # The run ends with the chief, so servers and evaluators may be stopped before they start.
    assert tasks <= {("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("evaluator", 0)}
    assert all(one.tf["cluster"] == cluster for one in started)
    assert all(one.spec["cluster"]["workerpool2"] == ["d:2224", "e:2224"] for one in started)


def test_a_slurm_script_ends_with_the_first_trainer_that_fails(place: Path) -> None:
    text = samples.WHOLE.replace("  command:", "  ends_with: trainers\n  command:")
    topology = topology_from_text(text).topology
    assert topology is not None
    script = place / "job.sbatch"
    script.write_text(write_foreign("slurm", topology).text, encoding="utf-8")
    _program(place / "python", "#!/bin/sh\ncase $* in *job=worker*task=2) exit 3 ;; esac\nexec sleep 60\n")
    groups = {"0": "a", "1": "b,c", "2": "d,e", "3": "f"}
    env = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": nodes for number, nodes in groups.items()}
    env |= {"SLURM_JOB_NODELIST": "a", "PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    assert subprocess.run(["bash", str(script)], env=env, cwd=place, check=False, timeout=20).returncode == 3


def test_a_slurm_script_runs_torchrun_on_every_trainer(place: Path) -> None:
    topology = preset_topology("multi_worker_mirrored")
    text = write_foreign("slurm", topology).text
    assert text.count("#SBATCH hetjob") == 1
    assert "--nodes=3 --ntasks-per-node=1 --gpus-per-node=1" in text
    script = place / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    env = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a", "SLURM_JOB_NODELIST_HET_GROUP_1": "b,c,d"}
    started = run(place, ["bash", str(script)], SLURM_JOB_NODELIST="a", **env)
    assert [one.command for one in started] == [
        f"torchrun --nnodes=4 --node-rank={rank} --nproc-per-node=1 --master-addr=a --master-port=29400 train.py"
        for rank in range(4)
    ]


@pytest.mark.parametrize("form", ["jobset", "job"])
def test_kubernetes_pods_find_each_other_by_name(place: Path, form: str) -> None:
    documents = list(yaml.safe_load_all(write_foreign("kubernetes", whole(), ExportOptions(form, "registry/x:1")).text))
    if form == "job":
        service, *jobs = documents
        assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
        specs = [job["spec"] for job in jobs]
        labels = [spec["template"]["metadata"]["labels"] for spec in specs]
        assert all(one == service["spec"]["selector"] for one in labels)
        assert {spec["template"]["spec"]["subdomain"] for spec in specs} == {service["metadata"]["name"]}
        middle = ""
    else:
        [jobset] = documents
        assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
        specs = [one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]]
        middle = "0-"
    assert [spec["completions"] for spec in specs] == [1, 2, 2, 1]
    assert {spec["completionMode"] for spec in specs} == {"Indexed"}
    container = specs[1]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry/x:1"
    assert container["resources"] == {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": 2}}
    assert container["env"][1]["valueFrom"]["secretKeyRef"] == {"name": "tf-job", "key": "TOKEN"}
    shell, option, script = container["command"]
    [started] = run(place, [shell, option, expanded(script)], JOB_COMPLETION_INDEX="1", MODE="a b")
    ps = ",".join(f"tf-job-servers-{middle}{index}.tf-job:2222" for index in range(2))
    workers = [
        f"tf-job-{name}.tf-job:2222" for name in (f"chief-{middle}0", f"workers-{middle}0", f"workers-{middle}1")
    ]
    assert started.command == f"python it's.py --ps={ps} --workers={','.join(workers)} --job=worker --task=2"
    assert started.tf["task"] == {"type": "worker", "index": 1}
    assert started.tf["cluster"]["chief"] == workers[:1]
    assert "evaluator" not in started.tf["cluster"]
    assert started.spec["task"] == {"type": "workerpool1", "index": 1}


def test_torchx_starts_each_replica_of_the_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = write_foreign("torchx", preset_topology("parameter_server"), ExportOptions(image="registry/x:1"))
    (place / "job.py").write_text(exported.text, encoding="utf-8")
    monkeypatch.chdir(place)
    app = get_component("job.py:parameter_server").fn()
    with get_runner() as runner:
        handle = runner.run_component("job.py:parameter_server", [], "local_cwd", {"log_dir": str(place)})
        ended = runner.wait(handle, wait_interval=0.05)
    assert ended is not None
    assert ended.state is AppState.SUCCEEDED
    image = "registry/x:1"
    assert {role.name: (role.image, role.num_replicas, role.resource.gpu) for role in app.roles} == {
        "trainers": (image, 4, 1),
        "servers": (image, 2, 0),
        "eval": (image, 1, 0),
    }
    started = [file.read_text(encoding="utf-8").splitlines()[0] for file in (place / "out").iterdir()]
    started = [line.replace(f"{place}/", "") for line in started]
    torchrun = f"torchrun --rdzv_backend=c10d --rdzv_id={handle.rpartition('/')[2]} --nnodes=4 --nproc_per_node=1"
    assert sorted(started) == 3 * ["python train.py"] + 4 * [f"{torchrun} --rdzv_endpoint=localhost:29500 train.py"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("key", [preset.key for preset in all_presets()])
def test_every_preset_can_be_written_in_every_format_or_is_refused_with_a_sentence(name: str, key: str) -> None:
    topology = preset_topology(key)
    if name == "tf-config" and sum(pool.replicas for pool in topology.pools) == 1:
        with pytest.raises(Exception, match="a single replica gets none"):
            write_foreign(name, topology)
        return
    for form in FORMATS[name].forms or (None,):
        if (name, form) == ("tensorflow", "sparse") and not any(pool.role == "worker" for pool in topology.pools):
            continue
        text = write_foreign(name, topology, ExportOptions(form)).text
        assert text.strip()
        if FORMATS[name].read is not None:
            again = read_foreign(name, text, "f").topology
            assert [problem for problem in check_topology(again) if problem.severity == "error"] == []
        if name == "slurm":
            subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


def test_a_machine_types_sizes_are_asked_of_a_cluster_manager() -> None:
    text = samples.WHOLE.replace("memory_gb: 16", "machine: large_model, memory_gb: 16")
    topology = topology_from_text(text).topology
    assert topology is not None
    assert "--nodes=2 --ntasks-per-node=1 --cpus-per-task=8 --mem=16000M" in write_foreign("slurm", topology).text
    assert "cpu: '8'" in write_foreign("kubernetes", topology).text.replace('"', "'")


def test_omitted_keys_have_remarks() -> None:
    text = samples.WHOLE + "pins: {worker-0: gpu-a}\nstrategy: {kind: downpour}\n"
    topology = topology_from_text(text).topology
    assert topology is not None
    remarks = " ".join(remark.message for remark in write_foreign("torchx", topology).remarks)
    for word in ("strategy downpour", "pins are not carried over (worker-0)", "setup", "secrets", "gpu_model"):
        assert word in remarks


@pytest.mark.parametrize(("pin", "is_remarked"), [("gpu-a", False), ("gpu-a:0", True)])
def test_of_pins_addresses_carry_the_host(pin: str, is_remarked: bool) -> None:
    topology = topology_from_text(samples.WHOLE + f"pins: {{worker-0: {pin!r}}}\n").topology
    assert topology is not None
    exported = write_foreign("tensorflow", topology)
    assert "gpu-a:2222" in exported.text
    assert [remark.message for remark in exported.remarks if "pins" in remark.message] == [
        "of pins the hosts are carried over, not their GPUs (worker-0)."
    ] * is_remarked
