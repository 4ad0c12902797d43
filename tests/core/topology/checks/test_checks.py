"""Tests of the problems that checks find in a topology. Each problem has a message, a code and a line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.core.examples import EVERY_KEY, host
from tests.core.topology.checks.found_problems import REDUCERS, SERVERS, WORKERS, problems
from torchyard_core.problems import MAX_PROBLEMS, near_miss
from torchyard_core.topology.file import read_topology, topology_from_text
from torchyard_core.topology.host_facts import HostFacts


def test_the_example_of_the_format_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "notify.sh").write_text("")
    (tmp_path / "a.yaml").write_text(EVERY_KEY)
    hosts = [host("gpu-a", 4, labels={"rack": "r1"}), host("gpu-b", 4)]
    assert read_topology(tmp_path / "a.yaml").check(hosts) == ()


# Tests of problems within a pool or between pools


def test_two_pools_of_one_name() -> None:
    assert problems(WORKERS, "{name: w, role: evaluator, replicas: 1}") == [
        "6: error duplicate-pool pool `w` is defined twice, first as entry 1 of pools"
    ]


def test_more_than_one_chief() -> None:
    assert problems("{name: c, role: chief, replicas: 2}") == ["5: error chief-count a chief pool has 1 replica, not 2"]
    assert problems("{name: c, role: chief, replicas: 1}", "{name: d, role: chief, replicas: 1}") == [
        "6: error chief-count there is another chief pool already; a run has one chief"
    ]


def test_a_topology_without_trainers() -> None:
    [line] = problems("{name: e, role: evaluator, replicas: 1}")
    assert line == "4: error no-trainers nothing trains: a topology needs a chief or workers"


def test_min_replicas_above_replicas() -> None:
    assert problems("{name: w, role: worker, replicas: 1, min_replicas: 2}") == [
        "5: error min-replicas min_replicas is 2, more than the 1 replica"
    ]


def test_more_replicas_than_anyone_means() -> None:
    big = "role: worker, replicas: 6000"
    [line] = problems(f"{{name: a, {big}}}", f"{{name: b, {big}}}")
    assert line == "4: error too-many-replicas 12000 replicas are over the limit of 10000"


def test_gpus_of_roles_that_use_none() -> None:
    lines = problems(WORKERS, "{name: s, role: ps, replicas: 1, gpus: 2}", strategy="{kind: downpour}")
    assert lines == ["6: warning gpus-unused ps replicas use no GPU; `gpus` reserves 2 without use"]
    [line] = problems("{name: w, role: worker, replicas: 1, gpu_model: A100}")
    assert line == "5: warning gpu-wish `gpu_model` does nothing while `gpus` is 0"


@pytest.mark.parametrize("name", ['" x"', '"a\\nb"', '"\\u200b"'])
def test_names_that_would_not_fit_a_line(name: str) -> None:
    [line] = problems(WORKERS, name=name)
    assert line == "2: error bad-name name must be one line of text without spaces around it"


def test_several_evaluators_are_fine() -> None:
    assert problems(WORKERS, "{name: e, role: evaluator, replicas: 3}") == []


# Tests of problems of the strategy and of its pools


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("downpour", "parameter servers"), ("sandblaster", "parameter servers"), ("reduction_server", "reducers")],
)
def test_a_strategy_without_what_it_needs(kind: str, needed: str) -> None:
    [line] = problems(WORKERS, strategy=f"{{kind: {kind}}}")
    assert line.startswith(f"3: error strategy-needs {kind} needs {needed} (a pool with role ")


@pytest.mark.parametrize(
    ("kind", "pool", "severity"),
    [
        ("all_reduce", SERVERS, "error"),
        ("hogwild", SERVERS, "error"),
        ("hogwild", REDUCERS, "error"),
        ("all_reduce", REDUCERS, "error"),
        ("none", REDUCERS, "warning"),
    ],
)
def test_a_pool_that_the_strategy_does_not_use(kind: str, pool: str, severity: str) -> None:
    [line] = problems(WORKERS, pool, strategy=f"{{kind: {kind}}}")
    assert line.startswith(f"6: {severity} strategy-ignores pool ")


def test_the_message_for_a_surplus_pool_names_the_strategies_that_use_it() -> None:
    [line] = problems(WORKERS, SERVERS, REDUCERS, strategy="{kind: downpour}")
    assert line == (
        "7: error strategy-ignores pool `r` has nothing to do: downpour uses no reducer. "
        "Remove it, or set strategy.kind to reduction_server or diloco"
    )


@pytest.mark.parametrize(
    "strategy",
    [
        "{kind: sandblaster, backup_workers: 1}",
        "{kind: downpour, worker_groups: 2, push_every: 4, max_staleness: 3, warm_start_steps: 9}",
    ],
)
def test_a_strategy_with_the_servers_that_it_needs(strategy: str) -> None:
    assert problems(WORKERS, SERVERS, strategy=strategy) == []


def test_hogwild_and_reduction_server_with_what_they_need() -> None:
    assert problems(WORKERS, strategy="{kind: hogwild, sync_every: 2, worker_groups: 2}") == []
    assert problems(WORKERS, REDUCERS, strategy="{kind: reduction_server}") == []


def test_diloco_with_groups_and_without() -> None:
    assert problems(WORKERS, strategy="{kind: diloco, inner_steps: 20, outer_lr: 1, worker_groups: 2}") == []
    streaming = "{kind: diloco, inner_steps: 20, fragments: 4, overlap_steps: 4, mixing: 0.5, wire: int8}"
    assert problems(WORKERS, strategy=streaming) == []
    [line] = problems(WORKERS, strategy="{kind: diloco, inner_steps: 3, fragments: 4}")
    assert "`fragments` is 4, and `inner_steps` 3: each step averages at most one fragment" in line
    [line] = problems(WORKERS, strategy="{kind: diloco, inner_steps: 20, fragments: 4, overlap_steps: 5}")
    assert line.endswith("but `overlap_steps` is 5. Set it to 4 or less")
    [line] = problems(WORKERS, strategy="{kind: diloco, worker_groups: 1}")
    assert line.startswith("3: warning strategy-counts diloco has one group here, so that the outer optimizer steps")
    [line] = problems("{name: w, role: worker, replicas: 1}", strategy="{kind: diloco}")
    assert "diloco has one group here" in line
    [line] = problems(WORKERS, strategy="{kind: hogwild, inner_steps: 20}")
    assert line == "3: warning strategy-ignores `inner_steps` is for diloco; hogwild does not use it"


def test_diloco_uses_reducers_or_parameter_servers() -> None:
    assert problems(WORKERS, REDUCERS, strategy="{kind: diloco, fragments: 2, overlap_steps: 1}") == []
    [line] = problems(WORKERS, SERVERS, REDUCERS, strategy="{kind: diloco}")
    assert line == (
        "3: error strategy-counts the parameter servers of diloco average the groups, so that its reducers have "
        "nothing to do: remove the pools with role reducer, or those with role ps"
    )
    [line] = problems(WORKERS, REDUCERS, strategy="{kind: diloco, quorum: 2}")
    assert "`quorum` is for diloco with parameter servers, and there are none" in line


def test_a_quorum_of_diloco_needs_servers_and_enough_groups() -> None:
    assert problems(WORKERS, SERVERS, strategy="{kind: diloco}") == []
    assert problems(WORKERS, SERVERS, strategy="{kind: diloco, quorum: 2, grace_s: 1.5}") == []
    [line] = problems(WORKERS, SERVERS, strategy="{kind: diloco, quorum: 3}")
    assert line == (
        "3: error strategy-counts a quorum of 3 cannot be reached with 2 worker groups: set it to 2 or less"
    )
    for setting in ("quorum", "grace_s"):
        [line] = problems(WORKERS, strategy=f"{{kind: diloco, {setting}: 1}}")
        assert line == (
            f"3: error strategy-needs `{setting}` is for diloco with parameter servers, and there are none: add a pool "
            f"with role ps, or drop `{setting}`"
        )
    streaming = "{kind: diloco, fragments: 4, overlap_steps: 4, mixing: 0.5, wire: int8}"
    assert problems(WORKERS, SERVERS, strategy=streaming) == []
    [line] = problems(WORKERS, SERVERS, strategy="{kind: diloco, server_groups: 2}")
    assert "the parameter servers of diloco are one group" in line


def test_continuing_without_lost_workers_needs_a_smaller_minimum_and_whole_models() -> None:
    strategy = "{kind: all_reduce, on_worker_loss: continue}"
    on_cpus = "{name: w, role: worker, replicas: 3, min_replicas: 2}"
    assert problems(on_cpus, strategy=strategy) == []
    assert problems("{name: w, role: worker, replicas: 3, min_replicas: 2, gpus: 2}", strategy=strategy) == []
    [line] = problems("{name: w, role: worker, replicas: 3}", strategy=strategy)
    assert line.startswith("5: warning worker-loss pool `w` cannot lose a worker without a restart: set its")
    [line] = problems(on_cpus, strategy="{kind: all_reduce, on_worker_loss: continue, shard: all}")
    assert line.startswith("3: error worker-loss with `shard`, a lost worker takes its part of the parameters with it")


def test_sharding_under_another_strategy_is_an_error_and_its_settings_without_it_a_warning() -> None:
    strategy = "{kind: sandblaster, shard: all, shard_modules: [Block]}"
    lines = problems(WORKERS, "{name: s, role: ps, replicas: 1}", strategy=strategy)
    users = "all_reduce, downpour and diloco; sandblaster does not use it"
    assert f"3: error strategy-ignores `shard` is for {users}" in lines
    assert f"3: warning strategy-ignores `shard_modules` is for {users}" in lines
    (line,) = problems(WORKERS, strategy="{kind: all_reduce, shard_modules: [Block]}")
    assert (
        line
        == "3: warning strategy-ignores `shard_modules` does nothing while `shard` is none. Set `shard` to all or host"
    )
    assert problems(WORKERS, strategy="{kind: all_reduce, shard: host, shard_modules: [Block]}") == []


@pytest.mark.parametrize(("kind", "more"), [("diloco", []), ("downpour", ["{name: s, role: ps, replicas: 1}"])])
def test_a_worker_group_of_one_rank_has_nothing_to_shard(kind: str, more: list[str]) -> None:
    for strategy, pool in (
        (f"{{kind: {kind}, shard: all}}", "{name: w, role: worker, replicas: 4, gpus: 1}"),
        (f"{{kind: {kind}, shard: all, worker_groups: 3}}", "{name: w, role: worker, replicas: 4}"),
    ):
        [line] = problems(pool, *more, strategy=strategy)
        assert line.startswith("3: error strategy-counts `shard` divides a model over the ranks of a worker group, but")
    for strategy, pool in (
        (f"{{kind: {kind}, shard: all}}", "{name: w, role: worker, replicas: 4, gpus: 2}"),
        (f"{{kind: {kind}, shard: host, worker_groups: 2}}", "{name: w, role: worker, replicas: 4}"),
    ):
        assert problems(pool, *more, strategy=strategy) == []


def test_a_lone_worker_has_nothing_to_reduce() -> None:
    lone = "{name: w, role: worker, replicas: 1}"
    [line] = problems(lone, REDUCERS, strategy="{kind: reduction_server}")
    assert line.startswith("3: error strategy-counts reduction_server sums the gradients of 2 workers or more")
    assert (
        problems("{name: w, role: worker, replicas: 1, gpus: 2}", REDUCERS, strategy="{kind: reduction_server}") == []
    )


def test_another_framework_s_servers_are_its_own_affair() -> None:
    assert problems(WORKERS, SERVERS, program="{launcher: command, command: [python, a.py]}") == []


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        ("{kind: downpour, worker_groups: 3}", "3 worker groups cannot be made of 2 workers"),
        (
            "{kind: downpour, server_groups: 2}",
            "the parameter servers of downpour are one group, which share the parameters among themselves, and not 2: "
            "drop `server_groups`",
        ),
        ("{kind: sandblaster, backup_workers: 2}", "`backup_workers` is 2, and leaves none of the 2 trainers to count"),
    ],
)
def test_counts_that_cannot_be(strategy: str, line: str) -> None:
    assert problems(WORKERS, SERVERS, strategy=strategy) == [f"3: error strategy-counts {line}"]


def test_hogwild_has_as_many_server_groups_as_worker_groups() -> None:
    assert problems(WORKERS, strategy="{kind: hogwild, server_groups: 2}") == []
    line = "in hogwild every worker group serves its own share of the parameters: drop `server_groups`"
    assert problems(WORKERS, strategy="{kind: hogwild, server_groups: 3}") == [f"3: warning strategy-ignores {line}"]
    line = "`server_groups` does nothing: all_reduce has no parameter servers"
    assert problems(WORKERS, strategy="{kind: all_reduce, server_groups: 3}") == [f"3: warning strategy-ignores {line}"]


def test_a_chief_and_one_worker_are_one_group_which_is_hardly_meant() -> None:
    chief, worker = "{name: c, role: chief, replicas: 1}", "{name: w, role: worker, replicas: 1}"
    (found,) = problems(chief, worker, strategy="{kind: hogwild}")
    assert found.startswith("3: warning strategy-counts hogwild has one group here")
    assert problems(chief, worker, strategy="{kind: hogwild, worker_groups: 1}") == []
    assert problems("{name: w, role: worker, replicas: 2}", strategy="{kind: hogwild}") == []


def test_a_bound_of_staleness_that_groups_in_turns_exceed_is_a_warning() -> None:
    strategy = "{kind: downpour, max_staleness: 2}"
    assert problems(WORKERS, SERVERS, strategy=strategy) == [
        "3: warning strategy-counts the pushes of 2 groups that take turns are 3 versions old, and would be dropped "
        "with `max_staleness` 2: set it to 3 or more"
    ]
    assert problems(WORKERS, SERVERS, strategy="{kind: downpour, worker_groups: 1, max_staleness: 0}") == []


@pytest.mark.parametrize(
    "setting",
    [
        "worker_groups: 2",
        "backup_workers: 1",
        "warm_start_steps: 5",
        "push_every: 2",
        "max_staleness: 1",
        "sync_every: 1",
    ],
)
def test_settings_of_other_strategies(setting: str) -> None:
    [line] = problems(WORKERS, strategy=f"{{kind: all_reduce, {setting}}}")
    assert line.startswith("3: warning strategy-ignores")


def test_continuing_without_lost_workers_needs_a_synchronous_strategy_and_min_replicas() -> None:
    continuing = "{kind: KIND, on_worker_loss: continue}"
    few = "{name: workers, role: worker, replicas: 2, min_replicas: 1}"
    reducers = "{name: reducers, role: reducer, replicas: 2}"
    assert problems(few, strategy=continuing.replace("KIND", "all_reduce")) == []
    assert problems(few, reducers, strategy=continuing.replace("KIND", "reduction_server")) == []
    on_gpus = "{name: workers, role: worker, replicas: 2, min_replicas: 1, gpus: 1}"
    assert problems(on_gpus, reducers, strategy=continuing.replace("KIND", "reduction_server")) == []
    [line] = problems(
        on_gpus.replace("gpus: 1", "gpus: 2"), reducers, strategy=continuing.replace("KIND", "reduction_server")
    )
    assert "error worker-loss pool `workers` has 2 GPUs for each replica" in line
    [line] = problems(few, strategy=continuing.replace("KIND", "hogwild"))
    assert "error worker-loss hogwild cannot continue without a lost worker in this version" in line
    [line] = problems("{name: workers, role: worker, replicas: 2}", strategy=continuing.replace("KIND", "all_reduce"))
    assert "warning worker-loss pool `workers` cannot lose a worker without a restart" in line


# Tests of problems of pins and listed hosts


@pytest.mark.parametrize(
    ("pin", "line"),
    [
        ("worker-9: gpu-a", "unknown-replica there is no replica `worker-9` to pin; the last worker is `worker-1`"),
        ("wroker-1: gpu-a", "unknown-replica there is no replica `wroker-1` to pin; did you mean `worker-1`?"),
        ("work: gpu-a", "unknown-replica there is no replica `work` to pin; did you mean `worker-0`?"),
        ("zebra-1: gpu-a", "unknown-replica there is no replica `zebra-1` to pin"),
        ("worker-0: gpu-c", "unknown-host the fleet has no host `gpu-c`; did you mean `gpu-"),
        ("worker-0: 'gpu-a:4-5'", "unknown-gpu gpu-a has no GPU 4; it has 4 GPUs"),
        ("worker-0: 'cpu:0-1'", "unknown-gpu cpu has no GPU 0; it has no GPU"),
        ("worker-0: 'gpu-a:1'", "pin-gpus worker-0 takes 2 GPUs, but is pinned to 1"),
        ("worker-0: 'gpu-a:cpu'", "pin-gpus worker-0 takes 2 GPUs, but is pinned to 0"),
        ("worker-0: 'gpu-a:'", "bad-pin in 'gpu-a:' the GPUs must be numbers"),
        ("worker-0: 'gpu-a:3-1'", "bad-pin in 'gpu-a:3-1' the range 3-1 runs backwards"),
        ("worker-0: 'gpu-a:1,1'", "bad-pin 'gpu-a:1,1' names a GPU twice"),
        ("worker-0: ''", "bad-pin '' is not a host"),
        ("worker-0: 'gpu-a:0-9999'", "bad-pin in 'gpu-a:0-9999' there is no GPU 9999"),
    ],
)
def test_pins_that_cannot_be(pin: str, line: str) -> None:
    hosts = [host("gpu-a", 4), host("gpu-b", 4), host("cpu")]
    found = problems("{name: w, role: worker, replicas: 2, gpus: 2}", pins=f"{{{pin}}}", hosts=hosts)
    assert found[0].startswith(f"6: error {line}")


def test_two_replicas_pinned_to_one_gpu() -> None:
    found = problems(
        "{name: w, role: worker, replicas: 2, gpus: 2}", pins="{worker-0: 'gpu-a:0-1', worker-1: 'gpu-a:1,2'}"
    )
    assert found == ["6: error pin-clash worker-1 and worker-0 are both pinned to gpu-a:1"]


def test_a_pin_wins_over_the_pool_s_list_and_says_so() -> None:
    found = problems("{name: w, role: worker, replicas: 1, hosts: [a]}", pins="{worker-0: b}")
    assert found == ["6: warning pin-outside worker-0 is pinned to b, which pool `w` does not list; it goes there"]


def test_gpus_of_a_host_that_was_never_checked_are_taken_on_trust() -> None:
    pool = "{name: w, role: worker, replicas: 1, gpus: 1}"
    assert problems(pool, pins="{worker-0: 'new:7'}", hosts=[HostFacts("new")]) == []


def test_a_listed_host_that_the_fleet_lacks() -> None:
    found = problems(
        "{name: w, role: worker, replicas: 1, hosts: [gpu-a, gpu-bb]}", hosts=[host("gpu-a"), host("gpu-b")]
    )
    assert found == ["5: error unknown-host the fleet has no host `gpu-bb`; did you mean `gpu-b`?"]


def test_a_file_with_errors_everywhere_is_checked_in_seconds() -> None:
    hosts = [host(f"gpu-{index}") for index in range(256)]
    pools = [f"{{name: w{index}, role: worker, replicas: 1, hosts: [gpv-{index}]}}" for index in range(3000)]
    pins = ", ".join(f"wroker-{index}: gpu-0" for index in range(3000))
    began = time.process_time()
    assert len(problems(*pools, pins=f"{{{pins}}}", hosts=hosts)) == MAX_PROBLEMS
    keys = "".join(f"replcas{index}: 1\n" for index in range(40_000))
    text = f"version: 1\nname: x\npools: [{WORKERS}]\nprogram: {{script: a}}\n{keys}"
    assert len(topology_from_text(text).problems) == MAX_PROBLEMS
    assert time.process_time() - began < 10  # CPU time does not depend on other processes of the machine.


def test_near_misses_ignore_capitals_and_dashes() -> None:
    assert near_miss("GPU-MODEL", ["gpu_model", "gpus"]) == "gpu_model"
    assert near_miss("zebra", ["gpu_model", "gpus"]) is None
