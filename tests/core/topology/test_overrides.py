from __future__ import annotations

import pytest

from tests.core.examples import EVERY_KEY
from torchyard_core.errors import UsageError
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import PlacementRule, StrategyKind, Topology
from torchyard_core.topology.overrides import apply_overrides


def changed(*settings: str) -> Topology:
    read = topology_from_text(EVERY_KEY).topology
    assert read is not None
    return apply_overrides(read, settings)


def refusal(*settings: str) -> str:
    with pytest.raises(UsageError) as raised:
        changed(*settings)
    assert raised.value.exit_code == 2
    return raised.value.sentence()


def test_a_pool_s_count_is_set_by_the_pool_s_name() -> None:
    result = changed("pools.workers.replicas=8")
    assert [pool.replicas for pool in result.pools] == [1, 8, 2, 1]


def test_several_settings_apply_in_order() -> None:
    result = changed("strategy.kind=all_reduce", "strategy.kind=sandblaster", "name=other")
    assert (result.strategy.kind, result.name) == (StrategyKind.SANDBLASTER, "other")


def test_values_are_yaml_and_text_is_letter_for_letter() -> None:
    result = changed(
        "program.args=[--lr, 1e-3]",
        "program.env.OMP_NUM_THREADS=08",
        "program.env.MY.DOTTED=yes",
        "pools.workers.hosts=[gpu-c]",
        "pools.workers.placement=pack",
        "pins={worker-0: 'gpu-c:1'}",
        "pins.worker-1=gpu-b:2",
        "program.args.0=--rate",
    )
    assert result.program.args == ("--rate", "1e-3")
    assert result.program.env == {"OMP_NUM_THREADS": "08", "MY.DOTTED": "yes"}
    assert (result.pools[1].hosts, result.pools[1].placement) == (("gpu-c",), PlacementRule.PACK)
    assert result.pins == {"worker-0": "gpu-c:1", "worker-1": "gpu-b:2"}


def test_an_empty_value_takes_the_setting_back_to_its_default() -> None:
    result = changed("program.python=", "program.max_restarts=null", "pins=")
    assert (result.program.python, result.program.max_restarts, result.pins) == (None, 2, {})


def test_a_block_that_the_file_does_not_have_can_be_set_into() -> None:
    read = topology_from_text(
        "version: 1\nname: x\npools: [{name: a.b, role: worker, replicas: 1}]\nprogram: {script: a}\n"
    ).topology
    assert read is not None
    result = apply_overrides(read, ["strategy.kind=all_reduce", "pools.a.b.env.X=1", "pools.0.gpus=2"])
    assert result.strategy.kind is StrategyKind.ALL_REDUCE
    assert (result.pools[0].env, result.pools[0].gpus) == ({"X": "1"}, 2)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("pools.wrokers.replicas=2", "there is no pool `wrokers`; did you mean `workers`?"),
        ("pools.9.replicas=2", "there is no pool `9`; there are 4"),
        ("pools.workers.replcas=2", "there is no `replcas` in `pools.workers`; did you mean `replicas`?"),
        ("pools.0.gpuz=2", "there is no `gpuz` in `pools.0`; did you mean `gpus`?"),
        ("pool.workers.replicas=2", "there is no `pool`; did you mean `pools`?"),
        ("pools.workers=2", "name what to change in the pool."),
        ("pools=2", "name what to change in the pool."),
        ("name.first=x", "`name` has nothing below it."),
        ("replicas", "a setting is written `path=value`."),
        ("=3", "a setting is written `path=value`."),
        ("pools..replicas=3", "there is no pool ``"),
        ("name=[1", "the value is not YAML: the `[` that begins here is not closed by `]`"),
        ("name=\ud800", "the value is not YAML: the text contains an invalid character"),
        ("program.env={A: 1, A: 2}", "`A` is given twice"),
        ("pools.workers.replicas=two", "replicas must be a whole number from 1 to 10000, not 'two'."),
        ("strategy.kind=allreduce", "did you mean `all_reduce`?"),
        ("program.args.7=x", "there is no entry `7`; there are 2"),
        ("pools.nobody.replicas=2", "there is no pool `nobody`; there are chief, workers, servers, eval."),
    ],
)
def test_a_setting_that_leads_nowhere_is_refused_in_a_sentence(setting: str, sentence: str) -> None:
    message = refusal(setting)
    assert message.startswith(f"--set {setting}: ")
    assert sentence in message
