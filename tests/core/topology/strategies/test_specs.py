"""Tests that the descriptor of each strategy is complete and agrees with the topology model."""

from __future__ import annotations

from enum import Enum

import pytest

from tests.core.topology.strategies.test_traffic import design
from torchyard_core.topology.model import Role, Strategy, StrategyKind
from torchyard_core.topology.strategies.presets import preset_topology
from torchyard_core.topology.strategies.registry import SHARED_SETTINGS, all_settings, all_specs
from torchyard_core.topology.strategies.spec import StrategySpec
from torchyard_core.topology.strategies.topology_traffic import traffic_of

each_spec = pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.kind.value)
SERVERS = (Role.PS, Role.REDUCER)


def test_each_kind_has_a_descriptor_and_each_setting_one_place() -> None:
    assert [spec.kind for spec in all_specs()] == list(StrategyKind)
    keys = [setting.key for setting in all_settings()]
    assert sorted(keys) == sorted(set(Strategy.model_fields) - {"kind"})
    for setting in all_settings():
        default = Strategy.model_fields[setting.key].default
        values = list(type(default)) if isinstance(default, Enum) else [True, False] * isinstance(default, bool)
        assert [value for value, _ in setting.choices] == values, setting.key
        assert bool(setting.if_unset) is (default is None), setting.key


@each_spec
def test_shared_settings_and_edge_labels_name_settings_that_exist(spec: StrategySpec) -> None:
    assert set(spec.shared_settings) <= {setting.key for setting in SHARED_SETTINGS}
    assert {key for _, key in spec.edge_labels} <= spec.settings
    assert ("worker_groups" in spec.settings) is spec.is_asynchronous


@each_spec
def test_only_servers_that_the_strategy_needs_are_in_its_preset_and_its_traffic(spec: StrategySpec) -> None:
    if spec.preset is None:
        return
    topology = preset_topology(spec.kind)
    assert {pool.role for pool in topology.pools if pool.role in SERVERS} == (
        set() if spec.servers_are_optional else {spec.server_role} - {None}
    )
    traffic = traffic_of(topology)
    assert traffic.bundles
    assert {bundle.in_step for bundle in traffic.bundles} == {not spec.is_asynchronous}
    everything = design(spec.kind, (Role.WORKER, 4), (Role.PS, 2), (Role.REDUCER, 4))
    names = {name.rpartition("-")[0] for bundle in traffic_of(everything).bundles for name in bundle.targets}
    assert names == set(spec.server_roles or (Role.WORKER,))


@each_spec
def test_the_sentences_of_the_cost_name_only_values_that_it_has(spec: StrategySpec) -> None:
    for trainers in (2, 4, 9):
        for servers in (0, 1, 4, 9):
            cost = spec.exchange_cost(trainers, servers)
            for sentence in cost.sentences if cost is not None else ():
                assert "{" not in sentence.format(
                    trainers="4 trainers", servers="2 servers", **cost.durations, **cost.counts
                )
