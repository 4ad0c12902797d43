"""Tests that a rank behaves the same in an interpreter that was started early as in one that was started normally."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from torchyard_agent.keeper.processes import rank_process
from torchyard_agent.keeper.processes.rank_process import Rank, RunPlace
from torchyard_agent.keeper.processes.warm_interpreters import WarmInterpreters, is_set_late

IMPORTED = "colorsys"
"""A module that interpreters import early in place of torch. Nothing else in these tests imports it."""

DESCRIBE = """
import gc, json, os, resource, signal, sys
state = dict(globals())
import ctypes, threading

deathsig = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(deathsig), 0, 0, 0)
status = [line.split() for line in open("/proc/self/status")]
pid = os.getpid()
print(json.dumps({
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", []), "flags": str(sys.flags), "path": sys.path,
    "executable": sys.executable, "main": sorted(state), "file": __file__, "name": __name__, "spec": repr(__spec__),
    "package": __package__, "cached": __cached__, "loader": type(__loader__).__name__,
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "environ": dict(os.environ), "folder": os.getcwd(), "command": open("/proc/self/cmdline").read(),
    "nice": os.nice(0), "policy": os.sched_getscheduler(0), "oom": open("/proc/self/oom_score_adj").read(),
    "leader": [os.getsid(0) == pid, os.getpgid(0) == pid, os.getppid() == int(sys.argv[-1])],
    "deathsig": deathsig.value,
    "signals": [line for line in status if line[0] in ("SigBlk:", "SigIgn:", "SigCgt:")],
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "files": sorted((fd, os.readlink(f"/proc/self/fd/{fd}").split(":")[0]) for fd in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{fd}")),
    "streams": [(one.encoding, one.errors, one.line_buffering, one.write_through) for one in (sys.stdout, sys.stderr)],
    "limits": [resource.getrlimit(number) for number in range(16)], "umask": os.umask(0),
    "threads": [thread.name for thread in threading.enumerate()],
    "hooks": [type(hook).__name__ for hook in sys.meta_path],
    "site": "sitecustomize" in sys.modules,
    "collects": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
}), flush=True)
"""


class Bench:
    """Starts ranks in a run's folder, in interpreters that were started early or normally."""

    def __init__(self, folder: Path):
        self.place = RunPlace("run", "gpu-a", str(folder), "\0report")
        self.work = folder / "work"
        for name in ("work", "logs", "errors"):
            (folder / name).mkdir()
        self.warm = WarmInterpreters()
        self.env: dict[str, str] = {"PYTHONUNBUFFERED": "1"}
        self.secrets: dict[str, str] = {}
        self.interpreter = sys.executable

    def share(self, *arguments: str, **env: str) -> Any:
        argv = [self.interpreter, *arguments]
        return {"rank": 0, "local_rank": 0, "argv": argv, "env": {**self.env, **env}}

    def write(self, name: str, source: str) -> None:
        path = self.work / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(source))

    async def start_early(self, share: Any, *, imports: tuple[str, ...] = (IMPORTED,), spare: bool = False) -> int:
        """Starts an interpreter early.

        Returns its PID once the interpreter waits for its rank, or 0 if it has exited.
        """
        variables = rank_process.environment(os.environ, self.place, "worker-0", share, {})
        self.warm.start(("worker-0", 0), share["argv"], variables, self.place.work, imports, spare=spare)
        (pid,) = self.warm.pids()
        await eventually(lambda: self.warm.are_ready)
        if not self.warm.pids():
            os.waitpid(pid, 0)
            return 0
        return pid

    def start(self, share: Any, *, early: bool) -> Rank:
        return rank_process.spawn(self.place, "worker-0", share, [], self.secrets, warm=self.warm if early else None)

    async def end(self, rank: Rank) -> tuple[int, str]:
        """Waits until the rank exits; returns its exit code and output."""
        await eventually(lambda: rank.process.poll() is not None)
        log = Path(self.place.log_file("worker-0", 0))
        output = log.read_text()
        log.unlink()
        return rank.process.returncode, re.sub("0x[0-9a-f]{8,}", "0x…", output)

    async def both(
        self,
        *arguments: str,
        write: Callable[[], None] = lambda: None,
        act: Callable[[Rank], Awaitable[None]] | None = None,
        late: dict[str, str] | None = None,
    ) -> list[tuple[int, str]]:
        """Runs the program twice: in an interpreter that was started early, and in a normal one.

        `write` creates the program's files after the early interpreter has started.

        Args:
            late: Variables that only the rank has, because they are set after its interpreter has started.

        Returns:
            The exit code and output of both programs, first with the early interpreter.
        """
        share = self.share(*arguments)
        found = []
        for early in (True, False):
            if early:
                pid = await self.start_early(share)
                assert pid, "no interpreter waits"
                write()
            rank = self.start(self.share(*arguments, **(late or {})), early=early)
            assert not early or rank.pid == pid
            if act is not None:
                await act(rank)
            found.append(await self.end(rank))
        return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def alike(found: list[tuple[int, str]]) -> tuple[int, str]:
    early, usual = found
    assert early == usual
    return early


@pytest.mark.parametrize("arguments", [("script.py",), ("inner/script.py",), ("-m", "inner.script"), ("link.py",)])
def test_the_script_runs_as_under_python_script(bench: Bench, arguments: tuple[str, ...]) -> None:
    """The command line, `__main__`, `sys.path`, environment, signals, files, session and niceness are as usual."""

    def write() -> None:
        bench.write("script.py", DESCRIBE)
        bench.write("inner/script.py", DESCRIBE)
        (bench.work / "link.py").symlink_to("inner/script.py")

    async def scenario() -> None:
        late = {"MASTER_PORT": "29500", "RANK": "3", "TORCHYARD_GENERATION": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        found = await bench.both(*arguments, "--lr", "0.1", str(os.getpid()), write=write, late=late)
        for code, output in found:
            assert code == 0, output
        early, usual = (json.loads(output) for _, output in found)
        assert early == usual
        assert early["environ"]["MASTER_PORT"] == "29500"
        assert "TORCHYARD_WARM_START" not in early["environ"]
        assert early["leader"] == [True, True, True]

    asyncio.run(scenario())


def test_an_absolute_script_and_a_relative_pythonpath(bench: Bench, tmp_path: Path) -> None:
    bench.env["PYTHONPATH"] = "src"

    def write() -> None:
        bench.write("script.py", "import sys, library; print(library.__file__, sys.path, __file__)")
        bench.write("src/library.py", "")

    code, output = alike(asyncio.run(bench.both(str(bench.work / "script.py"), write=write)))
    assert (code, "src/library.py" in output) == (0, True), output


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def f():\n    raise ValueError('bad')\nf()", 1),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('what went wrong')", 1),
        ("raise SystemExit", 0),
        ("x = (", 1),
        ("import missing_module", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import atexit; atexit.register(print, 'at the end'); print('first')", 0),
        ("import atexit; atexit.register(print, 'at the end'); 1 / 0", 1),
        ("import warnings; warnings.warn('careful', stacklevel=2)", 0),
        ("import traceback; traceback.print_stack(); import sys; print(sys._getframe().f_back)", 0),
        ("import faulthandler; faulthandler.dump_traceback(all_threads=False)", 0),
        ("import inspect; print([f.function for f in inspect.stack()], inspect.getsource(inspect.currentframe()))", 0),
    ],
)
def test_tracebacks_and_exit_codes_are_those_of_python_script(bench: Bench, source: str, code: int) -> None:
    found = alike(asyncio.run(bench.both("script.py", write=lambda: bench.write("script.py", source))))
    assert found[0] == code, found[1]


def test_a_failing_module_prints_the_traceback_of_python_m(bench: Bench) -> None:
    code, output = alike(asyncio.run(bench.both("-m", "train", write=lambda: bench.write("train.py", "1 / 0"))))
    assert (code, "ZeroDivisionError" in output) == (1, True)


def test_multiprocessing_and_pickle_know_the_scripts_own_classes(bench: Bench) -> None:
    source = """
        import multiprocessing, pickle, sys

        class Point:
            def __init__(self, x):
                self.x = x

        def double(point):
            print("in a child", __name__, sys.argv, sys.path[0], flush=True)
            return Point(2 * point.x)

        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(Point(1))).x, pickle.dumps(Point).split(b"Point")[0][-12:])
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [Point(4)])[0].x)
    """
    found = asyncio.run(bench.both("script.py", "-v", write=lambda: bench.write("script.py", source)))
    code, output = alike(found)
    assert (code, output.splitlines()[-1]) == (0, "8"), output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGINT, -2), (signal.SIGHUP, -1)])
def test_signals_end_it_as_they_end_python_script(bench: Bench, number: int, code: int) -> None:
    source = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)"

    async def act(rank: Rank) -> None:
        log = Path(bench.place.log_file("worker-0", 0))
        await eventually(lambda: log.read_text() == "up\n")
        rank.process.send_signal(number)

    found = asyncio.run(bench.both("script.py", write=lambda: bench.write("script.py", source), act=act))
    assert alike(found)[0] == code


def test_a_sitecustomize_of_the_users_own_is_imported(bench: Bench) -> None:
    bench.env["PYTHONPATH"] = str(bench.work / "site")
    bench.write("site/sitecustomize.py", "import builtins; builtins.seen = __file__")
    source = "import sitecustomize; print(seen, sitecustomize.__file__)"
    code, output = alike(asyncio.run(bench.both("script.py", write=lambda: bench.write("script.py", source))))
    assert (code, output.count("site/sitecustomize.py")) == (0, 2), output


def test_output_of_the_imports_begins_the_ranks_log(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "chatty.py").write_text("import os; print('imported'); os.write(2, b'from below\\n')")
    bench.env["PYTHONPATH"] = str(tmp_path / "lib")
    bench.write("script.py", "import chatty; print('then the script')")

    async def scenario() -> tuple[int, str]:
        share = bench.share("script.py")
        await bench.start_early(share, imports=("chatty",))
        return await bench.end(bench.start(share, early=True))

    assert asyncio.run(scenario()) == (0, "imported\nfrom below\nthen the script\n")


IS_EARLY = f"import os, sys; print({IMPORTED!r} in sys.modules, os.environ.get('OMP_NUM_THREADS'))"


async def _early(bench: Bench, share: Any, later: Any, imports: tuple[str, ...] = (IMPORTED,)) -> tuple[bool, str]:
    """Returns whether the rank runs in the interpreter that was started early, and the first line that the rank
    printed.
    """
    pid = await bench.start_early(share, imports=imports)
    rank = bench.start(later, early=True)
    code, output = await bench.end(rank)
    assert code == 0, output
    return rank.pid == pid, output.splitlines()[0]


def test_early_imports_are_used(bench: Bench) -> None:
    bench.write("script.py", IS_EARLY)
    share = bench.share("script.py")
    assert asyncio.run(_early(bench, share, share)) == (True, "True None")


def test_a_variable_that_torch_reads_at_its_import_makes_the_process_start_anew(bench: Bench) -> None:
    bench.write("script.py", IS_EARLY)
    early, later = bench.share("script.py"), bench.share("script.py", OMP_NUM_THREADS="3")
    assert asyncio.run(_early(bench, early, later)) == (True, "False 3")


def test_a_removed_variable_makes_the_process_start_anew(bench: Bench) -> None:
    bench.write("script.py", IS_EARLY)
    early, later = bench.share("script.py", OMP_NUM_THREADS="3"), bench.share("script.py")
    assert asyncio.run(_early(bench, early, later)) == (True, "False None")


def test_another_command_line_makes_the_process_start_anew(bench: Bench) -> None:
    bench.write("script.py", IS_EARLY + "; print(sys.argv)")
    early, later = bench.share("script.py", "--port", "1"), bench.share("script.py", "--port", "2")
    assert asyncio.run(_early(bench, early, later)) == (True, "False None")


@pytest.mark.parametrize("shadow", [f"{IMPORTED}.py", f"{IMPORTED}/__init__.py"])
def test_a_module_of_the_program_that_shadows_an_imported_one_is_the_one_imported(bench: Bench, shadow: str) -> None:
    """The test creates the module only after the interpreter has been started."""
    source = f"import {IMPORTED}; print({IMPORTED}.__file__)"
    bench.write("inner/script.py", source)

    def write() -> None:
        bench.write(f"inner/{shadow}", "")

    code, output = alike(asyncio.run(bench.both("inner/script.py", write=write)))
    assert (code, output) == (0, f"{bench.work}/inner/{shadow}\n")


def test_an_import_that_fails_is_left_to_the_script(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "half.py").write_text("import colorsys; 1 / 0")
    bench.env["PYTHONPATH"] = str(tmp_path / "lib")
    bench.write("script.py", IS_EARLY)
    share = bench.share("script.py")
    assert asyncio.run(_early(bench, share, share, ("half",))) == (True, "False None")


def test_secrets_arrive_with_the_rank(bench: Bench) -> None:
    bench.write("script.py", f"import os, sys; print(os.environ['TOKEN'], {IMPORTED!r} in sys.modules)")
    bench.secrets = {"TOKEN": "hush"}
    share = bench.share("script.py")

    async def scenario() -> tuple[bool, str]:
        pid = await bench.start_early(share)
        assert b"hush" not in Path(f"/proc/{pid}/environ").read_bytes()
        rank = bench.start(share, early=True)
        return rank.pid == pid, (await bench.end(rank))[1]

    assert asyncio.run(scenario()) == (True, "hush True\n")


def test_variables_that_may_be_set_late() -> None:
    secrets = {"TOKEN": "x", "PYTHONPATH": "y", "OMP_NUM_THREADS": "1"}
    late = ("RANK", "MASTER_ADDR", "TORCHYARD_PEERS", "TORCHELASTIC_RUN_ID", "NCCL_SOCKET_IFNAME", "TOKEN")
    early = ("PYTHONPATH", "OMP_NUM_THREADS", "TORCH_LOGS", "LD_LIBRARY_PATH", "NCCL_DEBUG", "HOME", "ANYTHING")
    assert [is_set_late(name, secrets) for name in late] == [True] * len(late)
    assert [is_set_late(name, secrets) for name in early] == [False] * len(early)


@pytest.mark.parametrize("interpreter", ["wrapper", "isolated", "shell"])
def test_a_wrapper_runs_nothing_before_its_rank(bench: Bench, tmp_path: Path, interpreter: str) -> None:
    """Neither a wrapper around Python, nor one that ignores PYTHONPATH, nor another shell script is started early."""
    lines = {
        "wrapper": f'exec {sys.executable} "$@"',
        "isolated": f'exec {sys.executable} -I "$@"',
        "shell": "echo ran",
    }
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\n{lines.get(interpreter, 'echo ran')}\n")
    wrapper.chmod(0o755)
    bench.interpreter = str(wrapper)
    bench.write("script.py", f"open({str(tmp_path / 'marks')!r}, 'a').write('x'); print('ran')")

    async def scenario() -> tuple[int, str]:
        share = bench.share("script.py")
        assert await bench.start_early(share) == 0
        assert not (tmp_path / "marks").exists()
        bench.warm.start(("worker-0", 0), share["argv"], dict(os.environ), bench.place.work, (IMPORTED,), spare=True)
        assert not bench.warm.pids()  # A command that failed to start early is not tried again.
        return await bench.end(bench.start(share, early=True))

    assert asyncio.run(scenario()) == (0, "ran\n")


@pytest.mark.parametrize("pause_s", [0.1, 5])
def test_a_wrapper_that_has_not_ended_yet_is_not_handed_a_rank(bench: Bench, tmp_path: Path, pause_s: float) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = -c ] && sleep {pause_s}\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    bench.interpreter = str(wrapper)
    bench.write("script.py", "print('ran')")

    async def scenario() -> tuple[int, str]:
        share = bench.share("script.py")
        variables = rank_process.environment(os.environ, bench.place, "worker-0", share, {})
        bench.warm.start(("worker-0", 0), share["argv"], variables, bench.place.work, (IMPORTED,), spare=False)
        (pid,) = bench.warm.pids()
        ended = await bench.end(bench.start(share, early=True))
        os.waitpid(pid, 0)
        return ended

    assert asyncio.run(scenario()) == (0, "ran\n")


def test_an_interpreter_that_was_killed_is_replaced(bench: Bench) -> None:
    bench.write("script.py", IS_EARLY)

    async def scenario() -> tuple[bool, str]:
        share = bench.share("script.py")
        pid = await bench.start_early(share)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not _lives(pid))
        rank = bench.start(share, early=True)
        return rank.pid == pid, (await bench.end(rank))[1]

    assert asyncio.run(scenario()) == (False, "False None\n")


def test_an_interpreter_that_is_not_needed_ends(bench: Bench) -> None:
    async def scenario() -> None:
        pid = await bench.start_early(bench.share("script.py"))
        assert bench.warm.close() == [pid]
        assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)
        assert bench.warm.pids() == []

    asyncio.run(scenario())


def test_a_spare_is_throttled_and_killed_first_until_it_is_the_rank(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    busy = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    (tmp_path / "lib" / "busy.py").write_text(busy)
    bench.env["PYTHONPATH"] = str(tmp_path / "lib")
    bench.write("script.py", "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read())")
    usual = Path("/proc/self/oom_score_adj").read_text()

    async def scenario() -> None:
        share = bench.share("script.py")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        pid = await bench.start_early(share, imports=("busy",), spare=True)
        await eventually(lambda: bench.warm.are_ready)
        # The interpreter needs 0.2 s of CPU time, and is limited to one fifth of a CPU.
        assert loop.time() - begin > 0.5
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
        rank = bench.start(share, early=True)
        assert rank.pid == pid
        assert (await bench.end(rank)) == (0, f"0 {usual}\n")

    asyncio.run(scenario())


def test_a_spare_that_still_imports_becomes_the_rank_at_full_speed(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "slow.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    bench.env["PYTHONPATH"] = str(tmp_path / "lib")
    bench.write("script.py", "import sys; print('slow' in sys.modules)")

    async def scenario() -> None:
        share = bench.share("script.py")
        variables = rank_process.environment(os.environ, bench.place, "worker-0", share, {})
        bench.warm.start(("worker-0", 0), share["argv"], variables, bench.place.work, ("slow",), spare=True)
        (pid,) = bench.warm.pids()
        rank = bench.start(share, early=True)
        assert rank.pid == pid
        bench.write("go", "")
        assert await bench.end(rank) == (0, "True\n")

    asyncio.run(scenario())
