"""Proof that a process is dead: its lock is free."""

import subprocess
import sys
from pathlib import Path

from penstock.app.processes import ProcessRegistry

HOLD = """
import sys
from pathlib import Path
from penstock.app.processes import ProcessRegistry
with ProcessRegistry(Path(sys.argv[1])).registered("other"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_registered_process_is_living_and_leaves_nothing_behind(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    with registry.registered("me"):
        assert registry.living() == ["me"]
        with registry.dead() as workers:
            assert workers == []
    assert registry.living() == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_is_dead_at_once_and_told_once(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert registry.living() == ["other"]
        process.kill()
        process.wait()
    with registry.dead() as workers:
        assert workers == ["other"]
    with registry.dead() as workers:
        assert workers == []


def test_a_dead_process_is_told_again_when_the_sweep_for_it_failed(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    (tmp_path / "gone.lock").touch()
    failing = registry.dead()
    assert failing.__enter__() == ["gone"]
    failing.__exit__(RuntimeError, RuntimeError("the sweep"), None)
    with registry.dead() as workers:
        assert workers == ["gone"]
