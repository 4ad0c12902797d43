"""One document is written in many ways: other spellings, blocks of other people around it, shell around a command."""

from __future__ import annotations

from tests.core.interop import samples
from tests.core.interop.test_read import counts, said
from torchyard_core.interop.formats import read_foreign, write_foreign
from torchyard_core.interop.writing import Wishes
from torchyard_core.topology.checks import check

SINGA_LAYERS = """\
name: "char" "-rnn"  # cluster { nworker_groups: 9 }
neuralnet {
  layer { name: "cluster { }" user_type: "kData"
    [data_conf] { path: "examples/rnnlm/train_shard" max_window: 10 }
    [singa.limit]: 3
    part [ { dims: [1, 2] }, { dims: [] } ]
  }
}
cluster: < nworkers_per_group: 3; nservers_per_group: 2, server_worker_separate: TRUE >
"""
TF_IN_PYTHON = """\
import json, os

os.environ["TF_CONFIG"] = json.dumps({
    'cluster': {
        'worker': ["host1:2222", "host2:2222"],
    },
    "rpc_layer": "grpc",
    'task': {'type': 'worker', 'index': 1},
})
"""
TF_SHELL = """\
cd /src && CUDA_VISIBLE_DEVICES= nohup python -u t.py --ps_hosts a:1 --worker_hosts b:2 --job_name ps --task_index 0 \\
    -v --sync data.csv > ps.log 2>&1 &
cd /src; nohup python -u t.py -ps_hosts=a:1 -worker_hosts=b:2 -job_name=worker -task_index=0 -v --sync data.csv >>w.log
"""


def test_cloudml_in_snake_case_is_the_same_job() -> None:
    names = ("trainingInput", "scaleTier", "Type", "Count", "parameterServer", "Config", "pythonModule", "packageUris")
    names = (*names, "runtimeVersion", "useChiefInTfConfig", "acceleratorConfig")
    text = samples.CLOUDML_GPUS
    for name in names:
        text = text.replace(name, "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))
    assert "training_input:" in text
    assert "accelerator_config" in text
    imported = read_foreign("cloudml", text, "f")
    assert imported.topology == read_foreign("cloudml", samples.CLOUDML_GPUS, "f").topology
    assert "f:16: `packageUris` is left out" in said(imported)


def test_a_singa_job_with_extensions_lists_of_blocks_and_joined_texts_is_read() -> None:
    topology = read_foreign("singa", SINGA_LAYERS, "f").topology
    assert topology.name == "char-rnn"
    assert topology.strategy.kind == "sandblaster"
    assert counts(topology) == {"worker": 3, "ps": 2}


def test_tf_config_is_read_out_of_the_python_that_sets_it() -> None:
    imported = read_foreign("tf-config", TF_IN_PYTHON, "f")
    assert imported.topology.pins == {"worker-0": "host1", "worker-1": "host2"}
    assert "f:7: `rpc_layer` is left out" in said(imported)


def test_commands_keep_their_own_words_without_the_shell_around_them() -> None:
    topology = read_foreign("tensorflow", TF_SHELL, "f").topology
    assert topology.program.command == ("nohup", "python", "-u", "t.py")
    assert topology.program.args[4:] == ("-v", "--sync", "data.csv")
    assert counts(topology) == {"worker": 1, "ps": 1}


def test_vertex_variables_that_no_replica_may_have_are_left_out_with_their_line() -> None:
    listed = "env: [{name: A-B, value: x},\n {name: RANK, value: '1'}, {name: MODE, value: y}]"
    imported = read_foreign("vertex", f"workerPoolSpecs:\n- containerSpec: {{command: [a], {listed}}}\n", "f")
    assert imported.topology.program.env == {"MODE": "y"}
    assert "f:2: A-B is left out of `env`" in said(imported)
    assert "f:3: RANK is left out of `env`: Torchyard itself sets it." in said(imported)
    assert [problem for problem in check(imported.topology) if problem.severity == "error"] == []


def test_flags_of_gcloud_keep_words_with_commas_and_other_flags_are_told() -> None:
    text = samples.VERTEX_FLAGS.rstrip() + " \\\n  --command=python,t.py --args='^;^--sizes=1,2;it'\"'\"'s'\n"
    imported = read_foreign("vertex", text, "f")
    assert imported.topology.program.args == ("--sizes=1,2", "it's")
    assert "f:2: `--region` is left out" in said(imported)
    again = write_foreign("vertex", imported.topology, Wishes("flags", "IMAGE")).text
    assert read_foreign("vertex", again, "f").topology == imported.topology
