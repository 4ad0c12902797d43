"""The process through which the batch program of a trial's job accesses the study.

The process runs under the Python of the training programs. Each line of its standard input is a request in JSON. For
each request, the process prints its answer in one line (`job_trials.answer`):

    {"op": "report", "metrics": {…}}   ->   {"stop": ""}

Before all answers, the process prints a line that contains {} if the study can be used, and otherwise {"error": …}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback


def main(run_dir: str, number: str) -> int:
    # Slurm may signal all processes of a job. This process ignores the signals, because it may hold the sweep's lock,
    # and ends when its standard input is closed.
    for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Output of imported packages must not be taken for an answer.

    def answer(text: str) -> None:
        out.write(f"{text}\n")
        out.flush()

    try:
        from torchyard_agent.sweeps import job_trials

        trials = job_trials.JobTrials(run_dir, int(number))
    except Exception as error:  # The batch program reports any error of Optuna or of the storage.
        traceback.print_exc()
        answer(json.dumps({"error": _sentence(error)}))
        return 1
    answer("{}")
    with open(0, encoding="utf-8", closefd=False) as requests:
        for request in requests:
            try:
                answer(job_trials.answer(trials, request))
            except Exception as error:  # As above. The process continues with the next request.
                traceback.print_exc()
                answer(json.dumps({"error": _sentence(error)}))
    return 0


def _sentence(error: Exception) -> str:
    if not isinstance(error, ImportError):
        return f"{type(error).__name__}: {error}"
    # Optuna's ImportError about the missing package cmaes has no `name`.
    name = (error.name or "").partition(".")[0] or ("cmaes" if "cmaes" in str(error) else str(error))
    wanted = "'optuna>=4.2,<5'" if name == "optuna" else name
    what = "Optuna" if name == "optuna" else f"the package {name}"
    return (
        f"{what} is not installed for {sys.executable}, which chooses the trials; install it there with "
        f"`{sys.executable} -m pip install {wanted}`"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
