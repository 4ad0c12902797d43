"""Tests profile files, and the choice of profiles for a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.advisor.samples import NOW, cpu_hosts, profile
from tests.core.examples import host
from torchyard_core.advisor.profile import Profile, ProfileCache, choose_profiles, read_profile
from torchyard_core.advisor.profile_run import program_settings
from torchyard_core.advisor.trainer_compute import MIB, trainer_compute
from torchyard_core.errors import FileProblem
from torchyard_core.topology.file import topology_from_text

TOPOLOGY = """\
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 1}]
program: {script: train.py, args: [--epochs, "2"]}
"""


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(profile().as_text())
    assert read_profile(file) == profile()


def test_the_time_of_a_chunk_is_optional_in_a_profile() -> None:
    older = Profile.model_validate({**profile().model_dump(exclude={"chunk_cpu_s"})})
    assert trainer_compute(older).chunk_cpu_s is None
    newer = Profile.model_validate({**profile().model_dump(), "chunk_cpu_s": 3e-4})
    assert trainer_compute(newer).chunk_cpu_s == 3e-4


def test_a_file_that_is_no_profile_is_refused_with_the_place_of_the_fault(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(profile().as_text().replace('"batch": 32', '"batch": "many"'))
    newer = tmp_path / "newer.json"
    newer.write_text(profile().as_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(FileProblem, match="the profile has format 99, but this version of Torchyard reads format 1"):
        read_profile(newer)
    with pytest.raises(FileProblem, match=r"this is not a profile \(sizes.0.batch: "):
        read_profile(file)
    with pytest.raises(FileProblem, match="No such file"):
        read_profile(tmp_path / "none.json")


def test_the_cache_has_the_newest_profile_of_each_kind_of_host(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    other = profile(kind="NVIDIA A100")
    for each in (profile(compute_s=9), other, profile()):
        cache.keep(tmp_path / "work", each)
    assert sorted(each.host_kind for each in cache.find(tmp_path / "work", "train.py")) == ["64 CPUs", "NVIDIA A100"]
    assert profile() in cache.find(tmp_path / "work", "train.py")
    assert cache.find(tmp_path / "elsewhere", "train.py") == ()
    next(tmp_path.glob("*.json")).write_text("{")
    assert len(cache.find(tmp_path / "work", "train.py")) == 1


def test_a_profile_of_other_files_is_used_and_said_with_its_age() -> None:
    chosen = choose_profiles([profile()], "another root", cpu_hosts(1), NOW)
    assert chosen.of(cpu_hosts(1)[0]) == profile()
    [remark] = chosen.remarks
    assert remark == ("The profile of 64 CPUs was measured 1 h ago with other files than the working folder has now.")
    assert choose_profiles([profile()], "root", cpu_hosts(1), NOW).remarks == ()


def test_a_profile_of_other_arguments_is_used_and_said() -> None:
    topology = topology_from_text(TOPOLOGY).topology
    other = topology_from_text(TOPOLOGY.replace("replicas: 1", "replicas: 1, env: {BATCH: '64'}")).topology
    more = topology_from_text(TOPOLOGY.replace("replicas: 1", "replicas: 4")).topology
    assert topology is not None
    assert other is not None
    assert more is not None
    assert program_settings(topology) == program_settings(more) != program_settings(other)
    measured = profile().model_copy(update={"settings": program_settings(topology)})

    def remarks(found: Profile, settings: str) -> tuple[str, ...]:
        return choose_profiles([found], "root", cpu_hosts(1), NOW, settings).remarks

    assert remarks(measured, program_settings(more)) == remarks(profile(), program_settings(other)) == ()
    assert remarks(measured, program_settings(other)) == (
        "The profile of 64 CPUs was measured 1 h ago with other arguments or environment than the topology has now.",
    )


def test_a_fleet_without_hosts_of_the_profiled_kind_counts_as_of_that_kind() -> None:
    unchecked = host("new", 0, cpus=8)
    chosen = choose_profiles([profile(kind="NVIDIA A100")], "root", [unchecked], NOW)
    assert chosen.of(unchecked) is not None
    assert "all are assumed to be" in chosen.remarks[0]


def test_a_black_box_is_said_to_be_one() -> None:
    chosen = choose_profiles([profile(black_box=True)], "root", cpu_hosts(1), NOW)
    assert "train.py does not call distribute()" in chosen.remarks[0]
    compute = trainer_compute(profile(black_box=True, compute_s=0.3))
    assert compute.gradient_s == pytest.approx(0.3)
    assert compute.gradients[-1][1] == pytest.approx(0.2)


def test_buckets_are_those_of_the_roles() -> None:
    compute = trainer_compute(profile(megabytes=64 * MIB / 1e6, gradients=64))
    sizes = [size // MIB for _, size in compute.buckets(25 * MIB)]
    assert sizes == [1, 25, 25, 13]
    assert [at for at, _ in compute.buckets(25 * MIB)] == sorted(at for at, _ in compute.buckets(25 * MIB))


def test_times_of_another_batch_size_lie_on_the_line_of_the_measured_ones() -> None:
    whole = profile(compute_s=0.9)
    half = whole.sizes[0].model_copy(
        update={
            "batch": 16,
            "forward": profile(compute_s=0.5).sizes[0].forward,
            "backward": profile(compute_s=0.5).sizes[0].backward,
        }
    )
    both = whole.model_copy(update={"sizes": (*whole.sizes, half)})
    assert trainer_compute(both, 64).gradient_s == pytest.approx(1.7)
    assert trainer_compute(both, 64).samples == 64
    with pytest.raises(ValueError, match="one batch size"):
        trainer_compute(whole, 64)
