"""Finds the threads on which the window's jobs run."""

from __future__ import annotations

import threading

from torchyard_core.background_thread import THREAD_PREFIX


def job_threads(work: str = "") -> set[threading.Thread]:
    """Returns the threads that run in the background, or only those that run the function with the name `work`.

    They are daemon threads, for which Python does not wait at its end.
    """
    return {thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX + work)}
