"""Fuzz tests of all parsers. Each parser has a hypothesis strategy that mutates samples and mixes types.

For every input, a parser must return a value or raise one of its declared errors, within LONGEST_S of CPU time and
MOST_MB of memory. A value that is written and read again must be unchanged.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import io
import json
import logging
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from tests.core.booking.teams import NOW, SLOTS
from torchyard_agent.keeper.link.gang_link import Stream
from torchyard_agent.keeper.link.join_store import JoinStore, StoreServer
from torchyard_agent.protocol import authenticated_transport, calendar, jsonrpc, metrics_report
from torchyard_agent.protocol.authenticated_transport import AuthenticationError
from torchyard_agent.protocol.jsonrpc import MalformedMessage, RpcError
from torchyard_core.booking import planned_time
from torchyard_core.booking.errors import BadCalendar, Refused
from torchyard_core.booking.ics import export_ics, read_ics
from torchyard_core.booking.model import Booking, State, rfc3339
from torchyard_core.booking.recurrence import occurrences
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.sync.agent_sync import combine_evidence
from torchyard_core.booking.sync.local_copy import LocalCopy
from torchyard_core.booking.time_parser import end_moment, length, moment
from torchyard_core.booking.usage_attribution import reported_uses
from torchyard_core.booking.waitlist import wish_from_json, wish_to_json
from torchyard_core.cli.views.run_progress import PlainView
from torchyard_core.errors import AgentRefused, FileProblem, HostError, RunFailed, TorchyardError, UsageError
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.fleet.host_facts_cache import load_facts, planner_hosts
from torchyard_core.fleet.inventory import Host, add_host, parse_ports, read_fleet, remove_host
from torchyard_core.fleet.response_schemas import ANSWERS, NOTIFICATIONS, Each, find_mismatch
from torchyard_core.fleet.ssh.ssh_config import config_text, host_names
from torchyard_core.interop.format_detection import detect_format
from torchyard_core.interop.format_registry import READ, read_foreign
from torchyard_core.interop.formats import vertex_study
from torchyard_core.launch.runs.follower import Follower
from torchyard_core.launch.runs.history import History, fields_at_end
from torchyard_core.problems import has_errors
from torchyard_core.sweeps.search_file import dump_search, read_search, search_from_text
from torchyard_core.sweeps.trial_table import read_table
from torchyard_core.topology.document.clipboard import copy_replicas, read_copied
from torchyard_core.topology.file import dump, read_topology, topology_from_text
from torchyard_core.topology.overrides import apply_overrides
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.user_settings import read_user_settings
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.checkpoints.checkpoint_files import Damaged
from torchyard_roles.environment import read as read_environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, ProtocolError

LONGEST_S = 5.0
"""Maximum CPU time in seconds for one input. On a busy machine, the slowest input takes a quarter of this time."""
HUNG_S = 120
MOST_MB = 256
"""Maximum increase of the process's peak memory by one input."""
EXAMPLES = Path(__file__).parents[2] / "examples"
ZONES = ("UTC", "Europe/Berlin", "Asia/Seoul", "America/St_Johns")


@dataclass(frozen=True)
class Parser:
    """A parser under test.

    `read` parses an input. `again` writes the parsed value and parses the result, which must equal the value.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    read: Callable[[Any], Any]
    errors: tuple[type[Exception], ...] = ()
    again: Callable[[Any], Any] | None = None


class Hung(BaseException):
    """Raised when parsing an input takes longer than HUNG_S."""


def violation(parser: Parser, given: Any) -> str:
    """Parses an input. Returns a description of the violated property, or an empty string if there is none."""
    peak, began = _forget_peak(), time.process_time()
    try:
        with _alarm():
            value = parser.read(copy.deepcopy(given))
            if parser.again is not None:
                found = parser.again(value)
                if found != value:
                    return _violation_text(parser, given, f"read again it is {found!r:.300}, and was {value!r:.300}")
    except parser.errors:
        pass
    except Hung:
        return _violation_text(parser, given, f"takes more than {HUNG_S} s")
    except Exception:
        return _violation_text(parser, given, "".join(traceback.format_exc().splitlines(keepends=True)[-6:]))
    if (took := time.process_time() - began) > LONGEST_S:
        return _violation_text(parser, given, f"takes {took:.1f} s of CPU time")
    if (grew := _peak_mb() - peak) > MOST_MB:
        return _violation_text(parser, given, f"takes {grew:.0f} MB")
    return ""


def _violation_text(parser: Parser, given: Any, what: str) -> str:
    return f"{parser.name} {given!r:.1500}: {what}"


def _forget_peak() -> float:
    """Resets the process's recorded peak memory to the current memory, and returns the current memory in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mb()


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 1024


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HUNG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Hypothesis strategies for the inputs of all parsers

NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 7, 255, 65536, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.5, 1e300, float("inf"), float("nan"), -0.0]
)
WORDS = st.sampled_from(
    [
        *(
            "",
            " ",
            "0",
            "-1",
            "1e999",
            "9" * 5000,
            "\0",
            "\n",
            "\x1b[31m",
            "é",
            "금요일",
            "\ud800",
            "\U0001f600",
            "../..",
            "~",
        ),
        *("null", "true", "UTC", "a" * 300, "{", "[", '"', "2031-01-10T09:00:00Z", "²", "٣", "\u202e", "NaN"),
    ]
)
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.integers() | st.floats() | WORDS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
DEEP = st.integers(900, 40_000).flatmap(lambda many: st.sampled_from(["[" * many, '{"a":' * many, '[{"a":' * many]))


@st.composite
def torn(draw: st.DrawFn, samples: Sequence[str], words: Sequence[str]) -> str:
    """Generates a sample with up to five edits, each of which removes, repeats or moves some text or inserts a word."""
    text = draw(st.sampled_from(list(samples)))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 40)))
        edit = draw(st.integers(0, 4))
        if edit == 0:
            text = text[:start] + text[stop:]
        elif edit == 1:
            text = text[:stop] + text[start:stop] * draw(st.integers(1, 3)) + text[stop:]
        elif edit == 2:
            text = text[:start] + draw(st.sampled_from(list(words))) + text[stop:]
        elif edit == 3:
            text = text[:start] + draw(st.text(max_size=4) | WORDS) + text[stop:]
        else:
            lines = text.splitlines(keepends=True)
            if lines:
                moved = lines.pop(draw(st.integers(0, len(lines) - 1)))
                lines.insert(draw(st.integers(0, len(lines))), moved)
                text = "".join(lines)
    return text


def texts(samples: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[str]:
    """Generates text: in most cases edited samples, otherwise words in random order or arbitrary text."""
    mixed = st.lists(st.sampled_from([*words, " ", "\n"]) | WORDS, max_size=12).map("".join)
    return st.one_of(torn(samples, words), torn(samples, words), mixed, st.text(max_size=30))


def as_bytes(text: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Generates encoded text, some of it with invalid encoding."""
    encoded = text.map(lambda one: one.encode("utf-8", "surrogatepass"))
    return st.one_of(
        encoded, encoded, encoded, text.map(lambda one: one.encode("utf-16", "surrogatepass")), st.binary()
    )


@st.composite
def altered(draw: st.DrawFn, samples: Sequence[Any]) -> Any:
    """Generates a sample of plain data with up to three changes: replaced values, and removed or inserted keys."""
    data = copy.deepcopy(draw(st.sampled_from(list(samples))))
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(data))
        if not places:
            return draw(JUNK)
        around, key = draw(st.sampled_from(places))
        edit = draw(st.integers(0, 3))
        if edit == 0:
            del around[key]
        elif edit == 1 and isinstance(around, dict):
            around[draw(WORDS | st.text(max_size=6))] = draw(JUNK)
        elif edit == 1:
            around.insert(key, draw(JUNK))
        else:
            around[key] = draw(JUNK)
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    inner = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    for key, value in inner:
        yield data, key
        yield from _places(value)


def plain(samples: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(altered(samples), altered(samples), altered(samples), JUNK)


def in_json(samples: Sequence[Any]) -> st.SearchStrategy[str]:
    """Generates JSON documents from altered samples; some are invalid or nested too deeply."""
    written = [json.dumps(one) for one in samples]
    return st.one_of(
        plain(samples).map(json.dumps), plain(samples).map(json.dumps), torn(written, list('{}[]",:')), DEEP
    )


# Parsers of files

_folder: str | None = None


def scratch(name: str) -> Path:
    """Returns the path of a file that only this process uses."""
    global _folder
    if _folder is None:
        _folder = tempfile.mkdtemp(prefix="torchyard-parsers-")
        atexit.register(shutil.rmtree, _folder, True)
    return Path(_folder) / name


def of_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Returns a function that writes its input to a file and applies `read` to the file."""

    def reads(content: bytes) -> Any:
        file = scratch(name)
        file.write_bytes(content)
        return read(file)

    return reads


TOPOLOGIES = [file.read_text() for file in sorted(EXAMPLES.glob("*/*.yaml"))]
YAML_WORDS = [
    *("pools:", "- ", "  ", "name:", "replicas: 2", "role: ps", "&a", "*a", "<<: *a", "!!binary", "? ", ": ", "|", ">"),
    *("[]", "{}", "[[", "{a: ", "'", '"', "#", "---\n", "...\n", "%YAML 1.1\n", "null", "1e400", "0x7f", "0o7", "\t"),
    *("pins: {worker-0: gpu-b:0-3}", "hosts: [gpu-a]", "strategy:", "kind: downpour", "version: 1", "env: {A: 1}"),
]


def _checked(path: Path) -> Any:
    file = read_topology(path)
    file.check()
    return file.topology


SEARCHES = [
    "version: 1\nparameters:\n  lr: {distribution: log_uniform, low: 1e-4, high: 0.1}\n  b:\n"
    "    distribution: categorical\n    values: [32, a, 0.5]\n  d: {distribution: int, low: 1, high: 9, step: 2}\n"
    "objective: {metric: loss, goal: minimize}\nsampler: {kind: tpe, seed: 1}\npruner: {kind: median}\ntrials: 20\n",
]
STUDIES = [
    "displayName: x\nmaxTrialCount: 20\nstudySpec:\n  metrics: [{metricId: a, goal: MINIMIZE}]\n  parameters:\n"
    "  - {parameterId: lr, doubleValueSpec: {minValue: 0.1, maxValue: 1}, scaleType: UNIT_LOG_SCALE}\n"
    '  - {parameterId: n, integerValueSpec: {minValue: "1", maxValue: "8"}}\n'
    "  - {parameterId: b, discreteValueSpec: {values: [32, 64]}}\n  algorithm: RANDOM_SEARCH\n",
]
SEARCH_WORDS = [
    *YAML_WORDS,
    *(
        "distribution: ",
        "low: ",
        "high: ",
        "step: ",
        "1e308",
        "-1",
        "0",
        "grid",
        "cma_es",
        "true",
        "trials: ",
        "values: ",
    ),
]
SWEEP = {
    **{"run_id": "r", "name": "s", "state": "running", "metric": "loss", "goal": "minimize", "parameters": ["x"]},
    **{"wanted": 9, "slots": [["a"]], "lost": [], "importances": {"x": 1.0}, "study": ""},
    "trials": [
        {"trial": "1", "state": "complete", "params": {"x": 0.1}, "value": 1.0, "run_id": "r.1", "hosts": ["a"]}
        | {"cause": "", "started": "", "ended": "", "values": [[1, 2.0]]}
    ],
}


def _search(path: Path) -> Any:
    file = read_search(path)
    problems = file.check()
    return None if has_errors(problems) else file.search


def _search_again(search: Any) -> Any:
    return None if search is None else search_from_text(dump_search(search)).search


def _topology_again(topology: Any) -> Any:
    return None if topology is None else topology_from_text(dump(topology)).topology


FLEET = """\
# our hosts
version: 1
hosts:
  - name: gpu-a  # the old one
    address: 10.0.0.11
    user: lee
    ports: 29400-29499
    labels: {rack: 3, machine: a2-highgpu-1g}
  - {name: gpu-b, address: gpu-b.example, port: 2222, proxy_jump: door}
  - name: this
    local: true
"""
FLEETS = [FLEET, "version: 1\nhosts: []\n", "version: 1\nhosts:\n", "version: 1\nhosts: [{name: a}, {name: b}]\n"]


def _fleet(path: Path) -> Any:
    inventory = read_fleet(path)
    inventory.usable()
    return inventory.hosts


def _fleet_again(hosts: Any) -> Any:
    """Adds a host to the fleet file and removes it again. Returns the remaining hosts, which must equal `hosts`."""
    path = scratch("fleet.yaml")
    if any(host.name == "one-more" for host in hosts):
        return hosts
    add_host(path, Host(name="one-more", address="10.0.0.99"))
    return remove_host(path, "one-more").hosts


SETTINGS = [
    "bookings_url: sqlite:////tmp/b.sqlite3\nperson: kim\nzone: Asia/Seoul\nkeep_after_failure: 2h\n",
    "# none\n",
]


def _settings(path: Path) -> Any:
    found = read_user_settings(path)
    return found, found.keeps_after_failure


SSH_CONFIG = (
    'Host a b.* !c\n  HostName 10.0.0.1\n  Include none.conf\nMatch originalhost x,y\n Port=22\nHost="q r" # d\n'
)
FACTS = {
    "gpu-a": {
        "address": "10.0.0.11",
        "cpus": 8,
        "memory_gb": 64.5,
        "gpus": [{"index": 0, "uuid": "GPU-1", "name": "A100", "memory_mb": 40960}],
        "python": {"path": "/usr/bin/python3", "version": "3.12.1"},
        "torch": "2.13.0",
    }
}
RUN = {
    "run_id": "20310110-090000-x",
    "name": "digits",
    "topology_file": "t.yaml",
    "primary": "gpu-a",
    "hosts": ["gpu-a"],
    "submitted": "2031-01-10T09:00:00Z",
    "state": "running",
}


def _facts(path: Path) -> Any:
    return planner_hosts([Host(name="gpu-a", address="10.0.0.11")], load_facts(path))


def kept_calendar(content: bytes) -> Any:
    """Reads a local copy of a calendar with one booking that has the given content."""
    path = scratch("calendar.sqlite3")
    path.unlink(missing_ok=True)
    copy = LocalCopy(path, "sqlite:///none")
    copy._with(
        lambda connection: connection.execute("INSERT INTO state VALUES (1, 1, ?, 1, '', 0, 9, 9)", (copy._url,))
    )
    for statement, body in (
        ("slots VALUES (1, ?)", "[]"),
        ("bookings VALUES ('b1', 1, 2, ?)", content.decode("latin-1")),
    ):
        copy._with(lambda connection, row=(statement, body): connection.execute(f"INSERT INTO {row[0]}", (row[1],)))
    return copy.read(datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC))


def _record(path: Path) -> Any:
    return History(path.parent).load(path.stem)


# Parsers of times and bookings

TIMES = [
    *(
        "tomorrow 9",
        "fri 17:00",
        "next monday 9:00",
        "25.11. 14:00",
        "Nov 25 9pm",
        "내일 9시",
        "금요일 오후 5시",
        "+4h",
    ),
    *("2031-01-10 09:00", "2031-W02-5 9:00", "2031-01-10T09:00:00+01:00", "24:00", "1h30m", "2d", "now", "2월 29일"),
    *("2031-03-30 02:30", "2031-10-26 02:30", "day after tomorrow 5pm", "fri, 25 dec 2031 12:15", "12월 31일 23:59"),
]
TIME_WORDS = [
    *(
        "mon",
        "next ",
        "this ",
        "sunday",
        "9",
        ":30",
        "pm",
        "am",
        "오전",
        "시",
        "분",
        "T",
        "Z",
        "+",
        "-",
        "h",
        "m",
        "d",
        "w",
    ),
    *("W53", "31.", "2.", "feb 29", "2월", "30일", "today", "9999", "0000", "2999-12-31", "1.5", "of", ",", "-366"),
]
BERLIN = datetime(2031, 1, 6, 8, 3, 7, tzinfo=UTC)


def _time(given: tuple[str, str]) -> datetime:
    return moment(given[0], given[1], BERLIN)


def _end(given: tuple[str, str]) -> Any:
    found = end_moment(given[0], BERLIN, given[1], BERLIN)
    return found, length(given[0])


def _time_again(found: datetime) -> datetime:
    return moment(rfc3339(found), "Asia/Seoul", BERLIN)


def _planned(given: tuple[str, str]) -> Any:
    text, zone = given
    return planned_time.from_text(text), planned_time.parse_planned_time(*text.partition(" ")[::2], zone, BERLIN)


def _planned_again(found: Any) -> Any:
    return tuple(planned_time.from_text(one.to_text()) for one in found)


RULES_OF_SERIES = [
    *("FREQ=WEEKLY;BYDAY=MO,WE;COUNT=10", "FREQ=DAILY;UNTIL=20310301T090000Z", "FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=3"),
    *("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;COUNT=4", "FREQ=MONTHLY;BYDAY=2TU;BYSETPOS=1;UNTIL=20320101", "FREQ=DAILY"),
    *("FREQ=YEARLY;BYYEARDAY=366;COUNT=2", "FREQ=YEARLY;BYWEEKNO=53;BYDAY=SU;WKST=SU;COUNT=2"),
]
RULE_WORDS = [
    *("RRULE:", "FREQ=", "DAILY", "YEARLY", "INTERVAL=2", ";", "COUNT=400", "BYMONTH=2", "BYMONTHDAY=30", "BYDAY=5MO"),
    *("BYSETPOS=-1", "UNTIL=99991231", "UNTIL=00010101", ",", "=", "0", "-", "13", "HOURLY", "BYHOUR=1,2"),
]


def _series(given: tuple[str, str]) -> Any:
    start = NOW + timedelta(days=3)
    return occurrences(given[0], start, start + timedelta(hours=2), given[1], NOW + timedelta(days=366))


EVENT = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x//y//EN\r\nBEGIN:VTIMEZONE\r\nTZID:Ours\r\nBEGIN:STANDARD\r\n"
    "DTSTART:16010101T030000\r\nTZOFFSETFROM:+0200\r\nTZOFFSETTO:+0100\r\nRRULE:FREQ=YEARLY;BYDAY=-1SU;BYMONTH=10\r\n"
    "END:STANDARD\r\nEND:VTIMEZONE\r\nBEGIN:VEVENT\r\nUID:u1\r\nSUMMARY:train\r\nDTSTART;TZID=Ours:20310110T090000\r\n"
    "DTEND;TZID=Ours:20310110T100000\r\nRRULE:FREQ=WEEKLY;COUNT=3\r\nEXDATE;TZID=Ours:20310117T090000\r\n"
    "LOCATION:gpu-a:0-1\r\nBEGIN:VALARM\r\nTRIGGER:-PT15M\r\nEND:VALARM\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nUID:u1\r\n"
    "RECURRENCE-ID;TZID=Ours:20310124T090000\r\nDTSTART:20310125T090000Z\r\nDURATION:PT1H\r\nSUMMARY:moved\r\n"
    "END:VEVENT\r\nBEGIN:VEVENT\r\nUID:d\r\nDTSTART;VALUE=DATE:20310110\r\nSEQUENCE:2\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)
ICS_WORDS = [
    *("BEGIN:VEVENT\r\n", "END:VEVENT\r\n", "BEGIN:VCALENDAR\r\n", "END:VCALENDAR\r\n", "BEGIN:VTIMEZONE\r\n", "\r\n "),
    *(
        "DTSTART:20310110T090000Z\r\n",
        "DTSTART;VALUE=DATE:20310110\r\n",
        "DTSTART;TZID=Europe/Berlin:20310330T023000\r\n",
    ),
    *("DTEND:00010101T000000Z\r\n", "DTEND:99991231T235959Z\r\n", "DURATION:P9999999W\r\n", "DURATION:-PT1S\r\n"),
    *("RRULE:FREQ=DAILY\r\n", "RRULE:FREQ=SECONDLY;COUNT=5\r\n", "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30\r\n"),
    *(
        "RRULE:FREQ=YEARLY;BYHOUR=1,2;BYSETPOS=-1\r\n",
        "RRULE:FREQ=HOURLY;UNTIL=99991231\r\n",
        "RDATE:20310111T090000Z\r\n",
    ),
    *(
        "RDATE;VALUE=PERIOD:20310111T090000Z/PT1H\r\n",
        "EXDATE;VALUE=DATE:20310110\r\n",
        "RECURRENCE-ID;RANGE=THISANDFUTURE",
    ),
    *(
        "SEQUENCE:x\r\n",
        "UID:u1\r\n",
        "SUMMARY;ENCODING=QUOTED-PRINTABLE:=C3\r\n",
        ";",
        ":",
        "=",
        '"',
        "TZID=",
        "X-WR-TIMEZONE:x",
    ),
    *("STATUS:CANCELLED\r\n", "X-TORCHYARD-GPUS:GPU-b0\r\n", "X-TORCHYARD-ZONE:Nowhere\r\n", "DTSTART:PT1H\r\n", "\0"),
]
DAYS = {"since": NOW - timedelta(days=1), "until": NOW + timedelta(days=60), "slots": SLOTS}


def _calendar_file(given: tuple[bytes, str]) -> Any:
    return read_ics(given[0], zone=given[1], gpus=["GPU-a0"], **DAYS).drafts


def _calendar_again(drafts: Any) -> Any:
    """Exports the events and imports them again. Returns `drafts` if times and GPUs are unchanged."""
    booked = [
        Booking(
            *(
                f"b{number}",
                "kim",
                one.title,
                one.purpose,
                one.gpus,
                one.start,
                one.end,
                one.zone,
                State.BOOKED,
                NOW,
                NOW,
            ),
            uid=one.uid,
        )
        for number, one in enumerate(drafts)
    ]
    days = {"since": NOW - timedelta(days=4000), "until": NOW + timedelta(days=4000), "slots": SLOTS}
    found = read_ics(export_ics(booked, SLOTS), zone="UTC", **days).drafts if booked else ()
    moments = {(one.start, one.end, one.gpus) for one in drafts}
    return drafts if moments == {(one.start, one.end, one.gpus) for one in found} else found


RULES = {
    "longest_h": 24,
    "furthest_days": 30,
    "quota_gpu_hours": 40,
    "quotas": {"kim": 10},
    "groups": {"students": ["kim"]},
    "windows": [{"gpus": ["gpu-*"], "group": "students", "zone": "Europe/Berlin", "days": [0], "opens": "18:00"}],
    "zone": "UTC",
    "enforcement": [{"host": "*", "level": "warn", "grace_s": 60, "dry_run": False}],
}
WISH = {
    **{"count": 2, "length": 3600.0, "earliest": "2031-01-10T09:00:00Z", "latest": None, "min_memory_gb": 0.0},
    **{"model": "", "one_host": True, "hosts": ["gpu-a"], "gpus": []},
}
BOOKED = Booking(
    "b1", "kim", "t", "", ("GPU-a0",), NOW, NOW + timedelta(hours=1), "UTC", State.BOOKED, NOW, NOW
).to_json()

# Parsers of protocol messages and of other data from hosts

SNAPSHOT = {
    "version": 1,
    "taken": "2031-01-10T09:00:00Z",
    "fresh_s": 3600,
    "from": "2031-01-10T09:00:00Z",
    "until": "2031-01-13T09:00:00Z",
    "person": "kim",
    "idle_release_min": 30,
    "bookings": [
        {
            **{
                "id": "b1",
                "owner": "kim",
                "title": "t",
                "gpus": ["GPU-a0"],
                "start": 1925888400,
                "end": "2031-01-12T09:00:00Z",
            },
            **{"state": "booked", "run_id": None, "stop_at_end": False},
        }
    ],
    "logins": [{"host": "gpu-*", "user": "ubuntu", "persons": ["kim", "lee"]}],
    "enforcement": [{"host": "*", "level": "stop", "grace_s": 300, "dry_run": False}],
}
MESSAGES = [
    {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {}},
    {"jsonrpc": "2.0", "id": "x", "result": [1]},
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no", "data": {"code": "c", "hint": "h"}}},
]
REPORTS = [{"replica": "worker-0", "local_rank": 0, "metrics": {"step": 3, "loss": 0.5, "mine": 1}}]
EVIDENCE = {
    "gpu-a": {
        "uses": [
            {
                **{"gpu": "GPU-a0", "user": "kim", "person": "", "run_id": "", "start": "2031-01-10T09:00:00Z"},
                "end": "2031-01-10T10:00:00Z",
            }
        ],
        "idle": [
            {"booking": "b1", "gpus": ["GPU-a0"], "since": "2031-01-10T09:00:00Z", "seen": "2031-01-10T10:00:00Z"}
        ],
    }
}


def _message(line: bytes) -> Any:
    message = jsonrpc.parse(line)
    if "error" in message:
        jsonrpc.error_of(message)
    return message


def _message_again(message: Any) -> Any:
    # NaN does not equal itself, so messages with NaN are not compared.
    return json.loads(json.dumps(message)) if message == message else message


class _Said:
    """A channel that delivers the given lines and then no further data."""

    def __init__(self, lines: bytes) -> None:
        self._left = lines
        self._asked = threading.Event()

    def send(self, data: bytes) -> None:
        self._asked.set()

    def receive(self, timeout_s: float | None) -> bytes:
        self._asked.wait()
        left, self._left = self._left, b""
        return left

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        self._asked.set()


def answer_of_link(messages: Sequence[Any], method: str) -> Any:
    """Returns the answer to a call of `method` over a link on which the host sends the given messages. Raises HostError
    or AgentRefused if these are not a valid answer.
    """
    lines = [one if isinstance(one, str) else json.dumps(one) for one in messages]
    link = DaemonClient("a host", _Said("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")))
    try:
        return link.call(method, {}, 20.0)
    finally:
        link.close()


def read_link(messages: Sequence[str]) -> Any:
    faults: list[Any] = []
    before, threading.excepthook = threading.excepthook, faults.append
    try:
        return answer_of_link(messages, "telemetry.sample")
    finally:
        threading.excepthook = before
        assert not faults, faults


EVENTS = [
    {"event": "run_state", "state": "running", "reason": "x", "waiting_for": None},
    {"event": "replica_state", "replica": "worker-0", "host": "gpu-a", "state": "running", "exit_code": 1},
    {"event": "gang_restart", "gang": "trainers", "generation": 1, "cause": "x"},
    {"event": "booking_ends", "booking": "b1", "at": "2031-01-10T09:00:00Z", "reason": "x"},
    {"event": "report", "replica": "worker-0", "step": 3, "loss": 0.5, "custom": {"a": 1}, "not_finite": ["b"]},
    {"event": "asked", "by": "kim", "what": "stop"},
    {
        **{"event": "run_ended", "run_id": "r", "state": "failed", "reason": "x", "timings": {"ended_s": 3.5}},
        **{"replicas": [{"name": "worker-0", "state": "failed"}], "metrics": {"worker-0": {"loss": 0.5}}},
    },
]
JOURNAL = {
    **{"run_id": "r", "alive": False, "died": None},
    "entries": [{"time": "2031-01-10T09:00:00Z", "epoch": "ab", "seq": n, **one} for n, one in enumerate(EVENTS, 1)],
}


def follow_journal(data: Any) -> Any:
    """Follows a run whose host sends a journal message, and shows the run's events."""
    if find_mismatch(data, NOTIFICATIONS["state"]):
        return None
    host: Any = SimpleNamespace(host="gpu-a")
    follower, view = Follower("r", host, lambda name: host), PlainView()
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        for event in follower._take(data):
            view.show(event)
            if event["event"] == "run_ended":
                fields_at_end(event)
    return None


def _read_evidence(data: Any) -> Any:
    if not isinstance(data, dict) or find_mismatch(data, Each(ANSWERS["bookings.evidence"])):
        return None
    booking = Booking.from_json(BOOKED)
    return combine_evidence(data, [booking]), reported_uses(data, [])


def _answers(data: Any) -> Any:
    said = [find_mismatch(data, shape) for shape in (*ANSWERS.values(), *NOTIFICATIONS.values())]
    assert all(isinstance(one, str) for one in said)
    return said


SECRET = b"s" * 32


def _codec(*, is_caller: bool) -> authenticated_transport.FrameCodec:
    return authenticated_transport.FrameCodec(SECRET, b"hello", b"nonce", is_caller=is_caller)


def _frame(given: tuple[bytes, int, bytes]) -> Any:
    """Receives an authenticated frame, a part of which has been replaced with `junk`; returns the codec's result."""
    payload, at, junk = given
    sealed = _codec(is_caller=True).seal(payload)
    at %= len(sealed)
    sealed = sealed[:at] + junk + sealed[at + len(junk) :]
    handshake = authenticated_transport.CallerHandshake(SECRET)
    handshake.receive(sealed[: handshake.expects])
    opener = _codec(is_caller=False)
    header = authenticated_transport.HEADER.size
    opener.receive(sealed[:header].ljust(header, b"\0"))
    return opener.receive(sealed[header:][: opener.expects])


def _link(payload: bytes) -> Any:
    """Receives the header that an authenticated peer sends on an exchange connection; returns the header."""
    from torchyard_roles.exchange.tensor_connection import Connection

    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        near.sendall(_codec(is_caller=True).seal(payload))
        near.shutdown(socket.SHUT_WR)
        connection = Connection(far, _codec(is_caller=False), "worker-1", "a host")
        header = connection.receive()
        if "bytes" in header and header["bytes"] is not None:
            connection.discard()
        return header


PUSH = {"op": "push", "chunk": 3, "round": 7, "base": 6, "absent": [1, 2], "wants": False, "changed": 4, "hold": True}


def _push(data: Any) -> Any:
    from torchyard_roles.strategies.parameter_server.messages import push_of

    return push_of(data, 0, 1, 2)


def _push_again(push: Any) -> Any:
    from torchyard_roles.strategies.parameter_server.messages import header_of, push_of

    return push_of(json.loads(json.dumps(header_of(push))), 0, 1, 2)


LAYOUT = {"whole_parameters": False, "parameters": [["w", [3, 4], "float32", 0], ["b", [], "bfloat16", 1]]}


def _layout(text: str) -> Any:
    from torchyard_roles.exchange.parameter_layout import Layout

    return Layout.read(text)


def _layout_again(layout: Any) -> Any:
    return _layout(layout.fingerprint())


QUESTIONS = [
    {"id": 1, "done": 0, "op": "set", "key": "a", "value": "YQ=="},
    {"id": 2, "done": 1, "op": "add", "key": "n", "amount": 2},
    {"id": 3, "done": 1, "op": "compare_set", "key": "a", "expected": None, "value": "YQ=="},
    {"id": 4, "done": 1, "op": "get", "key": "a", "wait_s": 1.5},
    {"id": 5, "done": 1, "op": "wait", "keys": ["a", "b"], "wait_s": 0},
    {"id": 6, "done": 1, "op": "watch", "key": "a"},
    {"id": 7, "done": 1, "op": "delete", "key": "a"},
    {"id": 8, "done": 1, "op": "try", "key": "a"},
    {"id": 9, "done": 1, "op": "count"},
]


class _Writer:
    """A stream writer that discards all data."""

    transport: Any

    def __init__(self) -> None:
        self.transport = self

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return self

    def setsockopt(self, *option: Any) -> None:
        pass


def _questions(said: Sequence[str]) -> Any:
    """Sends a rank's messages to a keeper's join store; asserts that no task of the store fails."""
    wrong: list[Any] = []
    logging.getLogger("torchyard_agent.keeper.link.join_store").setLevel(logging.ERROR)

    async def visit() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        reader = asyncio.StreamReader(limit=1 << 22)
        codec = _codec(is_caller=True)
        for one in said:
            reader.feed_data(codec.seal(one.encode("utf-8", "surrogatepass")))
        reader.feed_eof()
        stream = Stream(reader, _Writer(), _codec(is_caller=False))  # type: ignore[arg-type]  # The writer is a fake.
        await StoreServer(JoinStore()).serve(stream, {"store": "worker-0", "session": "x"})
        await asyncio.sleep(0)

    asyncio.run(visit())
    assert not wrong, wrong
    return None


MANIFEST = {
    **{"step": 3, "epoch": 1, "final": False, "run": "r", "fingerprint": "f", "strategy": "none", "time": 1.0},
    "files": {"model.pt": 2, "optimizer.pt": 2, "extra.pt": 2},
}


def _manifest(path: Path) -> Any:
    root = path.parent
    folder = root / checkpoint_files.name_of(3)
    if not folder.is_dir():
        folder.mkdir()
        for name in checkpoint_files.FILES:
            (folder / name).write_bytes(b"ab")
    (folder / checkpoint_files.ABOUT).write_bytes(path.read_bytes())
    checkpoint_files.complete(root)
    return checkpoint_files.read(root, 3).about


ENVIRONMENT = {
    "TORCHYARD_ROLE": "worker",
    "TORCHYARD_REPLICA": "worker-1",
    "TORCHYARD_RANK": "1",
    "TORCHYARD_WORLD_SIZE": "2",
    "TORCHYARD_STRATEGY": "downpour",
    "TORCHYARD_GROUP": "1",
    "TORCHYARD_GROUPS": "2",
    "TORCHYARD_GROUP_RANK": "0",
    "TORCHYARD_GROUP_SIZE": "1",
    "TORCHYARD_PROCESS": "0",
    "TORCHYARD_PROCESSES": "1",
    "TORCHYARD_KEY": "ab" * 32,
    "TORCHYARD_STORE": "10.0.0.1:4000",
    "TORCHYARD_GENERATION": "1",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHYARD_OPTIONS": json.dumps({"kind": "downpour", "push_every": 2, "checkpoint_every_s": 5}),
    "TORCHYARD_PEERS": json.dumps(
        {"ps": [["ps-0", "10.0.0.1", 4001]], "trainers": [["chief-0", "10.0.0.1", 4002, 1, 0]]}
    ),
}


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    chosen = dict(ENVIRONMENT)
    for name in draw(st.lists(st.sampled_from(sorted(ENVIRONMENT)), max_size=4)):
        if draw(st.booleans()):
            chosen.pop(name, None)
        elif name in ("TORCHYARD_OPTIONS", "TORCHYARD_PEERS"):
            chosen[name] = draw(in_json([json.loads(ENVIRONMENT[name])]))
        else:
            chosen[name] = draw(
                st.sampled_from(["0", "1", "2", "-1", "x", "", "²", "9" * 5000, "ps", "évaluator-١"]) | WORDS
            )
    return chosen


# Parsers of command arguments, foreign documents and the clipboard

SET = [
    *("pools.workers.replicas=2", "program.args=[--epochs, 2]", "program.env.A=b", "pins.worker-0=gpu-b:2", "name=x"),
    *("strategy.kind=downpour", "pools.0.gpus=1", "layout.a.b=1", "program.exclude.0=x", "program.workdir=null"),
]
SET_WORDS = [
    "pools.", "workers", "chief", ".replicas", "=", ".0", ".", "program.", "env.", "args", "[1, 2]", "{", "&a *a",
    "layout", "hosts", "labels.", "99999999999999999999", "1e5", "version=2", "strategy",
]  # fmt: skip


@functools.cache
def _base() -> Any:
    topology = topology_from_text(TOPOLOGIES[1]).topology
    assert topology is not None
    return topology


GPUS = ["gpu-a:0-1,3 gpu-b:*", "GPU-a0", "big-cpu:cpu", "gpu-b:2", "gpu-a:3-0"]
GPU_WORDS = ["gpu-a", "gpu-b", ":", "-", ",", "*", "0", "9", "cpu", "0-99999999999", "GPU-b1"]


def _gpus(text: str) -> Any:
    return parse_slots(text, SLOTS)


def _gpus_again(slots: Any) -> Any:
    return parse_slots(format_slots([one.id for one in slots], SLOTS), SLOTS)


def _small(text: str) -> None:
    """Parses the input as port numbers and as the pin of a replica. Both parsers may raise ValueError."""
    for read in (parse_ports, parse_pin):
        try:
            read(text)
        except ValueError:
            continue


def _foreign(text: str) -> Any:
    found = detect_format(text)
    for name in READ:
        try:
            read_foreign(name, text, "document")
        except FileProblem:
            continue
    return found


def _copied_again(copied: Any) -> Any:
    """Copies each copied pool once more.

    Returns `copied` if every new copy equals its original, otherwise the first new copy that differs.
    """
    if sum(one.pool.replicas for one in copied) > 200:
        return copied
    for one in copied:
        base = _base().model_copy(update={"pools": (one.pool,), "pins": {}})
        names = [f"{one.pool.role}-{number}" for number in range(one.pool.replicas)]
        (again,) = read_copied(copy_replicas(base, names))
        if again != replace(one, pins=(None,) * len(one.pins)):
            return again
    return copied


@functools.cache
def foreign_samples() -> tuple[str, ...]:
    from tests.core.interop import samples

    return tuple(text for name, text in sorted(vars(samples).items()) if name.isupper() and isinstance(text, str))


def zoned(text: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(text, st.sampled_from(ZONES))


COPIED = copy_replicas(_base(), ["chief-0", "worker-0", "worker-1"])
STORED = (ValueError, KeyError, TypeError)
"""The errors that callers catch when they read a stored value."""

PARSERS = (
    Parser(
        "topology file",
        as_bytes(texts(TOPOLOGIES, YAML_WORDS)),
        of_file("t.yaml", _checked),
        (FileProblem,),
        _topology_again,
    ),
    Parser(
        "fleet file",
        as_bytes(texts(FLEETS, YAML_WORDS)),
        of_file("fleet.yaml", _fleet),
        (TorchyardError,),
        _fleet_again,
    ),
    Parser(
        "search file",
        as_bytes(texts(SEARCHES, SEARCH_WORDS)),
        of_file("s.yaml", _search),
        (FileProblem,),
        _search_again,
    ),
    Parser("tuning job", texts(STUDIES, SEARCH_WORDS), lambda text: vertex_study.read(text).search, (FileProblem,)),
    Parser("table of a sweep", in_json([SWEEP]), read_table, (ValueError,)),
    Parser("settings", as_bytes(texts(SETTINGS, YAML_WORDS)), of_file("settings.yaml", _settings), (UsageError,)),
    Parser(
        "ssh's configuration",
        as_bytes(texts([SSH_CONFIG], ["Host ", "Match ", "Include ", "=", "*", '"', "#", "~", "\n"])),
        of_file("config", lambda path: host_names(config_text(path))),
    ),
    Parser("facts of hosts", as_bytes(in_json([FACTS])), of_file("facts.json", _facts)),
    Parser("a run's record", as_bytes(in_json([RUN])), of_file("20310110.json", _record)),
    Parser("kept calendar", as_bytes(in_json([BOOKED])), kept_calendar),
    Parser("time", zoned(texts(TIMES, TIME_WORDS)), _time, (Refused,), _time_again),
    Parser("end and length", zoned(texts(TIMES, TIME_WORDS)), _end, (Refused,)),
    Parser(
        "planned time",
        zoned(texts(["now 8h", "2031-01-11T08:00:00+00:00 8h"], TIME_WORDS)),
        _planned,
        (Refused,),
        _planned_again,
    ),
    Parser("rule of a series", zoned(texts(RULES_OF_SERIES, RULE_WORDS)), _series, (Refused,)),
    Parser(
        "calendar file", zoned(as_bytes(texts([EVENT], ICS_WORDS))), _calendar_file, (BadCalendar,), _calendar_again
    ),
    Parser(
        *("rules of a team", plain([RULES]), lambda data: Rules.from_json(data), (UsageError, *STORED, AttributeError)),
        lambda rules: Rules.from_json(json.loads(json.dumps(rules.to_json()))),
    ),
    Parser("wish", plain([WISH]), wish_from_json, (ValueError,), lambda wish: wish_from_json(wish_to_json(wish))),
    Parser(
        *("booking", plain([BOOKED]), lambda data: Booking.from_json(data), (*STORED, AttributeError)),
    ),
    Parser("snapshot for agents", plain([SNAPSHOT]), calendar.parse, (RpcError,)),
    Parser(
        *("message", as_bytes(in_json(MESSAGES)), _message, (MalformedMessage,), _message_again),
    ),
    Parser("report", as_bytes(in_json(REPORTS)), metrics_report.decode),
    Parser(
        "frame",
        st.tuples(st.binary(max_size=80), st.integers(0, 200), st.binary(max_size=6)),
        *(_frame, (AuthenticationError,)),
    ),
    Parser("answers of hosts", plain([FACTS["gpu-a"], [RUN], SNAPSHOT]), _answers),
    Parser(
        "link to a host",
        st.lists(in_json([*MESSAGES, {"jsonrpc": "2.0", "method": "telemetry", "params": {}}]), max_size=4),
        read_link,
        (HostError, AgentRefused),
    ),
    Parser("journal of a run", plain([JOURNAL]), follow_journal, (RunFailed,)),
    Parser("what hosts saw", plain([EVIDENCE]), _read_evidence),
    Parser(
        "header of the exchange",
        as_bytes(in_json([PUSH, {"bytes": 4, "dtype": "float32"}])),
        _link,
        (ProtocolError, PeerLost),
    ),
    Parser("push", plain([PUSH]).filter(lambda one: isinstance(one, dict)), _push, (ValueError,), _push_again),
    Parser("layout", in_json([LAYOUT]), _layout, (ValueError,), _layout_again),
    Parser("join store", st.lists(in_json(QUESTIONS), max_size=6), _questions),
    Parser("checkpoint", as_bytes(in_json([MANIFEST])), of_file("about.json", _manifest), (Damaged,)),
    Parser("environment", environments(), read_environment, (EnvironmentProblem,)),
    Parser(
        "--set",
        st.lists(texts(SET, SET_WORDS), max_size=3),
        lambda words: apply_overrides(_base(), words),
        (UsageError,),
    ),
    Parser("GPUs", texts(GPUS, GPU_WORDS), _gpus, (Refused,), _gpus_again),
    Parser("ports and pins", texts(["29400-29499", "gpu-b:0-3", "gpu-b"], GPU_WORDS), _small),
    Parser("documents of others", texts(foreign_samples(), YAML_WORDS), _foreign),
    Parser("clipboard", in_json([json.loads(COPIED)]), read_copied, (UsageError,), _copied_again),
)
