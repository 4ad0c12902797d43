"""All rules of a team: their settings as one value, and the table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.rules import enforcement, idle_release, length_limits, open_times, quota
from torchyard_core.booking.rules.rule import FormField, Request, Rule, SharedSettings, refuse_unknown_keys
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.errors import UsageError


@dataclass(frozen=True)
class ZoneSettings(SharedSettings):
    """The IANA time zone in which weeks and days of quotas are counted, regardless of the zones of clients."""

    zone: str = "UTC"


_ZONE_RULE = Rule(
    form=(FormField("zone", "Time zone of quotas", str, str.strip),), validate=lambda rules: zone_of(rules.zone)
)
RULES = (length_limits.RULE, open_times.RULE, quota.RULE, idle_release.RULE, _ZONE_RULE, enforcement.RULE)
"""All rules, in the order of their checks."""


@dataclass(frozen=True)
class Rules(
    enforcement.EnforcementSettings,
    idle_release.IdleReleaseSettings,
    ZoneSettings,
    open_times.OpenTimesSettings,
    quota.QuotaSettings,
    length_limits.LengthSettings,
):
    """The settings of all rules, which admins can change.

    Python orders the fields by base class, from the last base class to the first.
    """

    def check(self, request: Request) -> Refused | None:
        """Returns the first refusal by a rule, or None if all rules allow the request."""
        checks = (rule.check for rule in RULES if rule.check is not None)
        return next((refused for check in checks if (refused := check(self, request))), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rules:
        """Parses the rules. Raises UsageError for an unknown key or an invalid value.

        Raises TypeError, ValueError or AttributeError if a structured value has another structure.
        """
        refuse_unknown_keys(data, Rules, "rule")
        values = dict(data)
        for rule in RULES:
            values |= {name: parse(data[name]) for name, parse in rule.parsers.items() if name in data}
        rules = Rules(**values)
        try:
            for rule in RULES:
                rule.validate(rules)
        except Refused as refused:
            raise UsageError(refused.message, code="bad_rules", hint=refused.advice) from None
        return rules


RULE_CODES = frozenset(code for rule in RULES for code in rule.codes)
FORM: tuple[FormField, ...] = tuple(
    sorted((field for rule in RULES for field in rule.form), key=lambda field: field.is_multiline)
)
"""The fields of the rules form, single-line fields first."""


def form_texts(rules: Rules) -> dict[str, str]:
    """Returns the form's text for each setting that has a field."""
    return {field.setting: field.write(getattr(rules, field.setting)) for field in FORM}


def read_form(texts: Mapping[str, str], current: Rules) -> Rules:
    """Returns the rules that a form contains, parsed from the text of each field.

    Settings without a field keep their values in `current`. Raises UsageError for an invalid text.
    """
    settings = {field.setting: field.read(texts[field.setting]) for field in FORM}
    return Rules.from_json({**current.to_json(), **settings})


def form_problems(texts: Mapping[str, str], current: Rules) -> dict[str, UsageError]:
    """Returns the problem of each setting whose form field is invalid, in the order of the form.

    If settings contradict each other, such as a window and its group, only one of them is reported: the first one whose
    value in `current` would remove the contradiction.
    """
    wrong: dict[str, UsageError] = {}
    settings: dict[str, Any] = {}
    for field in FORM:
        try:
            settings[field.setting] = field.read(texts[field.setting])
        except UsageError as error:
            wrong[field.setting] = error
    for rule in RULES:
        changed = {field.setting: settings[field.setting] for field in rule.form if field.setting in settings}
        if (problem := _refusal(current, changed)) is not None:
            solves = (name for name in changed if _refusal(current, changed, without=name) is None)
            wrong[next(solves, list(changed)[-1])] = problem
    return {field.setting: wrong[field.setting] for field in FORM if field.setting in wrong}


def _refusal(current: Rules, changed: Mapping[str, Any], *, without: str = "") -> UsageError | None:
    """Returns why the changed settings are invalid, or None. The setting named by `without` is treated as unchanged."""
    kept = {name: value for name, value in changed.items() if name != without}
    try:
        Rules.from_json({**current.to_json(), **kept})
    except UsageError as error:
        return error
    return None
