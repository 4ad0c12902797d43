"""Tests of the descriptions of a host's state, and of the actions that are offered for its problems."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from torchyard_core.errors import (
    AgentFailed,
    AgentMissing,
    HostError,
    KeyChanged,
    KeyUnknown,
    LoginRefused,
    NoPython,
    Unreachable,
)
from torchyard_core.fleet.host_audit import Act
from torchyard_core.fleet.host_check import HostCheck, failed_check
from torchyard_core.fleet.inventory import Host
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.host_status import GpuNow, HostActivity, HostStatus
from torchyard_gui.fleet.audit_labels import audit_rows
from torchyard_gui.fleet.labels import (
    accessible_text,
    enforcement_lines,
    full_time,
    gpu_kinds,
    sentence,
    short_day,
    short_time,
    since,
    since_forms,
    state_mark,
    state_word,
    tint,
    used_of,
)
from torchyard_gui.fleet.suggested_action import suggested_action

NOW = datetime.now(UTC)


def fresh(name: str = "gpu-a") -> HostStatus:
    return HostStatus(Host(name=name), HostFacts(name))


def failed(error: HostError) -> HostStatus:
    return fresh(error.host).checked(failed_check(error.host, error.state, error), NOW)


TROUBLES = [
    (Unreachable("gpu-a", "port 22 of 10.0.0.1 (gpu-a) refused.", hint="Is sshd running there?"), "failed", "check"),
    (KeyUnknown("gpu-a", "the host key of gpu-a is not known.", fingerprint="SHA256:x"), "warning", "trust"),
    (KeyChanged("gpu-a", "the host key of gpu-a has changed.", fingerprint="SHA256:x"), "failed", "trust"),
    (LoginRefused("gpu-a", "gpu-a refused the login of lee."), "failed", "check"),
    (NoPython("gpu-a", "there is no Python ≥ 3.9 on gpu-a: found 3.6 at /usr/bin/python3."), "failed", "check"),
    (AgentFailed("gpu-a", "the agent could not be installed on gpu-a."), "failed", "deploy"),
    (AgentMissing("gpu-a", "there is no agent on gpu-a."), "planned", "deploy"),
]


@pytest.mark.parametrize(("error", "mark", "action"), TROUBLES)
def test_each_trouble_has_its_mark_word_sentence_and_way_out(error: HostError, mark: str, action: str) -> None:
    status = failed(error)
    found = suggested_action(status)
    assert state_mark(status) == mark
    assert state_word(status)
    assert error.message.lower() in sentence(status).lower()
    assert found is not None
    assert (found.action, bool(found.text)) == (action, True)


@pytest.mark.parametrize(
    ("level", "dry_run", "acts_on", "is_fresh", "said"),
    [
        ("off", True, "all", True, ["not enforced"]),
        ("warn", False, "own", True, ["warns", "its user's processes"]),
        ("stop", True, "all", True, ["warns and stops, dry run", "processes of all users"]),
        ("stop", False, "all", False, ["warns and stops", "waiting for the current calendar"]),
    ],
)
def test_what_its_agent_does_for_bookings_and_to_whom(
    level: str, dry_run: bool, acts_on: str, is_fresh: bool, said: list[str]
) -> None:
    told = {"enforcement": {"level": level, "dry_run": dry_run}, "capabilities": {"acts_on": acts_on}}
    check = HostCheck("gpu-a", "ready", bookings={**told, "fresh": is_fresh, "findings": []})
    assert enforcement_lines(fresh().checked(check, NOW)) == said
    assert enforcement_lines(fresh()) == []


def test_violations_that_its_agent_does_not_end_are_listed() -> None:
    told = {"enforcement": {"level": "stop", "dry_run": False}, "capabilities": {"acts_on": "all"}, "fresh": True}
    sudo = {"user": "ann", "as_root": True, "known_by": "claim", "container": "", "session": ""}
    findings = [
        {"verdict": "root", "program": "py\x1bthon", "pid": 7, "user": "ann", "origin": sudo},
        {"verdict": "unknown", "program": "python", "pid": 8, "user": "carl", "origin": None},
        {"verdict": "unknown", "program": "python", "pid": 8, "user": "carl", "origin": None},
        {"verdict": "own", "program": "python", "pid": 9, "user": "lee", "origin": None},
    ]
    check = HostCheck("gpu-a", "ready", bookings={**told, "findings": findings})
    assert enforcement_lines(fresh().checked(check, NOW)) == [
        "warns and stops",
        "processes of all users",
        "python (PID 7) of root, sudo says from a login of ann",
        "python (PID 8) of carl",
    ]


def test_a_missing_agent_is_nothing_to_worry_about() -> None:
    assert tint(failed(AgentMissing("gpu-a", "there is no agent on gpu-a."))) == ""
    assert tint(failed(AgentFailed("gpu-a", "no room."))) == "fail"


def test_a_healthy_host_has_no_sentence_and_no_way_out() -> None:
    status = fresh().checked(HostCheck("gpu-a", "ready"), NOW)
    assert (sentence(status), suggested_action(status), tint(status), state_mark(status)) == ("", None, "", "ok")


def test_an_unchecked_host_is_shown_as_such() -> None:
    assert sentence(fresh()) == "Not checked yet."
    assert since(replace(fresh(), since=NOW)) == f"last checked {short_time(NOW)}"
    assert since(fresh()) == "never checked"
    found = suggested_action(fresh())
    assert found is not None
    assert found.action == "check"


def test_the_time_of_a_state_has_shorter_forms() -> None:
    now = datetime.now(UTC)
    late = (now.astimezone() - timedelta(days=1)).replace(hour=23, minute=59)
    day = short_day(late)
    ready = replace(fresh().checked(HostCheck("gpu-a", "ready"), now), since=late)
    assert since_forms(ready) == [f"since {day} 23:59", f"since {day}", day]
    assert since_forms(replace(ready, since=now)) == [f"since {short_time(now)}", short_time(now)]
    assert since_forms(replace(fresh(), since=late))[-1] == f"checked {day}"


def test_what_is_under_way_can_be_cancelled() -> None:
    status = HostStatus(Host(name="gpu-a"), HostFacts("gpu-a"), doing=HostActivity("checking"))
    found = suggested_action(status)
    assert found is not None
    assert found.action == "cancel"
    assert "logging in" in accessible_text(status)


def test_a_sentence_begins_with_a_capital_but_a_hosts_name_stays() -> None:
    assert sentence(failed(Unreachable("the", "the did not answer."))).startswith("the did")
    assert sentence(failed(Unreachable("gpu-a", "gpu-a did not answer."))).startswith("gpu-a did")
    assert sentence(failed(Unreachable("gpu-a", "port 22 refused."))).startswith("Port 22")


def test_times_are_local_with_the_day_where_it_is_another_and_the_zone_in_full() -> None:
    noon = datetime.now().astimezone().replace(hour=12, minute=5)
    assert short_time(noon) == "12:05"
    assert short_time(noon - timedelta(days=3)).endswith(" 12:05")
    assert "UTC" in full_time(noon)


def test_gpus_have_their_common_names() -> None:
    h100, a100 = GpuNow(0, "NVIDIA H100 80GB HBM3", 81559), GpuNow(1, "NVIDIA A100-SXM4-40GB", 40960)
    assert gpu_kinds([h100, h100, a100]) == "2 × H100 80 GB, 1 × A100 40 GB"
    assert gpu_kinds([GpuNow(0, "", 0)]) == "1 × GPU"


def test_unknown_values_are_question_marks() -> None:
    assert used_of(None, 81920) == "? of 80 GB"
    assert used_of(None, None) == "?"
    assert used_of(62464, 81920) == "61 of 80 GB"


def test_a_little_memory_is_not_told_as_none() -> None:
    assert used_of(4, 81920) == "4 MB of 80 GB"
    assert used_of(1536, 81920) == "1.5 of 80 GB"


def test_what_was_done_lately_is_told_newest_first_with_who_asked_for_it() -> None:
    time = NOW.isoformat()
    acts: list[Act] = [
        {"time": time, "what": "upgrade", "by": "kim", "from": "laptop", "version": "1.1", "before": "1.0"},
        {"time": time, "what": "housekeeping", "by": "", "from": "", "runs": 2},
        {"time": time, "what": "enforcement", "by": "", "act": "warned", "user": "lee", "dry_run": True},
        {"time": "soon", "what": "unheard of", "by": ""},
    ]
    assert audit_rows(acts) == [
        ("?", "unheard of"),
        (short_time(NOW), "dry run: lee warned"),
        (short_time(NOW), "Garbage collected"),
        (short_time(NOW), "Agent replaced"),
        ("", "1.1 after 1.0"),
        ("", "by kim@laptop"),
    ]
