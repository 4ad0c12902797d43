"""Tests of importing configurations of Accelerate and DeepSpeed, which are also launchers for torch."""

from __future__ import annotations

import pytest

from tests.core.interop import samples
from torchyard_core.interop.format_registry import read_foreign
from torchyard_core.topology.file import check_topology, dump, topology_from_text

FEW = "distributed_type: {kind}\nnum_machines: {machines}\nnum_processes: {processes}\n"


@pytest.mark.parametrize(("name", "text"), [("accelerate", samples.ACCELERATE), ("deepspeed", samples.HOSTFILE)])
def test_what_is_read_is_a_topology_without_errors_that_its_file_gives_back(name: str, text: str) -> None:
    imported = read_foreign(name, text, "f")
    assert [problem for problem in check_topology(imported.topology) if problem.severity == "error"] == []
    assert topology_from_text(dump(imported.topology)).topology == imported.topology


@pytest.mark.parametrize(
    ("kind", "machines", "processes", "replicas", "gpus"),
    [
        ("MULTI_GPU", 2, 16, 2, 8),
        ("MULTI_GPU", 1, 4, 1, 4),
        ("DEEPSPEED", 4, 4, 4, 1),
        ("MULTI_CPU", 2, 6, 6, 0),
        ("NO", 1, 1, 1, 1),  # YAML reads NO as false.
        ("'NO'", 1, 1, 1, 1),
    ],
)
def test_machines_are_replicas_and_processes_are_gpus(
    kind: str, machines: int, processes: int, replicas: int, gpus: int
) -> None:
    text = FEW.format(kind=kind, machines=machines, processes=processes)
    [pool] = read_foreign("accelerate", text, "f").topology.pools
    assert (pool.role, pool.replicas, pool.gpus) == ("worker", replicas, gpus)


def test_the_script_gets_what_accelerate_sets_and_the_rest_has_remarks_with_lines() -> None:
    imported = read_foreign("accelerate", samples.ACCELERATE, "f")
    env = imported.topology.program.env
    assert env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert env["ACCELERATE_USE_FSDP"] == "true"
    assert env["FSDP_OFFLOAD_PARAMS"] == "false"
    assert env["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "Block"
    assert env["FSDP_SYNC_MODULE_STATES"] == "true", "the default of `accelerate launch`"
    remarks = [remark.printed("f") for remark in imported.remarks]
    assert remarks == [
        "f:8: `machine_rank` is left out: ranks follow the placement.",
        "f:9: `main_process_ip` is left out: Torchyard chooses it at launch.",
        "f:10: `main_process_port` is left out: Torchyard chooses it at launch.",
        "f: the document does not say what to run; it is train.py here: change `program`.",
    ]


def test_a_misspelled_key_has_a_remark_with_the_known_one() -> None:
    imported = read_foreign("accelerate", "distributed_type: MULTI_GPU\nmixed_precison: bf16\n", "f")
    message = "f:2: `mixed_precison` is not known here and is left out (did you mean `mixed_precision`?)"
    assert message.split(" (")[0] in imported.remarks[0].printed("f")
    assert "mixed_precision" in imported.remarks[0].message


def test_deepspeed_gets_its_fields_and_its_launchers_options_have_remarks() -> None:
    text = (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 1.0\n"
        "  offload_optimizer_device: none\n  deepspeed_multinode_launcher: pdsh\n"
        "dynamo_config: {dynamo_backend: INDUCTOR}\n"
    )
    imported = read_foreign("accelerate", text, "f")
    env = imported.topology.program.env
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"
    assert env["ACCELERATE_GRADIENT_CLIPPING"] == "1.0"
    assert env["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == "none"
    remarks = [remark.printed("f").partition(":")[2] for remark in imported.remarks]
    assert remarks[0] == "7: `dynamo_config` is left out: `accelerate launch` ignores it with DeepSpeed."
    assert remarks[1].startswith("6: `deepspeed_multinode_launcher` is left out")
    assert not any("DYNAMO" in name for name in env)


def test_a_hostfile_keeps_the_order_of_its_hosts_and_their_slots() -> None:
    imported = read_foreign("deepspeed", samples.HOSTFILE, "f")
    pools = [(pool.name, pool.replicas, pool.gpus, pool.hosts) for pool in imported.topology.pools]
    assert pools == [("workers", 2, 8, ("gpu-a", "gpu-b")), ("workers-2", 1, 4, ("gpu-c",))]
    assert imported.remarks[0].printed("f") == "f:5: `max_slots=8` is left out: DeepSpeed does not read it either."
