"""Work beside the main thread that never keeps the program from ending."""

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
    """Runs `work` on a thread of its own; the future has its result or error.

    Unlike those of a ThreadPoolExecutor, the thread is not waited for at exit: who presses Ctrl-C while a host does
    not answer should not sit out its time limit.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:  # whatever it is, it is raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(result)

    name = getattr(work, "__name__", "work")
    threading.Thread(target=run, name=f"background-{name}", daemon=True).start()
    return future


Answers = dict[str, Future[Any]]
"""What several hosts were asked, by host."""
