"""Tests that each message with a count has a singular form: `1 host`, `2 hosts`, never `1 hosts`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import REPOSITORY

PACKAGES = ("gui", "core")
NOUNS = (
    "action|backup|booking|byte|chief|conflict|core|CPU|curve|day|digit|document|edge|element|error|evaluator|field|"
    "file|finding|folder|frame|generation|GPU|group|host|hour|interpreter|key|lane|letter|level|line|link|log|"
    "minute|moment|month|network|node|occurrence|optimizer|parameter|person|piece|pool|port|probe|problem|push|"
    "question|rank|reducer|remark|replica|request|restart|row|rule|run|sample|second|server|slot|step|stream|"
    "student|tag|task|terminal|thread|time|trainer|update|user|value|version|warning|week|word|worker|year|match|"
    "process|pass|entr"
)
LITTLE_WORDS = "of|on|to|the|that|and|or|is|are|has|have|no|use|come|lists|becomes?"
PLURAL = re.compile(rf"\{{[^{{}}]*\}} (?:(?!(?:{LITTLE_WORDS})\b)[a-z]+ ){{0,2}}({NOUNS})(?:s|es|ies)\b(?!/s)")
CONSTANT = re.compile(r"\{[A-Z_]+\}")
"""Matches a placeholder for a constant, which is a limit and not a count."""

# Beginnings of messages whose count is never 1.
SEVERAL = (
    # A run that continues after a loss has two or more workers, and a model is sharded over two or more hosts.
    "step {step}: {count} of {all} workers continue",
    "step {last['step']}: {left} of {left + lost} workers",
    "step {event['step']}: {left} of {left + lost} workers",
    "A sharded model is saved by all {len(hosts)} hosts",
    # For one item, the code shows the item's name, a different sentence, or nothing.
    "{count} bookings of “{title}” ",
    "{count} replicas on it.",
    "{count} hosts",
    "{count} replicas selected",
    "{count} selected replicas",
    "{count} pools",
    "{count} hosts were lost",
    "{count} runs compared",
    "All {count} replicas",
    "Edit {count} hosts",
    "On {count} hosts.",
    "{len(hosts)} hosts",
    "the other {len(hosts)} hosts",
    "Trust the host keys of {count} hosts",
    "{len(listening)} hosts reach each other on the data network, both ways",
    "number {number} of the {count} bookings of the series",
    "nothing was booked: number {number} of the {count} bookings of the series",
    # The second number is greater than 1, or there is another sentence for 1.
    "{count} of {all} GPUs",
    "{count} of {all} nodes",
    "step {added.step}: {added.workers} of {added.planned} workers",
    "only on {count} of {hosts} hosts",
    "{answering} of {hosts} hosts answer",
    "The first {count} of {all} ",
    "no host has {wish.count} GPUs of that kind",
    # Durations are shown in days only if they are two days or longer.
    "{count} days",
    "{seconds / DAY_S} days",
    "{hours // 24} days",
    "{hours / 24} days",
    # An exchange has at least two trainers.
    ", {count} trainers",
    "{count} trainers",
    "{groups} worker groups have no servers.",
    "the pushes of {groups} groups that take turns",
    "{counts['nserver_groups']} server groups become one of ",
    # A recommendation names groups if there are several, and a step waits for the slowest of several trainers.
    " in {counts.groups} groups",
    "waiting for the slowest of {len(ranks)} trainers",
    "pool `{pool.name}` has {pool.gpus} GPUs for each replica, and reduction_server continues",
    # The canvas shows these counts only if they are greater than 1.
    "{count} edges",
    "restarted {count} times",
    # The count is greater than a limit, which is itself greater than 1.
    "the note has {len(annotation.note)} letters",
    "the tag {tag[:MAX_TAG]}… has {len(tag)} letters.",
    "left out with all after it, {expanded} times come before it",
    "the working folder {folder} holds {count} files, too many to send.",
    "these are {total} replicas.",
    "these are {replicas} evaluators",
    "these are {len(specs)} worker pools.",
    "{total} replicas are over the limit of {MAX_REPLICAS}",
    "a process on {host} may open only {soft} files",
    "{files} open files, lockable memory",
    "{writers[host]} replicas share the run's working folder",
    # This number is not a count.
    "in '{text}' the range {first}-{last} runs backwards",
    "{run_id} matches several runs",
    "The profile of {profile.host_kind} was measured {when} with other files",
    "{cluster.name} tracks processes by linuxproc",
    "the disk of {link.host} has ",
    "Its compute time is {factor} times the median",
    "{role} replicas use no GPU",
    " of at most {bound.max_length} characters",
    "{address} ports {ports}",
)


def test_each_count_has_a_singular() -> None:
    problems = [problem for package in PACKAGES for path in modules(package) for problem in problems_of(path)]
    assert not problems, "\n".join(problems)


def test_a_missing_singular_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'def wrong(count):\n    return f"{count} idle hosts"\n\n'
        'def right(count):\n    return "1 idle host" if count == 1 else f"{count} idle hosts"\n'
    )
    assert problems_of(module) == [f"{module}:2: no singular of: {{count}} idle hosts"]


def modules(package: str) -> list[Path]:
    found = sorted((REPOSITORY / package).rglob("*.py"))
    assert len(found) > 100
    return found


def problems_of(path: Path) -> list[str]:
    texts = list(_texts(ast.parse(path.read_text(encoding="utf-8"))))
    return [
        f"{path}:{line}: no singular of: {text}"
        for line, text, beside in texts
        for noun in PLURAL.findall(CONSTANT.sub("", text))
        if not text.startswith(SEVERAL)
        and not any(re.search(rf"\b(?:1|an?|one|the)\b.* {noun}y?\b", other, re.IGNORECASE) for other in beside)
    ]


def _texts(tree: ast.AST) -> Iterator[tuple[int, str, list[str]]]:
    """Yields the line and the text of each literal that is not a docstring, and the function's other literals."""
    for scope in _scopes(tree):
        found = [(node.lineno, text) for node in _within(scope) if (text := _text_of(node)) is not None]
        for line, text in found:
            yield line, text, [other for _, other in found if other != text]


def _scopes(tree: ast.AST) -> list[ast.AST]:
    return [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))]


def _within(scope: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions of a scope, but not those of nested functions and docstrings."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.JoinedStr):
            yield from _within(node)


def _text_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_source(part)}}}" for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _source(part: ast.expr) -> str:
    """Returns the source code of a placeholder's expression."""
    assert isinstance(part, ast.FormattedValue)
    return re.sub(r"[{}]", "", ast.unparse(part.value))
