"""Tests of the cache of measured bandwidths: storing, damaged files, and the slowest link among hosts."""

from __future__ import annotations

from pathlib import Path

from torchyard_core.launch.bandwidth_cache import BandwidthCache, Measurement

NOW = 1_800_000_000.0


def test_figures_are_kept_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    file, pair = tmp_path / "caches" / "bandwidth.json", ("a", "b")
    BandwidthCache(file).keep({"a|b": Measurement(pair, 1.25e9, NOW)})

    assert BandwidthCache(file).of(pair, "a|b") == Measurement(pair, 1.25e9, NOW)
    assert BandwidthCache(file).of(pair, "a|c").bytes_s is None
    for text in ("[]", "{", '{"a|b": 7}', '{"a|b": {"bytes_s": "much"}}'):
        file.write_text(text)
        assert BandwidthCache(file).of(pair, "a|b").bytes_s is None


def test_the_slowest_measured_link_among_hosts_is_that_of_a_pair_of_them(tmp_path: Path) -> None:
    file = tmp_path / "bandwidth.json"
    cache = BandwidthCache(file)
    rates = {("a", "b"): 3e9, ("b", "c"): 1e9, ("a", "c"): 2e9}
    cache.keep({f"{one}@10.0.0.1|{other}@10.0.0.2": Measurement((one, other), rate, 1.0)
                for (one, other), rate in rates.items()})  # fmt: skip
    assert BandwidthCache(file).slowest(["a", "b", "c", "d"]) == 1e9
    assert BandwidthCache(file).slowest(["a", "c"]) == 2e9
    assert BandwidthCache(file).slowest(["a", "d"]) is None
    assert BandwidthCache(tmp_path / "missing.json").slowest(["a", "b"]) is None
