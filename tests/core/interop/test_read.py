"""Tests of importing documents from the guides of other systems, and of exporting the resulting topologies."""

from __future__ import annotations

import pytest

from tests.core.interop import samples
from torchyard_core.interop.document_reader import Imported
from torchyard_core.interop.document_writer import ExportOptions
from torchyard_core.interop.format_registry import FORMATS, WRITTEN, read_foreign, write_foreign
from torchyard_core.topology.file import check_topology, dump, topology_from_text
from torchyard_core.topology.model import Role, Topology
from torchyard_core.topology.strategies.presets import preset_topology

DOCUMENTS = [
    ("cloudml", samples.CLOUDML_CUSTOM),
    ("cloudml", samples.CLOUDML_GPUS),
    ("cloudml", "scaleTier: STANDARD_1"),
    ("vertex", samples.VERTEX),
    ("vertex", samples.VERTEX_JSON),
    ("vertex", samples.VERTEX_FLAGS),
    ("vertex", samples.VERTEX_PYTHON),
    ("cluster-spec", samples.CLUSTER_SPEC),
    ("tf-config", samples.TF_CONFIG),
    ("tensorflow", samples.TF_DENSE),
    ("tensorflow", samples.TF_SPARSE),
    ("tensorflow", samples.TF_COMMANDS),
    ("tensorflow", samples.TF_OVER_SSH),
    ("singa", samples.SINGA),
]


PACKAGE = "pythonPackageSpec: {executorImageUri: pytorch, pythonModule: t}"


def counts(topology: Topology) -> dict[str, int]:
    return {pool.role.value: pool.replicas for pool in topology.pools}


def remarks_text(imported: Imported) -> str:
    return "\n".join(remark.printed("f") for remark in imported.remarks)


@pytest.mark.parametrize(("name", "text"), DOCUMENTS)
def test_what_is_read_is_a_topology_without_errors_that_its_file_gives_back(name: str, text: str) -> None:
    imported = read_foreign(name, text, "f")
    assert [problem for problem in check_topology(imported.topology) if problem.severity == "error"] == []
    assert topology_from_text(dump(imported.topology)).topology == imported.topology


@pytest.mark.parametrize(("name", "text"), DOCUMENTS)
def test_what_is_written_is_read_as_the_same_cluster(name: str, text: str) -> None:
    first = read_foreign(name, text, "f").topology
    again = read_foreign(name, write_foreign(name, first).text, "f").topology
    assert again.pools == first.pools
    assert again.strategy == first.strategy


@pytest.mark.parametrize("tier", ["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU"])
def test_a_scale_tier_is_its_preset_and_comes_back_as_its_name(tier: str) -> None:
    topology = read_foreign("cloudml", f"trainingInput: {{scaleTier: {tier}}}", "f").topology
    assert topology.pools == preset_topology(tier.lower()).pools
    assert f"scaleTier: {tier}\n" in write_foreign("cloudml", topology).text


def test_machines_of_cloudml_bring_their_sizes_and_come_back_letter_for_letter() -> None:
    imported = read_foreign("cloudml", samples.CLOUDML_CUSTOM, "f")
    chief, workers, servers = imported.topology.pools
    assert (chief.machine, chief.cpus, chief.memory_gb) == ("complex_model_m", 16, 14.4)
    assert (workers.replicas, servers.replicas, servers.cpus, servers.memory_gb) == (9, 3, 8, 52)
    assert imported.topology.program.tf_master_name == "master"
    assert write_foreign("cloudml", imported.topology).text.startswith(samples.CLOUDML_CUSTOM)


def test_cloudml_accelerators_module_and_chief_are_read_and_the_rest_has_remarks_with_lines() -> None:
    imported = read_foreign("cloudml", samples.CLOUDML_GPUS, "f")
    chief, workers, servers, evaluator = imported.topology.pools
    assert (chief.gpus, chief.gpu_model, workers.replicas, servers.gpus) == (2, "V100", 4, 0)
    assert (evaluator.gpus, evaluator.gpu_model, evaluator.machine) == (1, "P100", "standard_p100")
    program = imported.topology.program
    assert (program.command, program.args) == (("python", "-m", "trainer.task"), ("--train-steps", "1000"))
    assert program.tf_master_name == "chief"
    assert "f:16: `packageUris` is left out" in remarks_text(imported)
    text = write_foreign("cloudml", imported.topology).text
    for part in ("useChiefInTfConfig: true", "pythonModule: trainer.task", "type: NVIDIA_TESLA_V100", "workerCount: 4"):
        assert part in text


def test_vertex_pools_keep_their_position_around_an_empty_one() -> None:
    imported = read_foreign("vertex", samples.VERTEX, "f")
    assert counts(imported.topology) == {"chief": 1, "worker": 3, "evaluator": 1}
    assert imported.topology.name == "mnist"
    assert imported.topology.program.env == {"MODE": "fast"}
    assert "f:9: `diskSpec` is left out" in remarks_text(imported)
    for form in ("yaml", "json"):
        text = write_foreign("vertex", imported.topology, ExportOptions(form, "gcr.io/project/mnist")).text
        assert "{}" in text
        assert read_foreign("vertex", text, "f").topology == imported.topology
    flags = write_foreign("vertex", imported.topology, ExportOptions("flags", "x")).text
    assert "--worker-pool-spec= \\\n" in flags


def test_vertex_flags_with_reducers_are_the_reduction_server() -> None:
    topology = read_foreign("vertex", samples.VERTEX_FLAGS, "f").topology
    assert topology.strategy.kind == "reduction_server"
    assert counts(topology) == {"chief": 1, "worker": 4, "reducer": 16}
    assert [pool.gpus for pool in topology.pools] == [8, 8, 0]
    assert "reductionserver:latest" in write_foreign("vertex", topology, ExportOptions("flags", "IMAGE")).text


@pytest.mark.parametrize("runs", ["containerSpec: {imageUri: i, command: [python, t.py]}", PACKAGE])
@pytest.mark.parametrize("pool_2", ["", "containerSpec: {imageUri: ps}", "containerSpec: {imageUri: reductionserver}"])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_job_that_vertex_takes_becomes_a_topology_without_errors(
    runs: str, pool_2: str, workers: int, gpus: int
) -> None:
    machine = f"machineSpec: {{acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: {gpus}}}"
    pools = [f"{{{machine}, {runs}}}", f"{{{machine}, replicaCount: {workers}, {runs}}}" if workers else "{}"]
    text = f"workerPoolSpecs: [{', '.join(pools)}, {{replicaCount: 2, {pool_2}}}]" if pool_2 else pools[0]
    imported = read_foreign("vertex", text if pool_2 else f"workerPoolSpecs: [{', '.join(pools)}]", "f")
    assert [problem for problem in check_topology(imported.topology) if problem.severity == "error"] == []
    reduces = "reductionserver" in pool_2 and (1 + workers) * max(1, gpus) > 1
    assert counts(imported.topology).get("reducer", 0) == (2 if reduces else 0)
    assert (imported.topology.strategy.kind == "reduction_server") is reduces
    if "reductionserver" in pool_2 and not reduces:
        assert "f:1: 2 reducers are left out: they sum the gradients of 2 trainers or more, and this job has one." in (
            remarks_text(imported)
        )


def test_a_vertex_package_on_a_pytorch_image_runs_under_torch() -> None:
    program = read_foreign("vertex", samples.VERTEX_JSON, "f").topology.program
    assert (program.launcher, program.module, program.args) == ("torch", "trainer.task", ("--lr", "0.1"))
    flags = "gcloud ai custom-jobs create --worker-pool-spec=executor-image-uri={}-cpu.1-13,script=task.py"
    of = {kind: read_foreign("vertex", flags.format(kind), "f").topology.program for kind in ("pytorch", "tf")}
    assert (of["pytorch"].launcher, of["pytorch"].script) == ("torch", "task.py")
    assert (of["tf"].launcher, of["tf"].command) == ("command", ("python", "task.py"))


def test_a_cloud_cluster_spec_pins_nothing_and_names_its_trial() -> None:
    imported = read_foreign("cluster-spec", samples.CLUSTER_SPEC, "f")
    assert counts(imported.topology) == {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    assert imported.topology.pins == {}
    assert "f:9: this is of trial 3" in remarks_text(imported)


def test_a_tf_config_of_ones_own_hosts_pins_them() -> None:
    imported = read_foreign("tf-config", samples.TF_CONFIG, "f")
    assert counts(imported.topology) == {"chief": 1, "worker": 3, "ps": 2}
    assert imported.topology.pins["worker-1"] == "host2"


@pytest.mark.parametrize("name", ["cluster-spec", "tf-config"])
@pytest.mark.parametrize("key", ["parameter_server", "multi_worker_mirrored", "standard_1"])
@pytest.mark.parametrize("form", ["json", "export"])
def test_what_a_run_of_ours_says_is_read_back_whole(name: str, key: str, form: str) -> None:
    topology = preset_topology(key)
    exported = write_foreign(name, topology, ExportOptions(form, replica="worker-1"))
    assert read_foreign(name, exported.text, "f").topology == topology


def test_dense_and_sparse_dictionaries() -> None:
    dense = read_foreign("tensorflow", samples.TF_DENSE, "f").topology
    assert counts(dense) == {"worker": 3, "ps": 2}
    sparse = read_foreign("tensorflow", samples.TF_SPARSE, "f")
    assert counts(sparse.topology) == {"worker": 2, "ps": 2}
    assert "worker-0" not in sparse.topology.pins
    assert "does not say where 0 is" in remarks_text(sparse)
    text = write_foreign("tensorflow", dense, ExportOptions("sparse", replica="worker-1")).text
    assert text.startswith('{"worker": {1: "worker1.example.com:2222"}, "ps": ["ps0.example.com:2222"')


def test_a_set_of_command_lines_is_a_topology_that_starts_just_these() -> None:
    topology = read_foreign("tensorflow", samples.TF_COMMANDS, "f").topology
    assert topology.program.command == ("python", "trainer.py")
    assert topology.program.args[-2:] == ("--batch_size", "32")
    assert [(pool.name, pool.replicas, pool.gpus) for pool in topology.pools] == [("workers", 2, 2), ("servers", 2, 0)]
    text = write_foreign("tensorflow", topology).text
    started = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(started) == 4
    assert started[-1] == (
        "CUDA_VISIBLE_DEVICES=0,1 python trainer.py --ps_hosts=ps0.example.com:2222,ps1.example.com:2222 "
        "--worker_hosts=worker0.example.com:2222,worker1.example.com:2222 --job_name=worker --task_index=1 "
        "--batch_size 32"
    )
    assert read_foreign("tensorflow", text, "f").topology == topology


FRAMEWORKS = {
    "sandblaster": ("1", "1", "3", "2", "true", {"worker": 3, "ps": 2}, None),
    "all_reduce": ("1", "1", "3", "3", "false", {"worker": 3}, None),
    "downpour": ("2", "1", "2", "2", "true", {"worker": 4, "ps": 2}, 2),
    "hogwild": ("3", "3", "1", "1", "false", {"worker": 3}, 3),
}


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_singas_four_frameworks_are_ours_and_back(kind: str) -> None:
    groups, server_groups, workers, servers, separate, pools, ours = FRAMEWORKS[kind]
    text = (
        f"cluster {{\n  nworker_groups: {groups}\n  nserver_groups: {server_groups}\n  nworkers_per_group: {workers}\n"
        f"  nservers_per_group: {servers}\n  server_worker_separate: {separate}\n}}\n"
    )
    topology = read_foreign("singa", text, "f").topology
    assert topology.strategy.kind == kind
    assert topology.strategy.worker_groups == ours
    assert counts(topology) == pools
    assert write_foreign("singa", topology).text == text
    drawn = preset_topology(kind)
    assert counts(drawn) == pools, "the preset is as SINGA draws it"


def test_diloco_is_exported_to_singa_with_a_remark() -> None:
    exported = write_foreign("singa", preset_topology("diloco"))
    assert "nworker_groups: 4\n  nserver_groups: 1\n" in exported.text
    assert any(remark.message.startswith("SINGA has no outer optimizer") for remark in exported.remarks)


def test_reducers_of_diloco_are_exported_to_vertex_as_servers_with_a_remark() -> None:
    diloco = preset_topology("diloco")
    reducers = diloco.pools[0].model_copy(update={"name": "reducers", "role": Role.REDUCER, "gpus": 0})
    exported = write_foreign("vertex", diloco.model_copy(update={"pools": (*diloco.pools, reducers)}))
    assert "reductionserver" not in exported.text
    assert any(remark.message.startswith("DiLoCo's reducers average groups") for remark in exported.remarks)


def test_a_cluster_inside_a_larger_singa_job_is_found() -> None:
    imported = read_foreign("singa", samples.SINGA, "f")
    assert imported.topology.name == "cifar10-convnet"
    assert imported.topology.strategy.kind == "downpour"
    assert "f:18: `workspace` is left out" in remarks_text(imported)


def test_every_format_says_whether_it_is_read() -> None:
    assert [name for name, one in FORMATS.items() if one.read is None] == ["torchx", "kubernetes", "slurm"]
    assert [name for name, one in FORMATS.items() if one.write is None] == ["accelerate", "deepspeed"]


TOLD = [
    *DOCUMENTS,
    ("accelerate", samples.ACCELERATE),
    ("deepspeed", samples.HOSTFILE),
    ("vertex", "studySpec: {}\ntrialJobSpec: {baseOutputDirectory: x, workerPoolSpecs: [{replicaCount: 1}]}"),
    ("cloudml", "trainingInput: {scaleTier: BASIC, jobDir: x, hyperparameters: {}}"),
]


def test_remarks_name_no_command_that_the_window_lacks() -> None:
    remarks = [one.message for name, text in TOLD for one in read_foreign(name, text, "f").remarks]
    for name in WRITTEN:
        one = FORMATS[name]
        exported = [
            write_foreign(name, preset_topology("downpour"), ExportOptions(form)) for form in one.forms or (None,)
        ]
        remarks += [remark.message for done in exported for remark in done.remarks]
    assert any("`studySpec` is left out" in message for message in remarks)
    assert [message for message in remarks if "`torchyard " in message] == []
