"""Daemon threads, which do not delay the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_background(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Future[Result]:
    """Runs `work` on a daemon thread and returns a future of its result or error.

    Unlike those of a ThreadPoolExecutor, the thread is not joined at exit, so that Ctrl-C ends the program while a host
    does not answer.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:  # every error is raised by Future.result()
            future.set_exception(error)
        else:
            future.set_result(result)

    name = getattr(work, "__name__", "work")
    threading.Thread(target=run, name=f"background-{name}", daemon=True).start()
    return future


Answers = dict[str, Future[Any]]
"""Pending answers, by host."""
