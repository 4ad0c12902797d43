"""Runs blocking calls in threads, and awaits their results in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")


async def in_a_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Runs a blocking function in a new thread.

    A thread pool is not used, because its threads would still exist when the ranks are forked. If the caller is
    cancelled, `function` still runs to its end, but its result is discarded.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(method: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # The future may have been cancelled.
            method(outcome)

    def report(method: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop may have been closed since the caller was cancelled.
            loop.call_soon_threadsafe(settle, method, outcome)

    def work() -> None:
        try:
            result = function(*arguments)
        except BaseException as error:  # The exception is re-raised in the caller.
            report(future.set_exception, error)
        else:
            report(future.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return await future


async def uncancelled(awaitable: Awaitable[Result]) -> Result:
    """Returns the result of `awaitable`, and delays a cancellation of the caller until `awaitable` is done.

    Without the delay, a thread might still be using files that the caller removes next. Only the first cancellation is
    delayed.
    """
    done = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done})
        if not done.cancelled():
            # The exception is retrieved here, because asyncio would otherwise log a warning. Only the cancellation is
            # raised.
            done.exception()
        raise
