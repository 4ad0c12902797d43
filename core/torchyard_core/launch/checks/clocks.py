"""Pure functions that check whether the clocks of a run's hosts agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchyard_core.launch.checks.check import Check

CLOCKS_WITHIN_S = 5.0


@dataclass(frozen=True)
class Clock:
    """The offset of a host's clock from this computer's clock, and its maximum error, both in seconds."""

    offset: float
    error: float

    @staticmethod
    def read(sent: float, answer: Mapping[str, Any], heard: float) -> Clock:
        """Computes the offset by NTP's formula, which is not affected by the time that the host took to answer.

        `sent` and `heard` are the times of the request and of the answer by this computer's clock.
        """
        received, answered = float(answer["received"]), float(answer["answered"])
        return Clock(
            ((received - sent) + (answered - heard)) / 2, max(0.0, ((heard - sent) - (answered - received)) / 2)
        )


def check_start_clock(primary: str, clock: Clock) -> Check:
    """Returns the checklist line about the primary's clock, by which a scheduled run starts.

    The line prevents the launch if the clock certainly differs from this computer's by more than CLOCKS_WITHIN_S.
    """
    by = clock.offset
    if abs(by) - clock.error <= CLOCKS_WITHIN_S:
        return Check(
            "clock", primary, True, f"the run starts by the clock of {primary}, {abs(by):.3f} s off this computer's"
        )
    message = (
        f"the run would start by the clock of {primary}, which is {abs(by):.1f} s "
        f"{'ahead of' if by > 0 else 'behind'} this computer's."
    )
    hint = "Run a time service (chrony, systemd-timesyncd) on both, or start the run now."
    return Check("clock", primary, False, message, hint)


def check_clocks(clocks: Mapping[str, Clock]) -> list[Check]:
    """Returns one checklist line for all hosts, or a warning for each host whose clock is wrong.

    A clock is wrong if it certainly differs by more than CLOCKS_WITHIN_S from the median of the hosts' clocks. This
    computer's clock is not the reference. A single host gets no line.
    """
    if len(clocks) < 2:
        return []
    offsets = sorted(clock.offset for clock in clocks.values())
    median = offsets[(len(offsets) - 1) // 2]
    spread = offsets[-1] - offsets[0]
    off = {
        host: clock.offset - median
        for host, clock in clocks.items()
        if abs(clock.offset - median) - clock.error > CLOCKS_WITHIN_S
    }
    if not off:
        return [Check("clock", "", True, f"clocks agree within {max(spread, 0.001):.3f} s")]
    hint = "Run a time service (chrony, systemd-timesyncd) there: times in logs and checkpoints are wrong until then."
    return [
        Check(
            "clock",
            host,
            True,
            f"the clock of {host} is {abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} the other hosts'.",
            hint,
            warning=True,
        )
        for host, by in off.items()
    ]
