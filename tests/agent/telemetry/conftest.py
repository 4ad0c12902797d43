"""Fixtures of the standard build of the fake NVML library, which is built only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.fake_nvml import build_fake_nvml


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpu_file(tmp_path: Path) -> Path:
    """Returns the file from which the fake NVML library reads its values."""
    return tmp_path / "gpus"


@pytest.fixture
def nvml_environment(nvml_folder: Path, gpu_file: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(nvml_folder), "FAKE_NVML_FILE": str(gpu_file)}
