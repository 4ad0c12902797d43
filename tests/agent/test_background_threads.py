"""Tests of blocking calls that run in threads and whose callers may be cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from torchyard_agent.background_threads import in_a_thread


def fails(go_on: threading.Event) -> None:
    go_on.wait(10)
    raise OSError("no space left")


@pytest.mark.parametrize("work", [lambda go_on: go_on.wait(10), fails])
def test_cancelling_a_caller_whose_thread_still_works_raises_no_error(work: Any) -> None:
    async def cancelled() -> list[dict[str, Any]]:
        errors: list[dict[str, Any]] = []
        go_on = threading.Event()
        before = set(threading.enumerate())
        loop = asyncio.get_running_loop()
        # In a keeper, the event loop's exception handler would end the run. Here, it records exceptions.
        loop.set_exception_handler(lambda _, context: errors.append(context))
        waiting = asyncio.create_task(in_a_thread(work, go_on))
        await asyncio.sleep(0)  # The event loop needs one iteration to start the task.
        working = set(threading.enumerate()) - before
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        for thread in working:
            thread.join(10)
        await asyncio.sleep(0.01)  # Lets the event loop run the threads' callbacks.
        return errors

    assert asyncio.run(cancelled()) == []


@pytest.mark.parametrize("work", [lambda go_on: go_on.wait(10), fails])
def test_a_thread_that_still_works_when_the_event_loop_is_closed_ends_without_an_error(work: Any) -> None:
    go_on = threading.Event()
    before = set(threading.enumerate())

    async def cancelled() -> None:
        waiting = asyncio.create_task(in_a_thread(work, go_on))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(cancelled())
    working = set(threading.enumerate()) - before
    assert working
    go_on.set()
    for thread in working:
        thread.join(10)  # pytest reports an exception that the thread does not handle.


def test_the_caller_gets_the_result_or_the_error() -> None:
    assert asyncio.run(in_a_thread(lambda: 7)) == 7
    go_on = threading.Event()
    go_on.set()
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(in_a_thread(fails, go_on))
