"""The team's time zone, whose weeks and days quotas are counted in."""

from __future__ import annotations

from dataclasses import dataclass

from torchyard_core.booking.rules.rule import FormField, Rule, SharedSettings
from torchyard_core.booking.time_parser import zone_of


@dataclass(frozen=True)
class ZoneSettings(SharedSettings):
    """An IANA name, whatever zone a client uses."""

    zone: str = "UTC"


def _validate(rules: ZoneSettings) -> None:
    zone_of(rules.zone)


RULE = Rule(form=(FormField("zone", "Time zone of weeks", str, str.strip),), validate=_validate)
