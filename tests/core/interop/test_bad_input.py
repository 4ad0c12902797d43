"""Tests of errors in documents: each message names the line and the allowed values.

A document of another format is recognized as such.
"""

from __future__ import annotations

import contextlib
import re

import pytest

from tests.core.interop import samples
from torchyard_core.errors import FileProblem, TorchyardError, UsageError
from torchyard_core.interop.document_writer import ExportOptions
from torchyard_core.interop.format_detection import detect_format
from torchyard_core.interop.format_registry import FORMATS, READ, read_foreign, write_foreign
from torchyard_core.topology.file import topology_from_text

POOL = "{machineSpec: {machineType: n1-standard-4}, containerSpec: {imageUri: i}}"
REDUCER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
BAD = [
    ("accelerate", "distributed_type: XLA\n", 1, "is XLA", "MULTI_GPU, FSDP"),
    ("accelerate", "compute_environment: AMAZON_SAGEMAKER\n", 1, "AMAZON_SAGEMAKER", "LOCAL_MACHINE"),
    (
        "accelerate",
        "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 5\n",
        3,
        "`num_processes` is 5, which is no multiple of `num_machines`, 2",
        "multiples of 2",
    ),
    ("accelerate", "distributed_type: MULTI_GPU\nmixed_precision: fp8\n", 2, "is fp8", "no, fp16, bf16"),
    (
        "accelerate",
        "distributed_type: NO\nnum_processes: 2\n",
        2,
        "`num_processes` is 2, but the type NO is not distributed",
        "there is one",
    ),
    ("accelerate", "distributed_type: MULTI_GPU\nuse_cpu: maybe\n", 2, "`use_cpu` is maybe", "true and false"),
    (
        "accelerate",
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sync_module_states: false\n",
        2,
        "needs `fsdp_sync_module_states`",
        "both, or neither",
    ),
    (
        "accelerate",
        "distributed_type: MULTI_GPU\nparallelism_config: {parallelism_config_tp_size: 2}\n",
        2,
        "`parallelism_config` has no equivalent",
        "MULTI_GPU",
    ),
    ("deepspeed", "a slots=2\nb slots=2\na slots=2\n", 3, "a is given twice, first in line 1", "keep one"),
    ("deepspeed", "a slots=2\nb\n", 2, "`b` is no host with its slots", "`HOST slots=NUMBER`"),
    ("deepspeed", "a slots=0\n", 1, "the slots of a are 0", "from 1 to"),
    ("cloudml", "trainingInput: {scaleTier: PREMIUM}", 1, "no scale tier PREMIUM", "PREMIUM_1"),
    (
        "cloudml",
        "trainingInput:\n  scaleTier: CUSTOM\n  masterType: complex_model_x\n",
        3,
        "complex_model_x",
        "standard",
    ),
    ("cloudml", "trainingInput:\n  scaleTier: CUSTOM\n", 2, "needs a `masterType`", "n1-standard-4"),
    ("cloudml", "trainingInput:\n  scaleTier: BASIC\n  workerCount: 3\n", 3, "BASIC has its own", ""),
    ("cloudml", "trainingInput:\n  scaleTier: CUSTOM\n  masterType: standard\n  workerCount: -1\n", 4, "-1", "from 0"),
    ("vertex", "workerPoolSpecs:\n  - replicaCount: 2\n", 2, "replicaCount 2", "Allowed is 1"),
    ("vertex", "workerPoolSpecs:\n  - {}\n", 2, "pool 0 is empty", "1 workers"),
    (
        "vertex",
        "workerPoolSpecs:\n" + f"  - {POOL}\n" * 5,
        6,
        "5 worker pools",
        "at most four: 0 the primary, 1 workers, 2 parameter servers or reducers, 3 evaluators",
    ),
    (
        "vertex",
        f"workerPoolSpecs:\n  - {POOL}\n  - {{}}\n  - containerSpec: {{imageUri: '{REDUCER}'}}\n"
        "    pythonPackageSpec: {pythonModule: ps.main}\n",
        5,
        "runs two things",
        "parameter servers or reducers, not both",
    ),
    ("vertex", samples.VERTEX_FLAGS.replace("replica-count=1,", "replica-count=3,"), 4, "replicaCount 3", "is 1"),
    ("vertex", samples.VERTEX_FLAGS.replace("replica-count=4", "replica-cout=4"), 5, "`replica-cout`", "replica-count"),
    ("vertex", samples.VERTEX_PYTHON.replace('"replica_count": 1', '"replica_count": 2'), 15, "replicaCount 2", "is 1"),
    (
        "vertex",
        samples.VERTEX_PYTHON.replace('count": 3', 'count": workers'),
        20,
        "`workers` is computed by",
        "value",
    ),
    ("vertex", samples.VERTEX_PYTHON.replace("    ]\n", "    ] * 2\n"), 12, "what stands here is computed", "value"),
    ("vertex", samples.VERTEX_PYTHON.replace('n1-standard-8",', "n1-standard-8,"), 5, "cannot be read", "statements"),
    (
        "vertex",
        "worker_pool_specs = [\n  {'replica_count': 1,\n   'replica_count': 1}]",
        3,
        "twice, first in line 2",
        "",
    ),
    ("cluster-spec", '{"cluster": {"workerpool1": ["h:1"]}}', 1, "workerpool0", "one address"),
    (
        "cluster-spec",
        '{"cluster": {\n"workerpool0": ["h:1"],\n"workerpool7": ["h:1"]}}',
        3,
        "`workerpool7`",
        "workerpool3",
    ),
    ("tf-config", '{"cluster": {"chief": ["a:1"],\n "master": ["b:1"]}}', 2, "a chief and a master", "one of the two"),
    ("tf-config", '{"cluster": {"chief": ["a:1"],\n "evaluator": ["b:1"]}}', 2, "evaluator", "outside the cluster"),
    (
        "tf-config",
        '{"cluster": {"worker": ["a:1", "b:1"]},\n "task": {"type": "worker",\n "index": 2}}',
        3,
        "index is 2, beyond the list of `worker`",
        "0 to 1",
    ),
    ("tf-config", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "wroker"}}', 1, "`wroker`", "`worker`"),
    ("tf-config", '{"cluster": {"worker":\n ["a"]}}', 2, "is at 'a'", "host:port"),
    ("tensorflow", '{"worker":\n {10000: "a:1"}}', 2, "index is 10000, beyond every list", "0 to 9999"),
    ("tensorflow", '{"worker": {"x": "a:1"}}', 1, "index is x", "whole numbers"),
    ("tensorflow", '{"chief": ["a:1"],\n"master": ["b:1"]}', 2, "a chief and a master", "one of the two"),
    (
        "tensorflow",
        samples.TF_COMMANDS.replace("--job_name=worker --task_index=1", "--job_name=worker --task_index=2"),
        17,
        "'2', beyond the list of `worker`",
        "0 to 1",
    ),
    ("tensorflow", samples.TF_COMMANDS.replace("=ps --task_index=1", "=ps --task_index=0"), 7, "twice", ""),
    ("tensorflow", samples.TF_COMMANDS.replace("ps1.example.com", "ps9.example.com", 1), 7, "--ps_hosts", "same"),
    ("tensorflow", "python t.py --ps_hosts='a:1", 1, "cannot be read", "quotes"),
    ("tensorflow", samples.TF_OVER_SSH.replace("task_index=1", "task_index=2"), 8, "'2', beyond the list", "0 to 1"),
    (
        "tensorflow",
        samples.TF_OVER_SSH.replace("ps0.example.com:2222", "$PS:$P"),
        2,
        "--ps_hosts is '$PS:$P'",
        "a command for each task",
    ),
    ("singa", 'name: "x"\ntrain_steps: 3\nneuralnet { }\n', 1, "there is no `cluster { … }`", "nworker_groups"),
    ("singa", "train_steps: 3\nnworker_groups: 2\n", 2, "outside of `cluster`", "nworkers_per_group"),
    ("singa", "cluster {\n nworker_group: 2\n}", 2, "`nworker_group`", "nworker_groups"),
    ("singa", "cluster {\n nworker_groups: none\n}", 2, "is none", "from 1"),
    ("singa", "cluster {\n nworker_groups: 2\n", 1, "not closed", "}"),
    ("singa", "cluster {\n server_worker_separate: maybe\n}", 2, "maybe", "true and false"),
    ("singa", "cluster {\n nworker_groups: 2\n nworker_groups: 3\n}", 3, "twice, first in line 2", "Keep one"),
    ("singa", "cluster { }\nx: 1\ncluster { }", 3, "`cluster` is given twice, first in line 1", "one cluster"),
    ("singa", "layer { dim: [1, 2 }\n", 1, "the `[` that begins here is not closed", "Close it"),
    ("singa", "cluster: [{\n nworker_groups: 2 >]", 2, "`>` does not close the `{` that begins in line 1", "`}`"),
    ("singa", "cluster: [{ },\n { }]", 1, "`cluster` is given twice", "one cluster"),
    ("singa", 'cluster <\n nworker_groups: "2" >', 2, "is the text '2'", "from 1"),
    ("singa", "cluster {\n nworker_groups: 08 }", 2, "is 08", "from 1"),
    ("cloudml", "trainingInput:\n  scaleTier: BASIC\n  scaleTier: CUSTOM\n", 3, "twice, first in line 2", "Keep one"),
    ("cloudml", "trainingInput:\n  scaleTier: BASIC_TPU\n", 2, "BASIC_TPU is on a TPU", "BASIC_GPU"),
    ("cloudml", "scaleTier: CUSTOM\nmasterType: cloud_tpu\n", 2, "cloud_tpu is a TPU", "standard_v100"),
    (
        "vertex",
        f"workerPoolSpecs:\n  - {POOL}\n  - {POOL[:-1]},\n     replicaCount: 1, replicaCount: 2}}",
        4,
        "twice",
        "",
    ),
    ("tf-config", '{"cluster": {"worker": ["a:1"],\n "worker": ["b:1"]}}', 2, "twice, first in line 1", "Keep one"),
    ("tensorflow", '{"worker": {1: "a:1",\n "01": "b:1"}}', 2, "task 1 of `worker` is given twice", "one address"),
]


@pytest.mark.parametrize(("name", "text", "line", "message", "hint"), BAD)
def test_an_error_has_its_line_and_the_allowed_values(name: str, text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(FileProblem) as caught:
        read_foreign(name, text, "doc")
    assert caught.value.message.startswith(f"doc:{line}: "), caught.value.sentence()
    assert message in caught.value.message
    assert hint in caught.value.sentence()


OF_EACH = {
    "cloudml": samples.CLOUDML_CUSTOM,
    "vertex": samples.VERTEX,
    "cluster-spec": samples.CLUSTER_SPEC,
    "tf-config": samples.TF_CONFIG.removeprefix("TF_CONFIG='").rstrip("'\n"),
    "tensorflow": samples.TF_COMMANDS,
    "singa": samples.SINGA,
    "accelerate": samples.ACCELERATE,
    "deepspeed": samples.HOSTFILE,
}


@pytest.mark.parametrize("asked", OF_EACH)
@pytest.mark.parametrize("given", OF_EACH)
def test_the_error_for_a_document_of_another_format_names_that(asked: str, given: str) -> None:
    if asked == given:
        return
    with pytest.raises(FileProblem, match="this looks like a ") as caught:
        read_foreign(asked, OF_EACH[given], "doc")
    assert f"`torchyard import {given} doc` reads it" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("cloudml", "trainingInput:\n  scaleTier: [CUSTOM\n", 2, "the `[` that begins here is not closed"),
        ("vertex", '{"workerPoolSpecs": [\n {"replicaCount": 1}\n', 1, "the `[` that begins here is not closed"),
        ("cluster-spec", '{"cluster": {"workerpool0":\n ["h:1"}}', 2, "the `[` that begins here is not closed"),
        ("tf-config", 'TF_CONFIG=\'{"cluster": {"ps": ["a:1"]},\n "task": {"type\'', 2, "the quote that begins"),
    ],
)
def test_a_syntax_error_has_its_line_in_every_format(name: str, text: str, line: int, message: str) -> None:
    assert detect_format(text) == name
    with pytest.raises(FileProblem, match="this looks like a "):
        read_foreign("singa", text, "doc")
    with pytest.raises(FileProblem) as caught:
        read_foreign(name, text, "doc")
    assert caught.value.message.startswith(f"doc:{line}: {message}"), caught.value.sentence()


def test_a_syntax_error_in_an_unknown_format_has_its_line() -> None:
    assert detect_format("a: [") is None
    with pytest.raises(FileProblem, match=r"doc:1: the `\[` that begins here is not closed"):
        read_foreign("vertex", "a: [", "doc")


def test_a_vertex_job_is_no_cloudml_job() -> None:
    with pytest.raises(FileProblem) as caught:
        read_foreign("cloudml", samples.VERTEX, "job.yaml")
    assert "this looks like a Vertex job, not CloudML." in caught.value.message


@pytest.mark.parametrize("name", OF_EACH)
@pytest.mark.parametrize("text", ["", "[]", "hello", "a: [", "\x00", "{}", "- 1\n- 2\n", samples.WHOLE])
def test_nothing_else_is_taken_for_a_document(name: str, text: str) -> None:
    with pytest.raises(TorchyardError):
        read_foreign(name, text, "doc")


@pytest.mark.parametrize(
    ("name", "text"),
    [*OF_EACH.items(), ("vertex", samples.VERTEX_PYTHON), ("tensorflow", samples.TF_OVER_SSH)],
)
def test_a_document_cut_anywhere_is_read_or_refused_with_a_sentence(name: str, text: str) -> None:
    refused = []
    for end in range(0, len(text), 17):
        with contextlib.suppress(FileProblem):
            read_foreign(name, text[:end], "doc")
            continue
        with pytest.raises(FileProblem) as caught:
            read_foreign(name, text[:end], "doc")
        refused.append(caught.value.message)
    assert all(re.match(r"doc(:\d+)?: .", message) for message in refused)
    assert refused


def test_servers_and_reducers_are_not_both_put_into_pool_2() -> None:
    both = samples.WHOLE.replace("role: evaluator", "role: reducer")
    topology = topology_from_text(both).topology
    assert topology is not None
    with pytest.raises(UsageError, match="pool 2 holds parameter servers or reducers, not both"):
        write_foreign("vertex", topology)


def test_wishes_that_a_format_does_not_have_are_refused() -> None:
    topology = topology_from_text(samples.WHOLE).topology
    assert topology is not None
    for name, options in (
        ("slurm", ExportOptions(form="json")),
        ("vertex", ExportOptions(form="toml")),
        ("singa", ExportOptions(image="x")),
        ("kubernetes", ExportOptions(replica="worker-0")),
        ("tf-config", ExportOptions(replica="worker-9")),
        ("tensorflow", ExportOptions("sparse", replica="ps-0")),
        ("clouldml", ExportOptions()),
    ):
        with pytest.raises(UsageError):
            write_foreign(name, topology, options)
    for name in [name for name, one in FORMATS.items() if one.read is None]:
        with pytest.raises(UsageError, match="written only"):
            read_foreign(name, "x", "doc")
    for name in [name for name, one in FORMATS.items() if one.write is None]:
        with pytest.raises(UsageError, match="read only"):
            write_foreign(name, topology)


@pytest.mark.parametrize(("name", "hint"), [("nonsense", f"There are {', '.join(READ)}."), ("vertx", "`vertex`")])
def test_the_error_for_an_unknown_format_lists_the_readable_ones(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_foreign(name, "x", "doc")
    assert refused.value.message == f"there is no format {name}."
    assert hint in refused.value.hint
