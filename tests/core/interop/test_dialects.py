"""Tests of documents that deviate from the guides: alternative spellings, surrounding blocks, and shell syntax around a
command.
"""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.core.interop import samples
from tests.core.interop.test_read import counts, remarks_text
from torchyard_core.errors import FileProblem
from torchyard_core.interop.document_writer import ExportOptions
from torchyard_core.interop.format_detection import detect_format
from torchyard_core.interop.format_registry import read_foreign, write_foreign
from torchyard_core.interop.protobuf_text import Block, parse_proto
from torchyard_core.topology.file import check_topology

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
    assert "f:16: `packageUris` is left out" in remarks_text(imported)


def test_a_singa_job_with_extensions_lists_of_blocks_and_joined_texts_is_read() -> None:
    topology = read_foreign("singa", SINGA_LAYERS, "f").topology
    assert topology.name == "char-rnn"
    assert topology.strategy.kind == "sandblaster"
    assert counts(topology) == {"worker": 3, "ps": 2}


def test_tf_config_is_read_out_of_the_python_that_sets_it() -> None:
    imported = read_foreign("tf-config", TF_IN_PYTHON, "f")
    assert imported.topology.pins == {"worker-0": "host1", "worker-1": "host2"}
    assert "f:7: `rpc_layer` is left out" in remarks_text(imported)


TF_SCRIPTS = [
    ("tf-config", "import json, os\n\ntf_config = DICTIONARY\nos.environ['TF_CONFIG'] = json.dumps(tf_config)\n"),
    ("tf-config", 'import os\nos.environ[\'TF_CONFIG\'] = """DICTIONARY"""\nprint(os.environ)\n'),
    ("tf-config", "first = 'host1:2222'\nc = DICTIONARY\nos.environ['TF_CONFIG'] = json.dumps(c)\n"),
    ("tensorflow", "cluster_dict = CLUSTER\nspec = tf.train.ClusterSpec(cluster_dict)\n"),
    ("tensorflow", "def main(_):\n    cluster = tf.train.ClusterSpec(\n        CLUSTER\n    )\n"),
]


@pytest.mark.parametrize(("name", "script"), TF_SCRIPTS)
def test_clusters_are_read_out_of_the_scripts_that_name_them_first(name: str, script: str) -> None:
    first = "first" if "first =" in script else '"host1:2222"'
    cluster = f'{{"worker": [{first}, "host2:2222"], "ps": ["host3:2222"]}}'
    whole = f'{{"cluster": {cluster},\n "task": {{"type": "worker", "index": 0}}}}'
    text = script.replace("DICTIONARY", whole).replace("CLUSTER", cluster)
    imported = read_foreign(name, text, "f")
    assert imported.topology.pins == {"worker-0": "host1", "worker-1": "host2", "ps-0": "host3"}
    assert detect_format(text) == name


def test_computed_values_of_a_script_are_refused_with_their_lines() -> None:
    text = 'c = tf.train.ClusterSpec({\n "ps": ["a:1"],\n "worker": FLAGS.worker_hosts.split(",")})\n'
    with pytest.raises(FileProblem, match=r"^f:3: what stands here is computed by the script, which is not executed"):
        read_foreign("tensorflow", text, "f")


def test_commands_keep_their_own_words_without_the_shell_around_them() -> None:
    topology = read_foreign("tensorflow", TF_SHELL, "f").topology
    assert topology.program.command == ("nohup", "python", "-u", "t.py")
    assert topology.program.args[4:] == ("-v", "--sync", "data.csv")
    assert counts(topology) == {"worker": 1, "ps": 1}


def test_vertex_variables_that_no_replica_may_have_are_left_out_with_their_line() -> None:
    listed = "env: [{name: A-B, value: x},\n {name: RANK, value: '1'}, {name: MODE, value: y}]"
    imported = read_foreign("vertex", f"workerPoolSpecs:\n- containerSpec: {{command: [a], {listed}}}\n", "f")
    assert imported.topology.program.env == {"MODE": "y"}
    assert "f:2: A-B is left out of `env`" in remarks_text(imported)
    assert "f:3: RANK is left out of `env`: Torchyard itself sets it." in remarks_text(imported)
    assert [problem for problem in check_topology(imported.topology) if problem.severity == "error"] == []


def test_flags_of_gcloud_keep_words_with_commas_and_other_flags_have_remarks() -> None:
    text = samples.VERTEX_FLAGS.rstrip() + " \\\n  --command=python,t.py --args='^;^--sizes=1,2;it'\"'\"'s'\n"
    imported = read_foreign("vertex", text, "f")
    assert imported.topology.program.args == ("--sizes=1,2", "it's")
    assert "f:2: `--region` is left out" in remarks_text(imported)
    again = write_foreign("vertex", imported.topology, ExportOptions("flags", "IMAGE")).text
    assert read_foreign("vertex", again, "f").topology == imported.topology


def test_vertex_pools_are_read_out_of_the_script_that_gives_them() -> None:
    imported = read_foreign("vertex", samples.VERTEX_PYTHON, "f")
    topology = imported.topology
    assert (topology.name, counts(topology)) == ("mnist", {"chief": 1, "worker": 3})
    assert {(pool.machine, pool.gpus, pool.gpu_model) for pool in topology.pools} == {("n1-standard-8", 2, "T4")}
    assert topology.program.command == ("python", "task.py")
    assert "f:16: the image gcr.io/demo/mnist is left out" in remarks_text(imported)
    assert "f:21: `disk_spec` is left out" in remarks_text(imported)
    assert detect_format(samples.VERTEX_PYTHON) == "vertex"
    pasted = textwrap.indent("worker_pool_specs=[{'machine_spec': {'machine_type': 'n1-standard-4'}}],\n", " " * 8)
    assert counts(read_foreign("vertex", pasted, "f").topology) == {"chief": 1}


def test_commands_that_ssh_hands_on_are_read_and_the_lists_say_where() -> None:
    imported = read_foreign("tensorflow", samples.TF_OVER_SSH, "f")
    topology = imported.topology
    assert topology.pins == {"worker-0": "10.0.0.1", "worker-1": "10.0.0.2", "ps-0": "ps0.example.com"}
    assert topology.program.command == ("python", "trainer.py")
    assert [(pool.name, pool.replicas, pool.gpus) for pool in topology.pools] == [("workers", 2, 2), ("servers", 1, 0)]
    gone = [one.printed("f") for one in imported.remarks if "`ssh` goes" in one.message]
    assert gone == ["f:8: `ssh` goes to gpu-b, and the list says 10.0.0.2: the list's is taken."]


def test_a_mark_within_a_word_is_no_comment_and_lines_are_joined_as_shells_do() -> None:
    text = "python t.py --ps_hosts=a:1,\\\nb:1 --worker_hosts=c:1 --job_name=worker --task_index=0 --tag=a#b"
    topology = read_foreign("tensorflow", text, "f").topology
    assert counts(topology) == {"worker": 1, "ps": 2}
    assert topology.program.args[-1] == "--tag=a#b"


@pytest.mark.parametrize("address", ["[fe80::1%eth0]:2222", "[2001:db8::1]:2222", "grpc://[fe80::1%25bond0.100]:2222"])
def test_addresses_of_version_6_are_read_with_their_zones(address: str) -> None:
    host = address.removeprefix("grpc://").removesuffix(":2222")
    variable = json.dumps({"cluster": {"worker": [address, "gpu-b:1"]}, "task": {"type": "worker", "index": 0}})
    command = f"python t.py --ps_hosts='{address}' --worker_hosts=gpu-b:1 --job_name=worker --task_index=0"
    for name, text, replica in (("tf-config", variable, "worker-0"), ("tensorflow", command, "ps-0")):
        imported = read_foreign(name, text, "f")
        assert replica not in imported.topology.pins
        assert "gpu-b" in imported.topology.pins.values()
        assert f"{replica} is at {host}, which cannot name a host of the fleet" in remarks_text(imported)


SINGA_LEGAL = """\
# Whatever the text format allows.
name: 'a\\'b' "\\x63\\144\\u00e9";
updater: [ { type: kSGD momentum: - 0.9 }, < type: "kAdaGrad" > ],
layer [ { name: "x" dims: [0x10, 020 17] tags: ["a", "b" 'c'] } ]
cluster: [
  { nworker_groups: 0x2, nserver_groups: 01; nworkers_per_group: 3 nservers_per_group: 2 server_worker_separate: t }
]
"""


def test_all_that_protocol_buffers_text_format_allows_is_read() -> None:
    topology = read_foreign("singa", SINGA_LEGAL, "f").topology
    assert topology.name == "a'bcdé"
    assert (topology.strategy.kind, topology.strategy.worker_groups) == ("downpour", 2)
    assert counts(topology) == {"worker": 6, "ps": 2}
    (layer,) = (one.value for one in parse_proto(SINGA_LEGAL, "f").entries if one.name == "layer")
    assert isinstance(layer, Block)
    assert [(one.name, one.value) for one in layer.entries[1:]] == [
        *(("dims", value) for value in ("0x10", "020", "17")),
        *(("tags", value) for value in ("a", "bc")),
    ]
