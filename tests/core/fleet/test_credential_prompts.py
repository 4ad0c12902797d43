"""Tests of prompts for credentials: one login at a time asks, and it asks again only if the answer was rejected."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from torchyard_core.fleet.credential_prompts import (
    CredentialCache,
    CredentialKind,
    CredentialPrompt,
    NotAnswered,
    printable,
)

QUESTION = CredentialPrompt(CredentialKind.PASSPHRASE, "gpu-a", "the key ~/.ssh/id", "Passphrase")


class User:
    """A user who gives the prepared answers in order, and cancels afterwards."""

    def __init__(self, *answers: str):
        self.answers = list(answers)
        self.asked: list[CredentialPrompt] = []

    def ask(self, question: CredentialPrompt) -> str | None:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else None


def opens(answer: str) -> str | None:
    return f"opened by {answer}" if answer == "right" else None


def test_what_many_need_at_once_is_asked_once() -> None:
    user = User("right")
    secrets = CredentialCache(user)
    began = time.monotonic()
    ready = threading.Barrier(8)

    def settle(_: int) -> str | None:
        ready.wait(60)
        return secrets.obtain("key", QUESTION, began, opens, "no")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(settle, range(8))) == {"opened by right"}
    assert len(user.asked) == 1


def test_giving_up_holds_for_logins_under_way_and_not_for_later_ones() -> None:
    user = User()
    secrets = CredentialCache(user)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NotAnswered) as refused:
            secrets.obtain("key", QUESTION, began, opens, "no")
        assert refused.value.given_up
    assert len(user.asked) == 1

    user.answers = ["right"]
    assert secrets.obtain("key", QUESTION, time.monotonic(), opens, "no") == "opened by right"


def test_an_empty_answer_goes_on_without_and_is_not_remembered() -> None:
    user = User("", "right")
    secrets = CredentialCache(user)
    assert secrets.obtain("key", QUESTION, time.monotonic(), opens, "no") is None
    assert secrets.obtain("key", QUESTION, time.monotonic(), opens, "no") == "opened by right"


def test_a_login_without_a_prompter_is_not_given_up() -> None:
    with pytest.raises(NotAnswered) as refused:
        CredentialCache().ask("key", QUESTION, time.monotonic())
    assert not refused.value.given_up


def test_answers_do_not_show_in_what_may_be_printed() -> None:
    user = User("right")
    secrets = CredentialCache(user)
    secrets.remember("password", "right")
    assert "right" not in repr(secrets) + repr(vars(NotAnswered(QUESTION, given_up=True)))


def test_a_servers_words_cannot_reach_for_the_terminal() -> None:
    assert printable("\x1b]0;evil\x07Pass\nword:\r\x00 \u202e") == "]0;evil Pass word:"
    assert len(printable("x" * 10_000)) == 400
