"""A fake NVML library, built with gcc and loaded through LD_LIBRARY_PATH like the real library.

    folder = build_fake_nvml(tmp_path) write_gpus(file, [FakeGpu("GPU-1")]) subprocess.run(…, env={"LD_LIBRARY_PATH":
    str(folder), "FAKE_NVML_FILE": str(file)})

Tests replace no other library.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).with_name("nvml.c")


@dataclass(frozen=True)
class FakeGpu:
    """The values of one GPU: memory in MiB, power in mW, and processes as pairs of a PID and memory (MiB or None)."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_mb: int = 81559
    memory_used_mb: int = 1024
    reserved_mb: int = 620
    utilisation: int = 37
    power_mw: int = 301_500
    temperature_c: int = 61
    sm_clock_mhz: int = 1755
    memory_clock_mhz: int = 2619
    throttling: int = 0
    ecc_errors: int = 0
    repair_pending: bool = False
    repair_failed: bool = False
    bus: int = 0x3B
    compute: Sequence[tuple[int, int | None]] = ()
    graphics: Sequence[tuple[int, int | None]] = ()
    lost: bool = False
    failing: dict[str, int] = field(default_factory=dict)
    """Error codes by the names of the NVML functions that fail, such as 3 for NOT_SUPPORTED."""

    def lines(self) -> list[str]:
        processes = [
            f"{kind} {pid} {-1 if used is None else used}"
            for kind, listed in (("compute", self.compute), ("graphics", self.graphics))
            for pid, used in listed
        ]
        return [
            "gpu",
            f"uuid {self.uuid}",
            f"name {self.name}",
            f"memory {self.memory_mb} {self.memory_used_mb}",
            f"reserved {self.reserved_mb}",
            f"utilisation {self.utilisation}",
            f"power {self.power_mw}",
            f"temperature {self.temperature_c}",
            f"clocks {self.sm_clock_mhz} {self.memory_clock_mhz}",
            f"throttling {self.throttling}",
            f"ecc {self.ecc_errors}",
            f"repair {int(self.repair_pending)} {int(self.repair_failed)}",
            f"bus {self.bus}",
            f"lost {int(self.lost)}",
            *(f"fail {function} {code}" for function, code in self.failing.items()),
            *processes,
        ]


def write_gpus(
    file: Path,
    gpus: Sequence[FakeGpu],
    *,
    driver: str = "550.54.15",
    cuda: int = 12040,
    init: int = 0,
    xids: Sequence[tuple[int, int]] = (),
) -> None:
    """Sets the values that the library returns from now on.

    Args:
        cuda: CUDA version in NVML's encoding, such as 12040 for 12.4.
        init: Error code of NVML's initialization.
        xids: The XID errors that have occurred so far, as pairs of GPU index and error code.
    """
    lines = [f"driver {driver}", f"cuda {cuda}", f"init {init}", *(f"xid {index} {code}" for index, code in xids)]
    for gpu in gpus:
        lines.extend(gpu.lines())
    new = file.with_name(file.name + ".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(file)


def build_fake_nvml(directory: Path, *, without: Sequence[str] = (), protected_field: bool = False) -> Path:
    """Builds libnvidia-ml.so.1 into `directory`, creating it if necessary; returns the folder for LD_LIBRARY_PATH.

    Args:
        without: Functions that the library does not export, as in an older driver.
        protected_field: Whether the process structure has the additional field that some 530 and 535 drivers use.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(directory / "libnvidia-ml.so.1")]
    if protected_field:
        command.append("-DPROTECTED_FIELD")
    if without:
        hidden = directory / "hidden.map"
        hidden.write_text("{ local: " + " ".join(f"{name};" for name in without) + " };\n")
        command.append(f"-Wl,--version-script={hidden}")
    subprocess.run([*command, str(_SOURCE)], check=True, capture_output=True, text=True)
    return directory
