"""Tests of access to NVML, through a real shared library in a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.agent.telemetry.sample_programs import AGENT, Conversation, conversation

NOT_SUPPORTED = 3
NEWER = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetConfComputeMemSizeInfo",
    "nvmlDeviceGetRunningProcessDetailList",
]
"""Functions that drivers from 2021 do not have."""
MUCH_NEWER = [
    *NEWER,
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetTotalEccErrors",
]
PROCESSES = [(4000 + number, 100 + number) for number in range(5)]


def open_nvml(python: Conversation) -> None:
    python.say("from torchyard_agent.telemetry.nvml import Nvml")
    python.say("nvml = Nvml()")


def test_every_value_of_a_gpu_is_sampled(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    gpu = FakeGpu("GPU-a", throttling=0x1 | 0x4 | 0x40, ecc_errors=2, compute=[(11, 500)], graphics=[(12, None)])
    write_gpus(gpu_file, [gpu, FakeGpu("GPU-b", name="NVIDIA A100", memory_mb=40960)])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        first, second = python.say("(nvml.sample())")
        assert python.say("(nvml.driver_version())") == "550.54.15"
    assert first == {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_mb": 81559,
        "memory_used_mb": 1024,
        "utilisation": 37,
        "power_w": 301.5,
        "temperature_c": 61,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttling": ["sw_power_cap", "hw_thermal_slowdown"],
        "ecc_errors": 2,
        "xid": None,
        "processes": [
            {"pid": 11, "memory_mb": 500, "computes": True},
            {"pid": 12, "memory_mb": None, "computes": False},
        ],
        "problem": None,
    }
    assert (second["index"], second["uuid"], second["name"], second["memory_mb"]) == (1, "GPU-b", "NVIDIA A100", 40960)


def test_the_health_of_a_gpu_is_reported(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    worn = FakeGpu("GPU-b", bus=0xAF, ecc_errors=7, repair_pending=True, repair_failed=True, compute=[(11, 500)])
    write_gpus(gpu_file, [FakeGpu("GPU-a"), worn, FakeGpu("GPU-c", lost=True)], cuda=13010)
    fine = {"bus_id": "0000:3b:00", "ecc_errors": 0, "repair_pending": False, "repair_failed": False, "problem": None}
    with conversation(nvml_environment) as python:
        open_nvml(python)
        first, second, lost = python.say("([nvml.health(gpu) for gpu in nvml.gpus])")
        running = {"pid": 11, "memory_mb": 500, "computes": True}
        assert python.say("([nvml.running(gpu) for gpu in nvml.gpus])") == [[], [running], []]
        assert python.say("(nvml.cuda_version())") == "13.1"
    assert first == fine
    assert second == {
        **fine,
        "bus_id": "0000:af:00",
        "ecc_errors": 7,
        "repair_pending": True,
        "repair_failed": True,
    }
    assert "fallen off the bus" in lost["problem"]


def test_values_that_an_older_driver_lacks_are_unknown(tmp_path: Path, gpu_file: Path) -> None:
    missing = ["nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors"]
    folder = build_fake_nvml(tmp_path / "nvml", without=[*missing, "nvmlSystemGetCudaDriverVersion_v2"])
    write_gpus(gpu_file, [FakeGpu("GPU-a", repair_pending=True)])
    with conversation({"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_FILE": str(gpu_file)}) as python:
        open_nvml(python)
        assert python.say("(nvml.health(nvml.gpus[0]))") == {
            "bus_id": None,
            "ecc_errors": None,
            # The driver has no function for remapped rows, so the value is derived from retired pages.
            "repair_pending": True,
            "repair_failed": None,
            "problem": None,
        }
        assert python.say("(nvml.cuda_version())") is None


def test_a_process_that_computes_and_draws_counts_once(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a", compute=[(11, 500)], graphics=[(11, 700), (12, 5)])])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        assert python.say("(nvml.sample()[0]['processes'])") == [
            {"pid": 11, "memory_mb": 700, "computes": True},
            {"pid": 12, "memory_mb": 5, "computes": False},
        ]


@pytest.mark.parametrize(
    ("without", "protected"),
    [
        ((), False),
        (("nvmlDeviceGetRunningProcessDetailList",), True),
        (("nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"), False),
        (NEWER, False),
        (MUCH_NEWER, False),
    ],
    ids=["now", "535.43", "510", "470", "418"],
)
def test_processes_are_read_in_every_format_of_the_driver(
    tmp_path: Path, gpu_file: Path, without: tuple[str, ...], protected: bool
) -> None:
    folder = build_fake_nvml(tmp_path / "nvml", without=without, protected_field=protected)
    write_gpus(gpu_file, [FakeGpu("GPU-a", compute=PROCESSES, graphics=[(7, 9)])])
    with conversation({"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_FILE": str(gpu_file)}) as python:
        open_nvml(python)
        (gpu,) = python.say("(nvml.sample())")
    assert [(process["pid"], process["memory_mb"]) for process in gpu["processes"]] == [*PROCESSES, (7, 9)]
    assert (gpu["utilisation"], gpu["memory_mb"], gpu["problem"]) == (37, 81559, None)
    # Only the newer function reports separately how much memory the driver has reserved.
    assert gpu["memory_used_mb"] == (1024 + 620 if "nvmlDeviceGetMemoryInfo_v2" in without else 1024)


def test_a_process_list_beyond_the_buffer_is_complete(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    many = [(1000 + number, number) for number in range(300)]
    write_gpus(gpu_file, [FakeGpu("GPU-a", compute=many)])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        processes = python.say("(nvml.sample()[0]['processes'])")
    assert [(process["pid"], process["memory_mb"]) for process in processes] == many


def test_unsupported_values_are_none_and_the_others_are_sampled(
    nvml_environment: dict[str, str], gpu_file: Path
) -> None:
    unsupported = {
        "nvmlDeviceGetPowerUsage": NOT_SUPPORTED,
        "nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED,
        "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
        "nvmlDeviceGetCurrentClocksEventReasons": NOT_SUPPORTED,
        "nvmlDeviceGetComputeRunningProcesses_v3": NOT_SUPPORTED,
        "nvmlDeviceGetMemoryInfo_v2": NOT_SUPPORTED,
        "nvmlDeviceGetTemperature": 999,
    }
    write_gpus(gpu_file, [FakeGpu("GPU-a", failing=unsupported, graphics=[(5, 6)])])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        python.say("nvml.sample()")
        (gpu,) = python.say("(nvml.sample())")
    assert [gpu[name] for name in ("power_w", "ecc_errors", "utilisation", "temperature_c")] == [None] * 4
    assert gpu["throttling"] == []
    assert gpu["processes"] == [{"pid": 5, "memory_mb": 6, "computes": False}]
    assert (gpu["memory_used_mb"], gpu["sm_clock_mhz"], gpu["problem"]) == (1644, 1755, None)


def test_a_lost_gpu_has_a_problem_and_the_others_are_sampled(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a"), FakeGpu("GPU-b")])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        assert [gpu["problem"] for gpu in python.say("(nvml.sample())")] == [None, None]
        write_gpus(gpu_file, [FakeGpu("GPU-a", utilisation=99), FakeGpu("GPU-b", lost=True)])
        well, lost = python.say("(nvml.sample())")
        write_gpus(gpu_file, [FakeGpu("GPU-a"), FakeGpu("GPU-b")])
        back = python.say("(nvml.sample())")
    assert (well["utilisation"], well["problem"]) == (99, None)
    assert (lost["uuid"], lost["utilisation"]) == ("GPU-b", None)
    assert lost["problem"].startswith("GPU 1 (NVIDIA H100 80GB HBM3) has fallen off the bus")
    assert back[1]["problem"] is None


def test_a_gpu_that_is_lost_from_the_start_has_a_problem(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a", lost=True), FakeGpu("GPU-b")])
    with conversation(nvml_environment) as python:
        open_nvml(python)
        lost, well = python.say("(nvml.sample())")
    assert lost["problem"].startswith("GPU 0 (GPU) has fallen off the bus")
    assert (well["uuid"], well["problem"]) == ("GPU-b", None)


def test_the_last_xid_of_a_gpu_is_kept(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b")]
    write_gpus(gpu_file, gpus)
    with conversation(nvml_environment) as python:
        open_nvml(python)
        python.say("nvml.sample()")
        write_gpus(gpu_file, gpus, xids=[(1, 31), (1, 79)])
        first, second = python.say("(nvml.sample())")
        assert python.say("(nvml.sample()[1]['xid'])") == second["xid"]
    assert first["xid"] is None
    assert second["xid"]["code"] == 79


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has NVIDIA's library")
def test_a_host_without_the_library_has_no_nvml() -> None:
    with conversation({}) as python:
        python.say("from torchyard_agent.telemetry.nvml import Nvml")
        assert python.say("(Nvml.open() is None)")


def test_a_driver_that_does_not_start_raises_the_reason(nvml_environment: dict[str, str], gpu_file: Path) -> None:
    write_gpus(gpu_file, [FakeGpu("GPU-a")], init=18)
    source = (
        f"import sys; sys.path.insert(0, {str(AGENT)!r})\n"
        "from torchyard_agent.telemetry.nvml import Nvml, NvmlUnavailable\n"
        "assert Nvml.open() is None\n"
        "try: Nvml()\n"
        "except NvmlUnavailable as error: print(error)\n"
    )
    environment = {**os.environ, **nvml_environment}
    result = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "NVML does not start: Driver/library version mismatch (NVML error 18)\n"


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
def test_the_real_library_agrees_with_nvidia_smi() -> None:
    query = "index,uuid,name,memory.total,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    with conversation({}) as python:
        open_nvml(python)
        gpus = python.say("(nvml.sample())")
    assert len(gpus) == len(shown)
    for gpu, line in zip(gpus, shown, strict=True):
        index, identity, name, memory, temperature = line.split(", ")
        assert (gpu["index"], gpu["uuid"], gpu["name"]) == (int(index), identity, name)
        assert gpu["memory_mb"] == pytest.approx(int(memory), abs=1)
        assert gpu["temperature_c"] == pytest.approx(int(temperature), abs=5)
        assert gpu["problem"] is None
        assert 0 <= gpu["memory_used_mb"] <= gpu["memory_mb"]
        assert gpu["power_w"] is None or gpu["power_w"] > 0
