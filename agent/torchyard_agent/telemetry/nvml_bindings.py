"""ctypes bindings of NVIDIA's management library: functions and structures.

The dynamic loader finds the library, so LD_LIBRARY_PATH has its usual effect. For each function, the newest name is
tried first, and then older names, because drivers as old as R418 are in use. Source:
https://docs.nvidia.com/deploy/nvml-api/ and nvml.h of CUDA 11 to 13.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

SONAME = "libnvidia-ml.so.1"

SUCCESS = 0
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE as a 64-bit value."""

TEMPERATURE_GPU = 0
CLOCK_SM = 1
CLOCK_MEMORY = 2
ECC_UNCORRECTED = 1
ECC_VOLATILE = 0
"""Selects the ECC counters that are reset when the driver is loaded."""
EVENT_XID = 0x8

THROTTLING = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""The reasons for reduced GPU clocks, by their bit in NVML's mask, except idleness and clock settings."""

NAME_BYTES = 96


class Memory(ctypes.Structure):
    """The structure nvmlMemory_t, in which `used` includes the driver's reserved memory."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class MemoryV2(ctypes.Structure):
    """The structure nvmlMemory_v2_t, in which `used` is the value shown by nvidia-smi."""

    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class PciInfo(ctypes.Structure):
    """A GPU's PCI address (NVML's structure nvmlPciInfo_t)."""

    _fields_ = [
        ("legacy_bus_id", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")),
        ("bus_id", ctypes.c_char * 32),
    ]


MEMORY_V2_VERSION = ctypes.sizeof(MemoryV2) | 2 << 24


class Utilization(ctypes.Structure):
    """The structure nvmlUtilization_t, with values in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class EventData(ctypes.Structure):
    """An event such as an XID error (NVML's structure nvmlEventData_t)."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


PROCESS_V1 = struct.Struct("@IQ")
"""The structure nvmlProcessInfo_v1_t: a PID, and the GPU memory of the process in bytes."""
PROCESS_V2 = struct.Struct("@IQII")
"""The structure nvmlProcessInfo_v2_t, which adds the GPU instance and compute instance (MIG)."""
PROCESS_PROTECTED = struct.Struct("@IQIIQ")
"""The structure nvmlProcessInfo_v2_t with an additional field for protected bytes.

Only the _v3 functions of some 530 and 535 drivers use it.
"""


class NvmlUnavailable(Exception):
    """Raised if NVML cannot be used on this host. The message gives the reason."""


class NvmlLibrary:
    """The loaded library, with NVML's functions as attributes.

    The attribute of a function that the library does not export is None.
    """

    def __init__(self) -> None:
        """Loads and initializes NVML. Raises NvmlUnavailable if NVML cannot be used on this host."""
        try:
            self._library = ctypes.CDLL(SONAME)
        except OSError as error:
            raise NvmlUnavailable(f"{SONAME} cannot be loaded: {error}") from error
        self._error_string = self.find("nvmlErrorString")
        if self._error_string is not None:
            self._error_string.restype = ctypes.c_char_p
        init = self.find("nvmlInit_v2", "nvmlInit")
        code = FUNCTION_NOT_FOUND if init is None else int(init())
        if code != SUCCESS:
            raise NvmlUnavailable(f"NVML does not start: {self.error_text(code)}")
        self.shutdown = self.find("nvmlShutdown")
        self.count = self.find("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
        self.handle = self.find("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
        self.uuid = self.find("nvmlDeviceGetUUID")
        self.name = self.find("nvmlDeviceGetName")
        self.memory_v2 = self.find("nvmlDeviceGetMemoryInfo_v2")
        self.memory = self.find("nvmlDeviceGetMemoryInfo")
        self.utilization = self.find("nvmlDeviceGetUtilizationRates")
        self.power = self.find("nvmlDeviceGetPowerUsage")
        self.temperature = self.find("nvmlDeviceGetTemperature")
        self.clock = self.find("nvmlDeviceGetClockInfo")
        self.throttling = self.find(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        self.ecc = self.find("nvmlDeviceGetTotalEccErrors")
        self.pci = self.find("nvmlDeviceGetPciInfo_v3")
        self.remapped_rows = self.find("nvmlDeviceGetRemappedRows")
        self.retired_pending = self.find("nvmlDeviceGetRetiredPagesPendingStatus")
        self.driver_version = self.find("nvmlSystemGetDriverVersion")
        self.cuda_version = self.find("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
        self.compute, self.process = self._process_function("Compute")
        self.graphics, _ = self._process_function("Graphics")
        self.event_set_create = self.find("nvmlEventSetCreate")
        self.event_register = self.find("nvmlDeviceRegisterEvents")
        self.event_wait = self.find("nvmlEventSetWait_v2", "nvmlEventSetWait")
        self.event_set_free = self.find("nvmlEventSetFree")

    def find(self, *names: str) -> Any:
        """Returns the first function of these names that the library exports, or None."""
        for name in names:
            try:
                return self._library[name]
            except AttributeError:
                continue
        return None

    def error_text(self, code: int) -> str:
        """Returns NVML's description of an error code."""
        if self._error_string is None:
            return f"error {code}"
        return f"{(self._error_string(code) or b'').decode(errors='replace')} (NVML error {code})"

    def _process_function(self, kind: str) -> tuple[Any, struct.Struct]:
        """Returns the function that lists compute or graphics processes, and the format of its entries."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        newest = self.find(f"{name}_v3")
        if newest is not None:
            # In some versions of NVML, the struct of the _v3 function has an additional field. The first of these two
            # functions was added to NVML together with the field, and the second when the field was removed again. So
            # the struct has the field only if the first function exists and the second does not.
            protected = self.find("nvmlDeviceGetConfComputeMemSizeInfo") is not None
            removed = self.find("nvmlDeviceGetRunningProcessDetailList") is not None
            return newest, PROCESS_PROTECTED if protected and not removed else PROCESS_V2
        second = self.find(f"{name}_v2")
        return (second, PROCESS_V2) if second is not None else (self.find(name), PROCESS_V1)
