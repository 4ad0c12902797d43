"""Tests of parsing the fields of the cluster dialog."""

from __future__ import annotations

import pytest

from torchyard_core.fleet.cluster import Cluster, Login
from torchyard_core.fleet.host_fields import Transport
from torchyard_gui.fleet.dialogs.cluster_form import cluster_from, texts_of_cluster


def test_every_key_of_a_cluster_has_a_field_and_stays_as_it_is() -> None:
    login = Login(
        address="login.hpc.example",
        port=2222,
        user="lee",
        identity_file="~/.ssh/lab",
        proxy_jump="lee@bastion",
        transport=Transport.OPENSSH,
        agent_python="/p",
        agent_dir="/d",
    )
    cluster = Cluster(
        name="hpc",
        kind="slurm",
        login=login,
        partition="gpu",
        account="nlp",
        qos="long",
        time_limit="04:00:00",
        python="/opt/torch/bin/python",
        setup=("module load cuda", "ulimit -n 4096"),
    )
    texts = texts_of_cluster(cluster)
    assert set(texts) == {*Cluster.model_fields, *Login.model_fields} - {"login", "kind", "local"}
    assert all(texts.values())
    assert cluster_from(texts, local=False) == (cluster, {})


def test_empty_fields_stay_out_of_the_file_and_a_local_login_node_needs_no_address() -> None:
    cluster, wrong = cluster_from({"name": " hpc ", "address": "x", "setup": "\n", "partition": ""}, local=True)
    assert wrong == {}
    assert cluster is not None
    assert cluster.model_dump(exclude_defaults=True) == {"name": "hpc", "kind": "slurm", "login": {"local": True}}


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("name", "", "needs a name"),
        ("name", "gpu-z", "has an entry `gpu-z` already"),
        ("port", "70000", "from 1 to 65535"),
        ("time_limit", "soon", "must be a time of Slurm"),
        ("partition", "a b", "must be one word"),
        ("address", "-oProxyCommand=x", "does not begin with `-`"),
    ],
)
def test_a_problem_stands_at_its_field(field: str, text: str, sentence: str) -> None:
    cluster, wrong = cluster_from({"name": "hpc", field: text}, local=False, taken=["gpu-z"])
    assert cluster is None
    assert list(wrong) == [field]
    assert sentence in wrong[field]
