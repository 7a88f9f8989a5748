import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.forked_process import LOCALE, ForkedPopen

REPORT = """
import json, os, sys
print(json.dumps([
    sys.argv, os.getcwd(), sys.path[:2], os.environ["GIVEN"], "HOME" in os.environ, os.getsid(0) == os.getpid(),
    __name__, sys.stdin.read(),
]))
print("on stderr", file=sys.stderr)
sys.exit(5)
"""


def started(*command: str, **options: object) -> "subprocess.Popen[str]":
    found: subprocess.Popen[str] = ForkedPopen([sys.executable, *command], **options)  # type: ignore[call-overload]
    assert vars(found)["_status"] is not None, "it was not forked"
    return found


def test_a_forked_process_behaves_like_a_started_one(tmp_path: Path) -> None:
    spoken = {name: os.environ[name] for name in LOCALE if name in os.environ}
    process = started(
        *("-c", REPORT, "a b"),
        cwd=tmp_path,
        env={**spoken, "GIVEN": "this", "PYTHONPATH": "/first"},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate("from here", timeout=60)
    expected = [["-c", "a b"], str(tmp_path), ["", "/first"], "this", False, True, "__main__", "from here"]
    assert (process.returncode, json.loads(out), err) == (5, expected, "on stderr\n")


def test_a_module_is_run_with_its_arguments() -> None:
    process = started("-m", "penstock", "--version", stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0].startswith("penstock ")
    assert process.returncode == 0


def test_a_forked_process_can_be_killed_and_leaves_nothing() -> None:
    process = started("-c", "import time; time.sleep(60)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert process.wait(60) == process.poll() == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_forked_process_has_imported_penstock_and_begins_with_one_thread() -> None:
    code = "import sys, threading; print('penstock.app.app' in sys.modules, threading.active_count())"
    process = started("-c", code, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0] == "True 1\n"


@pytest.mark.parametrize("given", [{"env": {"PYTHONOPTIMIZE": "1"}}, {"pass_fds": [2]}, {"preexec_fn": os.getpid}])
def test_options_that_a_fork_cannot_provide_start_a_new_process(given: dict[str, object]) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('penstock' in sys.modules)"]
    process: subprocess.Popen[bytes] = ForkedPopen(command, **given)  # type: ignore[call-overload]
    assert process.wait(60) == 0
