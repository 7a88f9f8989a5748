"""The command line as a process among others: closed streams, broken pipes, full disks, odd encodings, Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock.cli import main as cli
from penstock.cli import status as status_verb
from penstock.cli.output import print_table
from penstock.ledger.records import AttemptFailure

SECONDS_MAX = 60
FAILED, TEMPORARY_FAILURE, INTERRUPTED = 1, 75, 130


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script in which `penstock` is the tested one."""
    python = f"{sys.executable} -m penstock"
    return subprocess.run(
        ["bash", "-c", f'penstock() {{ {python} "$@"; }}; {script}'],
        env=_with_path(environment),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=SECONDS_MAX,
        check=False,
    )


def _with_path(environment: Mapping[str, str]) -> dict[str, str]:
    source = str(Path(cli.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": source, "COLUMNS": "200", **environment}


@pytest.mark.parametrize(
    ("command", "closed"),
    [("objects list", ">&-"), ("status --json", "<&- >&- 2>&-"), ("objects list --limit 1", "2>&-")],
)
def test_closed_streams_are_no_error(scene: Scene, command: str, closed: str) -> None:
    scene.process("a", "b")
    result = shell(f"penstock {command} {closed}")
    assert (result.returncode, result.stderr) == (0, "")
    assert shell("penstock objects list --json").stdout.startswith("["), "no output was written into a database"


@pytest.mark.parametrize("command", ["objects list --limit 500", "objects list --limit 500 --json", "status --json"])
def test_a_reader_that_closes_early_causes_no_error_output(scene: Scene, command: str) -> None:
    scene.process(*(f"{number:0200}" for number in range(500)))
    result = shell(f"penstock {command} | true; exit ${{PIPESTATUS[0]}}")
    assert result.stderr == ""
    assert result.returncode in (0, FAILED), "0 if the pipe held all of it before its reader closed"


@pytest.mark.parametrize("command", ["objects list", "status --json"])
def test_a_full_disk_is_reported_in_one_line(scene: Scene, command: str) -> None:
    scene.process("a")
    result = shell(f"penstock {command} > /dev/full")
    assert result.returncode == TEMPORARY_FAILURE
    assert result.stderr.startswith("penstock: No space left on device")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_name_can_be_printed_in_every_encoding(scene: Scene, encoding: str) -> None:
    scene.process("名前😀é")
    assert shell("penstock objects list", PYTHONIOENCODING=encoding).returncode == 0
    result = shell("penstock objects list --json", PYTHONIOENCODING=encoding)
    (document,) = json.loads(result.stdout)
    assert document["object"].endswith("/名前😀é")


def test_notices_go_to_stderr_and_data_to_stdout(scene: Scene) -> None:
    scene.process("a", "b")
    result = shell("penstock objects list --limit 1")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith("There are more than 1")


def test_a_narrow_terminal_wraps_long_names_and_omits_empty_columns(scene: Scene) -> None:
    name = "a-long-name-" * 10
    scene.fail(name, AttemptFailure.DEAD, "it is bad")
    lines = in_a_terminal("objects", "list", columns=80)
    assert max(map(len, lines)) <= 80
    assert "rows" not in lines[0]
    assert "it is bad" in "".join(lines)
    first_column = "".join(line[: lines[0].index("state")].strip() for line in lines[1:])
    assert first_column == f"{scene.source}/{name}"


def test_for_programs_a_long_cell_pads_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    long = "STRUCT<" + "x" * 400 + ">"
    print_table(("name", "type", "why"), [("a", "INT", ""), ("bcdefg", long, "y"), ("h", "BIGINT", "z")], empty="")
    assert capsys.readouterr().out.splitlines() == [
        "name    type    why",
        "a       INT",
        f"bcdefg  {long}  y",
        "h       BIGINT  z",
    ]


def in_a_terminal(*arguments: str, columns: int) -> list[str]:
    """Return the visible text, without colours."""
    controller, terminal_end = pty.openpty()
    try:
        command = [sys.executable, "-m", "penstock", *arguments]
        environment = _with_path({"COLUMNS": str(columns), "TERM": "dumb"})
        with subprocess.Popen(
            command, stdin=terminal_end, stdout=terminal_end, stderr=subprocess.PIPE, env=environment
        ) as child:
            os.close(terminal_end)
            shown = b"".join(iter(lambda: _read(controller), b""))
            assert child.wait(SECONDS_MAX) == 0
    finally:
        os.close(controller)
    return shown.decode().splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux reports a closed terminal like this
        return b""


def test_version_prints_the_program_and_its_version(penstock: Call) -> None:
    result = penstock("--version")
    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("penstock")


def test_shell_completion_is_offered(penstock: Call) -> None:
    assert "--install-completion" in penstock("--help").out
    result = shell("penstock --show-completion bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_PENSTOCK_COMPLETE=complete_bash" in result.stdout


def test_ctrl_c_with_nothing_in_flight_exits_with_130(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(places: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("penstock.cli.status.read_status", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT for background processes
    try:
        result = penstock("status")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.out) == (INTERRUPTED, "")
    assert result.err == "penstock: interrupted; nothing is lost, run it again to continue\n"


def test_an_internal_error_writes_its_traceback_to_a_file_and_one_line_to_the_screen(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(places: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setenv("TMPDIR", str(scene.source.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("penstock.cli.status.read_status", defect)
    result = penstock("status")
    assert (result.exit_code, result.out) == (FAILED, "")
    (line,) = result.err.splitlines()
    assert line.startswith("penstock: this is a bug in Penstock (ValueError: two\\nlines)")
    written = Path(line.rpartition(" ")[2]).read_text()
    assert written.startswith("Traceback")
    assert status_verb.__file__ in written
