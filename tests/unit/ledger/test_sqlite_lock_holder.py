"""A process suspended while it writes blocks all others: the error names it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.dialects import sqlite
from penstock.ledger.dialects.sqlite import holder_of

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM audit")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not show its locks")
def test_the_error_names_a_stopped_writer_and_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.1)
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path)
    assert holder_of(str(path)) is None
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "locked\n"
        os.kill(writer.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(TemporaryError, match=rf"now by process {writer.pid} .* kill -CONT {writer.pid}"):
            ledger.ensure_pipeline("clicks")
    finally:
        writer.kill()
        writer.wait()
    assert ledger.ensure_pipeline("clicks").next_seq == 1
    ledger.close()
