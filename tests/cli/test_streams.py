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
from penstock.ledger.records import AttemptFailure

SECONDS_MAX = 60
FAILED, TEMPORARY_FAILURE, INTERRUPTED = 1, 75, 130


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which `penstock` is ours."""
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
    ("verb", "closed"), [("objects list", ">&-"), ("status --json", "<&- >&- 2>&-"), ("objects list --limit 1", "2>&-")]
)
def test_closed_streams_are_no_mistake(scene: Scene, verb: str, closed: str) -> None:
    scene.process("a", "b")
    said = shell(f"penstock {verb} {closed}")
    assert (said.returncode, said.stderr) == (0, "")
    assert shell("penstock objects list --json").stdout.startswith("["), "nothing was printed into a database"


@pytest.mark.parametrize("verb", ["objects list --limit 500", "objects list --limit 500 --json", "status --json"])
def test_a_reader_that_closes_early_gets_nothing_more(scene: Scene, verb: str) -> None:
    scene.process(*(f"{number:0200}" for number in range(500)))
    said = shell(f"penstock {verb} | true; exit ${{PIPESTATUS[0]}}")
    assert said.stderr == ""
    assert said.returncode in (0, FAILED), "0 where the pipe took all of it before its reader left"


@pytest.mark.parametrize("verb", ["objects list", "status --json"])
def test_a_full_disk_is_reported_in_a_sentence(scene: Scene, verb: str) -> None:
    scene.process("a")
    said = shell(f"penstock {verb} > /dev/full")
    assert said.returncode == TEMPORARY_FAILURE
    assert said.stderr.startswith("penstock: No space left on device")
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_name_can_be_said_in_every_encoding(scene: Scene, encoding: str) -> None:
    scene.process("名前😀é")
    assert shell("penstock objects list", PYTHONIOENCODING=encoding).returncode == 0
    said = shell("penstock objects list --json", PYTHONIOENCODING=encoding)
    (document,) = json.loads(said.stdout)
    assert document["object"].endswith("/名前😀é")


def test_talk_goes_to_stderr_and_data_to_stdout(scene: Scene) -> None:
    scene.process("a", "b")
    said = shell("penstock objects list --limit 1")
    assert len(said.stdout.splitlines()) == 2
    assert said.stderr.startswith("There are more than 1")


def test_a_narrow_terminal_folds_long_names_and_leaves_empty_columns_out(scene: Scene) -> None:
    name = "a-long-name-" * 10
    scene.fail(name, AttemptFailure.DEAD, "it is bad")
    lines = in_a_terminal("objects", "list", columns=80)
    assert max(map(len, lines)) <= 80
    assert "rows" not in lines[0]
    assert "it is bad" in "".join(lines)
    first_column = "".join(line[: lines[0].index("state")].strip() for line in lines[1:])
    assert first_column == f"{scene.source}/{name}"


def in_a_terminal(*arguments: str, columns: int) -> list[str]:
    """Return the visible text, without colours."""
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "penstock", *arguments]
        environment = _with_path({"COLUMNS": str(columns), "TERM": "dumb"})
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as child:
            os.close(theirs)
            shown = b"".join(iter(lambda: _read(ours), b""))
            assert child.wait(SECONDS_MAX) == 0
    finally:
        os.close(ours)
    return shown.decode().splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that the other side has gone
        return b""


def test_the_version(penstock: Call) -> None:
    said = penstock("--version")
    assert (said.exit_code, said.err) == (0, "")
    assert said.out.startswith("penstock")


def test_completion_is_offered_for_the_name_people_type(penstock: Call) -> None:
    assert "--install-completion" in penstock("--help").out
    said = shell("penstock --show-completion bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_PENSTOCK_COMPLETE=complete_bash" in said.stdout


def test_ctrl_c_where_nothing_is_in_flight(penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(places: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("penstock.cli.status.read_status", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs behind it
    try:
        said = penstock("status")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (said.exit_code, said.out) == (INTERRUPTED, "")
    assert said.err == "penstock: interrupted; nothing is lost, run it again to go on\n"


def test_a_defect_of_ours_leaves_its_traceback_in_a_file_and_a_sentence_on_the_screen(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(places: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setenv("TMPDIR", str(scene.source.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("penstock.cli.status.read_status", defect)
    said = penstock("status")
    assert (said.exit_code, said.out) == (FAILED, "")
    (line,) = said.err.splitlines()
    assert line.startswith("penstock: this is a defect of Penstock (ValueError: two\\nlines)")
    written = Path(line.rpartition(" ")[2]).read_text()
    assert written.startswith("Traceback")
    assert status_verb.__file__ in written
