"""Tests of the parsers of a cluster's calendar, with texts that Slurm 22.05.8 has printed."""

from __future__ import annotations

from torchyard_agent.slurm.calendar import parse_jobs, parse_reservations

RESERVATIONS = """\
ReservationName=maint StartTime=1796000000 EndTime=1796007200 Duration=02:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=16 \
Features=(null) PartitionName=main Flags=MAINT,SPEC_NODES TRES=cpu=16 Users=root,lee Groups=(null) Accounts=(null) \
Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
ReservationName=course StartTime=1796010000 EndTime=1796017200 Duration=02:00:00 Nodes=n3 NodeCnt=1 CoreCnt=8 \
Features=(null) PartitionName=main Flags=SPEC_NODES TRES=cpu=8 Users=(null) Groups=(null) Accounts=nlp \
Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
"""


def test_reservations_have_their_nodes_times_and_users() -> None:
    first, second = parse_reservations(RESERVATIONS)
    assert first == {
        "name": "maint",
        "start": 1796000000.0,
        "end": 1796007200.0,
        "nodes": ["n1", "n2"],
        "users": ["root", "lee"],
        "state": "INACTIVE",
    }
    assert (second["nodes"], second["users"]) == (["n3"], [])


def test_a_cluster_without_reservations_prints_a_sentence() -> None:
    assert parse_reservations("No reservations in the system\n") == []


def test_running_jobs_of_all_users_have_their_end_times() -> None:
    rows = [
        ["7", "train", "RUNNING", "1796000000", "n[1-2]", "lee", "1796003600"],
        ["24_1", "sweep", "RUNNING", "1796000000", "n3", "kim", "N/A"],
        ["9", "later", "PENDING", "1796009000", "", "kim", "N/A"],
    ]
    first, second = parse_jobs(rows)
    assert first["nodes"] == ["n1", "n2"]
    assert (first["id"], first["user"], first["start"], first["end"]) == ("7", "lee", 1796000000.0, 1796003600.0)
    assert (second["id"], second["end"]) == ("24_1", None)
