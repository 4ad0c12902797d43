"""Reasons why a search request can never be fulfilled. The waitlist refuses such a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Draft, Slot
from torchyard_core.booking.rules.open_times import binding_windows
from torchyard_core.booking.rules.quota import check_quota
from torchyard_core.booking.rules.search_limits import Allowance, nothing_taken, within_rules
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.formatting import counted, format_hours, span
from torchyard_core.next_steps import CheckHosts, ShowRules


def why_never(wish: Wish, slots: Sequence[Slot], rules: Rules, person: str, allowance: Allowance) -> Refused | None:
    """Returns the refusal of a request that can never be booked, or None if it can be booked once GPUs are free."""
    fitting = [slot for slot in slots if wish.takes(slot)]
    if refused := _too_few(wish, fitting) or _no_time(wish, rules, allowance):
        return refused
    allowed = within_rules(wish, rules, allowance.now)
    if nothing_taken(allowed, fitting, rules, person, allowance):
        return None
    unlimited = replace(rules, quota_gpu_hours=None, quotas={})
    open_places = nothing_taken(allowed, fitting, unlimited, person, allowance)
    if not open_places:
        return _closed(wish, fitting, rules, person)
    first = open_places[0]
    draft = Draft("wanted", first.gpus, first.start, first.end, allowance.zone)
    return check_quota(draft, rules, allowance.now, person, allowance.hours)


def _too_few(wish: Wish, fitting: Sequence[Slot]) -> Refused | None:
    if fitting and all(slot.node for slot in fitting):
        if len(fitting) < wish.count:
            clusters = " and ".join(dict.fromkeys(slot.host for slot in fitting))
            message = f"{counted(wish.count, 'node')} requested, but {clusters} has {len(fitting)} of that kind"
            return Refused(message, code="too_few", hint="Ask for fewer, or for others.")
        return None
    if len(fitting) < wish.count:
        message = f"{counted(wish.count, 'GPU')} requested, but the fleet has {len(fitting)} of that kind"
        return Refused(message, code="too_few", hint=("Ask for fewer, or for others.", CheckHosts()))
    ((host, most),) = Counter(slot.host for slot in fitting).most_common(1)
    if wish.one_host and most < wish.count:
        message = f"no host has {wish.count} GPUs of that kind: the most, {most}, are on {host}"
        return Refused(message, code="too_few", hint="Ask for fewer, or for GPUs of several hosts (`--any-hosts`).")
    return None


def _no_time(wish: Wish, rules: Rules, allowance: Allowance) -> Refused | None:
    """Returns a refusal if the requested length does not fit between the earliest start and the latest end."""
    allowed = within_rules(wish, rules, allowance.now)
    latest = allowed.latest or allowed.earliest
    if latest - allowed.earliest >= wish.length:
        return None
    if wish.latest is None or latest < wish.latest:
        days = (latest - allowance.now).total_seconds() / 86400
        return Refused(
            f"bookings are made at most {counted(days, 'day')} ahead", code="too_far", hint="Look from earlier on."
        )
    message = f"{format_hours(wish.length)} do not fit {span(allowed.earliest, latest, allowance.zone)}"
    return Refused(message, code="no_time", hint="Take an earlier start, a later end, or less time.")


def _closed(wish: Wish, fitting: Sequence[Slot], rules: Rules, person: str) -> Refused:
    times = dict.fromkeys(str(window) for slot in fitting for window in binding_windows(slot, rules, person))
    message = (
        f"the rules never leave {person} {counted(wish.count, 'such GPU')} for {format_hours(wish.length)} in that time"
    )
    return Refused(message, code="window", hint=(f"They are open: {'; '.join(times)}.", ShowRules()))
