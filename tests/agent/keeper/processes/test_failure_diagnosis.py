"""Tests of diagnosing failures from the output of real programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard_agent.keeper.decisions.events import Cause
from torchyard_agent.keeper.processes import failure_diagnosis

TRACEBACK = """step 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
  File "train.py", line 2, in main
    raise ValueError("bad batch")
ValueError: bad batch
"""


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (TRACEBACK, "ValueError: bad batch"),
        ("".join(f"[rank0]: {line}\n" for line in TRACEBACK.splitlines()), "ValueError: bad batch"),
        (TRACEBACK + "[W1121 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group()\n", "ValueError: bad batch"),
        (
            f"{TRACEBACK}\nDuring handling of the above exception, another one:\n\n{TRACEBACK}".replace("bad", "x", 1),
            "ValueError: bad batch",
        ),
        ('  File "train.py", line 1\n    def\n       ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        ("Traceback (most recent call last):\n  File 'a'\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n  File 'a'\nmy.own.Boom: wet\nmore\n", "my.own.Boom: wet"),
        (
            "\x1b[31mTraceback (most recent call last):\x1b[0m\n  File 'a'\n\x1b[1mOSError\x1b[0m: gone\n",
            "OSError: gone",
        ),
        (
            "terminate called after throwing\n  what():  [enforce fail at pair.cc] op.nbytes\n",
            "[enforce fail at pair.cc] op.nbytes",
        ),
        ("epoch 1\nall well\n", ""),
        ("", ""),
    ],
)
def test_the_last_uncaught_exception_is_found(printed: str, found: str) -> None:
    assert failure_diagnosis.last_exception(printed) == found


def test_a_long_message_is_cut_to_one_line() -> None:
    found = failure_diagnosis.last_exception("Traceback (most recent call last):\n  File 'a'\nError: " + "x" * 5000)
    assert len(found) == failure_diagnosis.MAX_QUOTE
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("text", "consequence"),
    [
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("torch.distributed.DistBackendError: NCCL error in: …, remote process exited", True),
        ("torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("torchyard_roles.errors.PeerLost: ps-0 on 10.0.0.2 is gone: it closed the connection.", True),
        ("torchyard_roles.errors.StoreLost: The run's join store at 10.0.0.1:4000 cannot be reached: timed out.", True),
        ("ValueError: bad batch", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_connection_errors_count_as_consequences(tmp_path: Path, text: str, consequence: bool) -> None:
    log = tmp_path / "log"
    log.write_text(f"Traceback (most recent call last):\n  File 'a'\n{text}\n")
    assert failure_diagnosis.of_exit(1, "", str(log)) == Cause(f"exited with 1: {text}", consequence)


def test_a_lost_peer_is_recognized_without_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step 8\ntorchyard: reducer-1 on 10.0.0.2 is gone: it closed the connection.\n")
    assert failure_diagnosis.of_exit(1, "", str(log)).consequence


@pytest.mark.parametrize(
    ("text", "curable"),
    [
        ("torchyard_roles.errors.UsageProblem: worker-1's model differs from the chief's: `w` is …", False),
        ("torchyard_roles.errors.NotInThisVersion: The strategy 'x' is not in this version.", False),
        ("torchyard_roles.errors.StoreTimeout: worker-1 did not call distribute() within 600 s.", True),
        ("RuntimeError: UsageProblem", True),
    ],
)
def test_usage_errors_of_a_script_are_incurable(tmp_path: Path, text: str, curable: bool) -> None:
    log = tmp_path / "log"
    log.write_text(f"Traceback (most recent call last):\n  File 'a'\n{text}\n")
    assert failure_diagnosis.of_exit(1, "", str(log)).curable is curable


AT_THE_TOP = 'Traceback (most recent call last):\n  File "/w/train.py", line 2, in <module>\n    import model\n'
BROKEN = '  File "/w/model.py", line 7\n    def forward(:\n                ^\nSyntaxError: invalid syntax\n'
RUN_AS_MODULE = (
    'Traceback (most recent call last):\n  File "<frozen runpy>", line 189, in _run_module_as_main\n'
    '  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed\n'
)


@pytest.mark.parametrize(
    ("printed", "is_broken"),
    [
        (BROKEN, True),
        ("warning: slow disk\n" + BROKEN.replace("SyntaxError", "IndentationError"), True),
        (AT_THE_TOP + BROKEN, True),
        (RUN_AS_MODULE + BROKEN, True),
        ("".join(f"[rank0]: {line}\n" for line in (AT_THE_TOP + BROKEN).splitlines()), True),
        # The program evaluates a text, or imports a module later.
        (AT_THE_TOP + BROKEN.replace("/w/model.py", "<unknown>"), False),
        (AT_THE_TOP.replace("<module>", "main") + BROKEN, False),
        ("Traceback (most recent call last):\n  File 'a'\nSyntaxError: raised by hand\n", False),
        (TRACEBACK, False),
    ],
)
def test_a_program_that_cannot_be_compiled_is_incurable(tmp_path: Path, printed: str, is_broken: bool) -> None:
    log = tmp_path / "log"
    log.write_text(printed)
    assert failure_diagnosis.of_exit(1, "", str(log)).curable is not is_broken


def test_the_syntax_error_of_a_real_script_is_incurable(tmp_path: Path) -> None:
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text("print('began')\ndef forward(:\n")
    with log.open("wb") as output:
        ended = subprocess.run([sys.executable, "-S", str(script)], stdout=output, stderr=output, check=False)
    cause = failure_diagnosis.of_exit(ended.returncode, "", str(log))
    assert cause == Cause("exited with 1: SyntaxError: invalid syntax", curable=False)


def test_torchs_error_file_comes_before_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(TRACEBACK)
    error = tmp_path / "error.json"
    for message in ({"message": "KeyError: 'x'\nmore", "extraInfo": {"timestamp": "1"}}, "KeyError: 'x'"):
        error.write_text(json.dumps({"message": message}))
        assert failure_diagnosis.of_exit(1, str(error), str(tmp_path / "log")).text == "exited with 1: KeyError: 'x'"
    error.write_text("{half")
    assert (
        failure_diagnosis.of_exit(1, str(error), str(tmp_path / "log")).text == "exited with 1: ValueError: bad batch"
    )


def test_an_invalid_error_file_is_ignored(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    error_file.write_text("[" * 200_000)  # The nesting exceeds the recursion limit of Python.
    assert failure_diagnosis.of_exit(1, str(error_file), "").text == "exited with 1 and printed nothing"


def test_without_an_exception_the_last_line_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("python: can't open file 'trian.py': [Errno 2] No such file or directory\n\n")
    assert failure_diagnosis.of_exit(2, "", str(log)).text.startswith(
        "exited with 2; its last line was: python: can't open"
    )
    assert failure_diagnosis.of_exit(2, "", str(tmp_path / "none")).text == "exited with 2 and printed nothing"


def test_signals_have_their_names() -> None:
    assert failure_diagnosis.of_exit(-11, "", "").text == "was killed by SIGSEGV"
    assert (
        failure_diagnosis.of_exit(-9, "", "", out_of_memory=True).text
        == "was killed by SIGKILL (the host ran out of memory)"
    )
    assert "SIGTERM, which did not come from Torchyard" in failure_diagnosis.of_exit(-15, "", "").text
    assert failure_diagnosis.of_exit(-40, "", "").text == "was killed by signal 40"


def test_gloos_abort_is_the_consequence_of_a_peer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("terminate called after throwing 'gloo::IoException'\n  what():  [x] Connection closed\n")
    assert failure_diagnosis.of_exit(-6, "", str(log)) == Cause("was killed by SIGABRT: [x] Connection closed", True)


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 80 + "\n")
    with log.open("a") as file:
        for _ in range(20000):
            file.write("epoch and loss and so on\n")
        file.write(TRACEBACK)
    assert len(failure_diagnosis.read_tail(str(log))) == failure_diagnosis.TAIL
    assert failure_diagnosis.of_exit(1, "", str(log)).text == "exited with 1: ValueError: bad batch"
