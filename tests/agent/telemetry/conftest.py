"""Fixtures of the fake NVML library, built once for all tests that use its standard build."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.fake_nvml import build_fake_nvml


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpu_file(tmp_path: Path) -> Path:
    """The file with the values of the fake NVML library."""
    return tmp_path / "gpus"


@pytest.fixture
def nvml_environment(nvml_folder: Path, gpu_file: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(nvml_folder), "FAKE_NVML_FILE": str(gpu_file)}
