"""Tests that exported documents stay within the other systems' limits on names, escapes and machine types."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from tests.core.interop import samples
from tests.core.interop.test_write import expanded
from torchyard_core.interop.document_writer import Exported, ExportOptions
from torchyard_core.interop.format_registry import write_foreign
from torchyard_core.topology.file import topology_from_text

LONG = "a-very-long-name-of-a-design-that-goes-on-and-on"
DESIGN = f"""\
version: 1
name: {LONG}
pools:
  - {{name: chief, role: chief, replicas: 1, gpus: 1}}
  - {{name: {LONG}, role: worker, replicas: 1000, gpus: 4, gpu_model: A100, cpus: 5.5, env: {{ANSWER: "y"}}}}
program:
  launcher: command
  command: [python, t.py, "--rank={{rank}}", "--task={{task_index}}"]
  args: ["$(ANSWER)", "$$"]
"""


def written(name: str, form: str | None = None, text: str = DESIGN) -> Exported:
    topology = topology_from_text(text).topology
    assert topology is not None
    return write_foreign(name, topology, ExportOptions(form))


def remarks(exported: Exported) -> str:
    return "\n".join(one.message for one in exported.remarks)


@pytest.mark.parametrize("form", ["jobset", "job"])
def test_pods_of_kubernetes_have_names_that_it_takes(form: str) -> None:
    documents = list(yaml.safe_load_all(written("kubernetes", form).text))
    if form == "jobset":
        name = documents[0]["metadata"]["name"]
        pods = [f"{name}-{one['name']}-0-999-abcde" for one in documents[0]["spec"]["replicatedJobs"]]
    else:
        pods = [f"{one['metadata']['name']}-999-abcde" for one in documents[1:]]
    assert len(pods) == 2
    assert all(len(pod) <= 63 and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", pod) for pod in pods)


@pytest.mark.parametrize("version", ["1.25", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("text", [DESIGN, samples.WHOLE], ids=["design", "whole"])
def test_kubernetes_own_schemas_know_each_key_that_is_written(text: str, version: str) -> None:
    documents = list(yaml.safe_load_all(written("kubernetes", "job", text).text))
    [jobset] = yaml.safe_load_all(written("kubernetes", "jobset", text).text)
    parts = jobset["spec"]["replicatedJobs"]
    metadata = {"name": jobset["metadata"]["name"]}
    documents += [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **one["template"]} for one in parts]
    assert len(documents) == 1 + 2 * len(parts)
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    # JobSet has no published schema. These are the keys of version v1alpha2.
    assert jobset["spec"].keys() == {"network", "successPolicy", "failurePolicy", "replicatedJobs"}
    assert jobset["spec"]["network"].keys() == {"enableDNSHostnames", "subdomain"}
    assert {"operator": "All"}.items() <= jobset["spec"]["successPolicy"].items()
    assert set(jobset["spec"]["successPolicy"]["targetReplicatedJobs"]) <= {one["name"] for one in parts}
    assert all(one.keys() == {"name", "replicas", "template"} for one in parts)


def test_what_the_kubelet_would_expand_reaches_the_shell_as_it_is() -> None:
    text = written("kubernetes").text
    assert "value: 'y'" in text, "it is true to kubectl"
    [jobset] = yaml.safe_load_all(text)
    worker = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]
    there = expanded(worker["command"][2], ANSWER="y")
    assert "'$(ANSWER)' '$$'" in there
    assert "$((REPLICA + 0))" in there
    assert len(worker["command"][2]) < 100_000, "more than Linux takes as one argument"


def test_a_plain_job_has_a_remark_on_missing_restarts() -> None:
    assert "max_restarts" in remarks(written("kubernetes", "job"))
    assert "max_restarts" not in remarks(written("kubernetes", "jobset"))


def test_srun_repeats_the_options_of_its_component() -> None:
    text = written("slurm").text
    asked = "--nodes=1000 --ntasks-per-node=1 --cpus-per-task=6 --gpus-per-node=a100:4"
    assert f"#SBATCH {asked}\n" in text
    assert f"srun --het-group=1 {asked} --kill-on-bad-exit=1 bash -c" in text


@pytest.mark.parametrize("name", ["vertex", "cloudml"])
def test_gpus_that_are_built_in_come_with_their_machine(name: str) -> None:
    exported = written(name)
    assert "a2-highgpu-4g" in exported.text
    assert "a2-highgpu-4g was chosen" in remarks(exported)


@pytest.mark.parametrize(
    ("name", "form", "unfilled"),
    [
        ("cloudml", None, "{task_index}, {rank}"),
        ("vertex", "flags", "{task_index}, {rank}"),
        ("tensorflow", "commands", "{rank}"),
        ("torchx", None, "{rank}"),
        ("slurm", None, None),
        ("kubernetes", None, None),
    ],
)
def test_placeholders_that_are_not_filled_in_get_a_remark(name: str, form: str | None, unfilled: str | None) -> None:
    there = remarks(written(name, form))
    assert (f"not filled in there: {unfilled}." in there) is (unfilled is not None)
    assert ("not filled in" in there) is (unfilled is not None)


def test_a_torchx_file_parses_whatever_the_topology_is_called() -> None:
    for called in ("class", 'a"""b', "x\\"):
        text = DESIGN.replace(f"name: {LONG}\npools", f"name: '{called}'\npools")
        compile(written("torchx", text=text).text, "component.py", "exec")
