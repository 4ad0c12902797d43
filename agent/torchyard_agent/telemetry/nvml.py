"""Samples of the NVIDIA GPUs of this host. If a GPU fails, its sample contains a `problem`. No exception is raised."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from torchyard_agent.telemetry import nvml_bindings as library
from torchyard_agent.telemetry.nvml_bindings import NvmlLibrary, NvmlUnavailable

__all__ = ["Gpu", "Nvml", "NvmlUnavailable"]

_ECC_EVERY = 10
"""Number of samples between two reads of ECC errors, which are rare and take long to read."""
_MAX_EVENTS = 16
"""Maximum number of XID events that are read in one sample."""


class Gpu:
    """One GPU: its constant properties, and the latest values of readings that are slow or rarely change."""

    __slots__ = ("ecc_errors", "handle", "index", "memory_mb", "name", "problem", "unsupported", "uuid", "xid")

    def __init__(self, index: int):
        self.index = index
        self.handle: Any = None
        self.uuid: str | None = None
        self.name = "GPU"
        self.memory_mb: int | None = None
        self.problem: str | None = None
        self.ecc_errors: int | None = None
        self.xid: dict[str, Any] | None = None
        self.unsupported: set[str] = set()
        """Values that this GPU or driver does not support."""


class _GpuError(Exception):
    """Raised if the GPU does not respond. The argument is NVML's error code."""


class Nvml:
    """An initialized NVML library. It must be closed when it is not in use, because it blocks driver updates."""

    def __init__(self) -> None:
        """Initializes NVML. Raises NvmlUnavailable if NVML cannot be used on this host."""
        self._library = NvmlLibrary()
        self._samples = 0
        self._capacity = 64
        self._events: Any = None
        self._closed = False
        self._processes = ctypes.create_string_buffer(self._capacity * library.PROCESS_PROTECTED.size)
        count = ctypes.c_uint()
        code = self._library.count(ctypes.byref(count)) if self._library.count else library.FUNCTION_NOT_FOUND
        if code != library.SUCCESS:
            self.close()
            raise NvmlUnavailable(f"NVML does not count the GPUs: {self._library.error_text(code)}")
        self.gpus = [self._open_gpu(index) for index in range(count.value)]
        self._subscribe_to_xids()

    @classmethod
    def open(cls) -> Nvml | None:
        """Returns an initialized instance, or None if NVML cannot be used on this host."""
        try:
            return cls()
        except NvmlUnavailable:
            return None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._events is not None and self._library.event_set_free:
            self._library.event_set_free(self._events)
        if self._library.shutdown:
            self._library.shutdown()

    def driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(library.NAME_BYTES)
        function = self._library.driver_version
        if function is None or function(text, library.NAME_BYTES) != library.SUCCESS:
            return None
        return text.value.decode(errors="replace")

    def cuda_version(self) -> str | None:
        """Returns the newest version of CUDA that the driver supports, such as `12.4`, or None if it is unknown."""
        version = ctypes.c_int()
        function = self._library.cuda_version
        if function is None or function(ctypes.byref(version)) != library.SUCCESS or version.value <= 0:
            return None
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def health(self, gpu: Gpu) -> dict[str, Any]:
        """Returns the health of a GPU: {`bus_id`, `ecc_errors`, `repair_pending`, `repair_failed`, `problem`}.

        `bus_id` has the format of the kernel log (`0000:3b:00`). `repair_pending` means that memory will be remapped at
        the next reset, and `repair_failed` means that no spare memory is left. Values that the GPU does not support are
        None.
        """
        found: dict[str, Any] = dict.fromkeys(("bus_id", "ecc_errors", "repair_pending", "repair_failed"))
        found["problem"] = gpu.problem
        if gpu.handle is None:
            return found
        nvml, pci = self._library, library.PciInfo()
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        try:
            if self._call(gpu, "pci", nvml.pci, ctypes.byref(pci)):
                found["bus_id"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"
            found["ecc_errors"] = self._ecc(gpu)
            rows = [ctypes.byref(value) for value in (corrected, uncorrected, pending, failed)]
            if self._call(gpu, "remapped rows", nvml.remapped_rows, *rows):
                found["repair_pending"], found["repair_failed"] = bool(pending.value), bool(failed.value)
            elif self._call(gpu, "retired pages", nvml.retired_pending, ctypes.byref(pending)):
                # GPUs older than Ampere retire whole pages instead of remapping rows.
                found["repair_pending"] = bool(pending.value)
        except _GpuError as failed_gpu:
            found["problem"] = self._sentence(gpu, failed_gpu.args[0])
        return found

    def running(self, gpu: Gpu) -> list[dict[str, Any]]:
        """Returns the processes on the GPU as [{`pid`, `memory_mb`, `computes`}], or [] if the GPU does not respond."""
        try:
            return self._running(gpu) if gpu.handle is not None else []
        except _GpuError:
            return []

    def sample(self) -> list[dict[str, Any]]:
        """Measures all GPUs. Names and units are as in `Sampler.sample`.

        Values that a GPU does not support are None.
        """
        self._read_xids()
        entries = [self._sample(gpu) for gpu in self.gpus]
        self._samples += 1
        return entries

    def _open_gpu(self, index: int) -> Gpu:
        gpu = Gpu(index)
        handle = ctypes.c_void_p()
        code = self._library.handle(index, ctypes.byref(handle))
        if code != library.SUCCESS:
            gpu.problem = self._sentence(gpu, code)
            return gpu
        gpu.handle = handle
        try:
            gpu.uuid = self._text(gpu, "uuid", self._library.uuid)
            gpu.name = self._text(gpu, "name", self._library.name) or gpu.name
            gpu.memory_mb = self._memory(gpu)[0]
        except _GpuError as failed:
            gpu.problem = self._sentence(gpu, failed.args[0])
        return gpu

    def _sample(self, gpu: Gpu) -> dict[str, Any]:
        measured = ("memory_used_mb", "utilisation", "power_w", "temperature_c", "sm_clock_mhz", "memory_clock_mhz")
        entry: dict[str, Any] = {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "memory_mb": gpu.memory_mb,
            **dict.fromkeys(measured),
            "throttling": [],
            "ecc_errors": gpu.ecc_errors,
            "xid": gpu.xid,
            "processes": [],
            "problem": gpu.problem,
        }
        if gpu.handle is None:
            return entry
        nvml = self._library
        try:
            entry["memory_mb"], entry["memory_used_mb"] = self._memory(gpu)
            utilization = library.Utilization()
            if self._call(gpu, "utilisation", nvml.utilization, ctypes.byref(utilization)):
                entry["utilisation"] = int(utilization.gpu)
            power = self._number(gpu, "power", nvml.power)
            entry["power_w"] = None if power is None else round(power / 1000, 1)
            entry["temperature_c"] = self._number(gpu, "temperature", nvml.temperature, library.TEMPERATURE_GPU)
            entry["sm_clock_mhz"] = self._number(gpu, "sm clock", nvml.clock, library.CLOCK_SM)
            entry["memory_clock_mhz"] = self._number(gpu, "memory clock", nvml.clock, library.CLOCK_MEMORY)
            entry["throttling"] = self._throttling(gpu)
            if self._samples % _ECC_EVERY == 0:
                gpu.ecc_errors = self._ecc(gpu)
            entry["ecc_errors"] = gpu.ecc_errors
            entry["processes"] = self._running(gpu)
            gpu.problem = entry["problem"] = None
        except _GpuError as failed:
            gpu.problem = entry["problem"] = self._sentence(gpu, failed.args[0])
        return entry

    def _call(self, gpu: Gpu, what: str, function: Any, *arguments: Any) -> bool:
        """Calls an NVML function, which writes to `arguments`, and returns whether it succeeded.

        Raises _GpuError if the GPU does not respond.
        """
        if function is None or what in gpu.unsupported:
            return False
        code = function(gpu.handle, *arguments)
        if code == library.SUCCESS:
            return True
        if code in (library.NOT_SUPPORTED, library.FUNCTION_NOT_FOUND):
            gpu.unsupported.add(what)
        elif code in _FATAL:
            raise _GpuError(code)
        return False

    def _number(self, gpu: Gpu, what: str, function: Any, *selectors: int) -> int | None:
        value = ctypes.c_uint()
        return int(value.value) if self._call(gpu, what, function, *selectors, ctypes.byref(value)) else None

    def _text(self, gpu: Gpu, what: str, function: Any) -> str | None:
        text = ctypes.create_string_buffer(library.NAME_BYTES)
        if not self._call(gpu, what, function, text, library.NAME_BYTES):
            return None
        return text.value.decode(errors="replace")

    def _memory(self, gpu: Gpu) -> tuple[int | None, int | None]:
        """Returns the total and the used memory in MiB. Unknown values are None."""
        newer = library.MemoryV2(version=library.MEMORY_V2_VERSION)
        if self._call(gpu, "memory v2", self._library.memory_v2, ctypes.byref(newer)):
            return int(newer.total) >> 20, int(newer.used) >> 20
        memory = library.Memory()
        if self._call(gpu, "memory", self._library.memory, ctypes.byref(memory)):
            return int(memory.total) >> 20, int(memory.used) >> 20
        return gpu.memory_mb, None

    def _throttling(self, gpu: Gpu) -> list[str]:
        reasons = ctypes.c_ulonglong()
        if not self._call(gpu, "throttling", self._library.throttling, ctypes.byref(reasons)):
            return []
        return [word for bit, word in library.THROTTLING.items() if reasons.value & bit]

    def _ecc(self, gpu: Gpu) -> int | None:
        errors = ctypes.c_ulonglong()
        selectors = (library.ECC_UNCORRECTED, library.ECC_VOLATILE)
        found = self._call(gpu, "ecc", self._library.ecc, *selectors, ctypes.byref(errors))
        return int(errors.value) if found else None

    def _running(self, gpu: Gpu) -> list[dict[str, Any]]:
        """Returns the processes on the GPU, with the GPU memory that they use.

        A process that is on both lists, compute and graphics, is returned only once.
        """
        found: dict[int, int | None] = {}
        computing: set[int] = set()
        for what, function in (("compute", self._library.compute), ("graphics", self._library.graphics)):
            for pid, used in self._process_list(gpu, what, function):
                known = found.get(pid)
                found[pid] = used if known is None else max(known, used or 0)
                if what == "compute":
                    computing.add(pid)
        return [{"pid": pid, "memory_mb": used, "computes": pid in computing} for pid, used in found.items()]

    def _process_list(self, gpu: Gpu, what: str, function: Any) -> list[tuple[int, int | None]]:
        layout = self._library.process
        count = ctypes.c_uint(self._capacity)
        for _ in range(3):  # The list of processes may have grown between two calls.
            if function is None or what in gpu.unsupported:
                return []
            code = function(gpu.handle, ctypes.byref(count), self._processes)
            if code == library.INSUFFICIENT_SIZE:
                self._capacity = 2 * max(count.value, self._capacity)
                self._processes = ctypes.create_string_buffer(self._capacity * library.PROCESS_PROTECTED.size)
                count.value = self._capacity
                continue
            if code in _FATAL:
                raise _GpuError(code)
            if code == library.NOT_SUPPORTED:
                gpu.unsupported.add(what)
            if code != library.SUCCESS:
                return []
            rows = layout.iter_unpack(memoryview(self._processes)[: count.value * layout.size])
            return [(row[0], None if row[1] == library.NOT_AVAILABLE else row[1] >> 20) for row in rows]
        return []

    def _sentence(self, gpu: Gpu, code: int) -> str:
        name = f"GPU {gpu.index} ({gpu.name})"
        if code == library.GPU_IS_LOST:
            return f"{name} has fallen off the bus and does not answer. Reset it or reboot the host."
        return f"{name} does not answer: {self._library.error_text(code)}."

    def _subscribe_to_xids(self) -> None:
        """Subscribes to XID errors. Errors of the subscription itself are ignored."""
        nvml = self._library
        if not (nvml.event_set_create and nvml.event_register and nvml.event_wait):
            return
        events = ctypes.c_void_p()
        if nvml.event_set_create(ctypes.byref(events)) != library.SUCCESS:
            return
        self._events = events
        for gpu in self.gpus:
            if gpu.handle is not None:
                nvml.event_register(gpu.handle, ctypes.c_ulonglong(library.EVENT_XID), events)

    def _read_xids(self) -> None:
        if self._events is None:
            return
        event = library.EventData()
        for _ in range(_MAX_EVENTS):
            if self._library.event_wait(self._events, ctypes.byref(event), 0) != library.SUCCESS:
                return
            if event.type & library.EVENT_XID:
                for gpu in self.gpus:
                    if gpu.handle is not None and gpu.handle.value == event.device:
                        gpu.xid = {"code": int(event.data), "time": round(time.time(), 3)}


_FATAL = frozenset({1, 9, library.GPU_IS_LOST, 16, 18})
"""Error codes after which no other call for the GPU can succeed.

They mean that NVML is not initialized, there is no driver, the GPU is lost or must be reset, or the driver was
replaced.
"""
