"""Tests that `hosts audit` shows each kind of act in words, with its user and details."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard_core.cli.views.audit_table import row

NOBODY = {"time": "later", "by": "", "from": ""}
PROCESS = {"program": "train\x1b[2J", "pid": 7, "user": "lee", "gpus": ["GPU-1", "GPU-2"]}


@pytest.mark.parametrize(
    ("act", "what", "by", "details"),
    [
        ({"what": "upgrade", "version": "1.1", "before": "1.0"}, "agent replaced", "-", "1.1 after 1.0"),
        ({"what": "undeploy", "refused": "run_alive", "by": "kim"}, "undeploy refused", "kim", "a run lives there"),
        (
            {"what": "housekeeping", "runs": 2, "snapshots": 1},
            "garbage collected",
            "the agent itself",
            "2 runs, 1 snapshot",
        ),
        ({"what": "unheard of"}, "unheard of", "-", "-"),
        (
            {"what": "enforcement", "act": "warned", "dry_run": True, "verdict": "others", "owner": "kim", **PROCESS},
            "dry run: user warned",
            "the agent itself",
            "train[2J (7) of lee on 2 GPUs, booked by kim",
        ),
        (
            {
                "what": "enforcement",
                "act": "reported",
                "verdict": "root",
                "owner": "kim",
                **PROCESS,
                "origin": {
                    "as_root": True,
                    "user": "lee",
                    "session": "7",
                    "known_by": "loginuid",
                    "container": "4d1f\x1b",
                },
            },
            "violation reported",
            "the agent itself",
            "train[2J (7) of root, in container 4d1f, from a login of lee (session 7) on 2 GPUs, booked by kim",
        ),
        (
            {
                "what": "enforcement",
                "act": "reported",
                "verdict": "root",
                "owner": "kim",
                **PROCESS,
                "origin": {"as_root": True, "user": None, "known_by": ""},
            },
            "violation reported",
            "the agent itself",
            "train[2J (7) of root, from a login that is not known on 2 GPUs, booked by kim",
        ),
        (
            {"what": "enforcement", "act": "reported", "verdict": "unknown", "owner": "kim", **PROCESS},
            "violation reported",
            "the agent itself",
            "train[2J (7) of lee on 2 GPUs, booked by kim, a login that the calendar does not name",
        ),
    ],
)
def test_an_act_is_shown_in_plain_words(act: dict[str, Any], what: str, by: str, details: str) -> None:
    assert row("gpu-a", {**NOBODY, **act}) == ["later", "gpu-a", what, by, details]
