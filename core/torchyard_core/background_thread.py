"""Runs functions on daemon threads, which do not delay the exit of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
THREAD_PREFIX = "background-"
"""Prefix of the names of the threads that `in_background` starts."""


def in_background(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Future[Result]:
    """Runs `work` on a daemon thread and returns a future of its result or exception.

    Unlike the threads of a ThreadPoolExecutor, this thread is not joined by the interpreter at exit, so Ctrl-C ends the
    program even if a host does not answer.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:  # Future.result() raises the error in the caller's thread.
            future.set_exception(error)
        else:
            future.set_result(result)

    name = getattr(work, "__name__", "work")
    threading.Thread(target=run, name=THREAD_PREFIX + name, daemon=True).start()
    return future


Answers = dict[str, Future[Any]]
"""Futures of the hosts' answers to a request, by host name."""
