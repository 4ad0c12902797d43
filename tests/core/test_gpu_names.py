"""Tests of the short names of GPU models, which the calendar, the canvas and the Fleet page show."""

from __future__ import annotations

import pytest

from torchyard_core.gpu_names import model_with_memory, short_model


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H200", "H200"),
        ("Quadro RTX 8000", "RTX 8000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h100", "H100"),
        ("GPU", "GPU"),
    ],
)
def test_a_gpu_is_called_by_its_model(name: str, short: str) -> None:
    assert short_model(name) == short


@pytest.mark.parametrize(
    ("name", "memory", "short"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100 80 GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100 40 GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090 24 GB"),
        ("NVIDIA L40S", 46068, "L40S 45 GB"),
        ("h100", 0, "H100"),
    ],
)
def test_memory_is_in_whole_gigabytes_if_it_is_known(name: str, memory: int, short: str) -> None:
    assert model_with_memory(name, memory) == short
