"""Proof that a process is dead: its lock is free."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from penstock.app.processes import ProcessRegistry, draft_of

HOLD = """
import sys
from pathlib import Path
from penstock.app.processes import ProcessRegistry
with ProcessRegistry(Path(sys.argv[1])).register("other"):
    print("ready", flush=True)
    sys.stdin.read()
"""

FORK = """
import os
import sys
from pathlib import Path
from penstock.app.processes import ProcessRegistry
with ProcessRegistry(Path(sys.argv[1])).register("other"):
    child = os.fork()
    os.write(1, b"%d\\n" % child)
    sys.stdin.read()
"""


def test_a_registered_process_is_living_and_leaves_nothing_behind(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    with registry.register("me"):
        assert registry.living() == ["me"]
        with registry.dead() as workers:
            assert workers == []
    assert registry.living() == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_is_dead_at_once_and_reported_once(tmp_path: Path) -> None:
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


def test_a_killed_process_is_dead_even_if_a_forked_child_lives(tmp_path: Path) -> None:
    """Children of a `multiprocessing.Pool` live on for a while. The end of such a child proves nothing either."""
    registry = ProcessRegistry(tmp_path)
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        (child,) = {int(process.stdout.readline()) for _ in range(2)} - {0}
        assert registry.living() == ["other"]
        process.kill()
        process.wait()
        os.kill(child, 0)  # raises if the child has ended
        assert registry.living() == []
        process.stdin.close()
        assert process.stdout.read() == b"", "the child is still running"
    with registry.dead() as workers:
        assert workers == ["other"]


def test_a_dead_process_is_reported_again_after_a_failed_sweep(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    (tmp_path / "dead.lock").touch()
    failing = registry.dead()
    assert failing.__enter__() == ["dead"]
    failing.__exit__(RuntimeError, RuntimeError("the sweep"), None)
    with registry.dead() as workers:
        assert workers == ["dead"]


def test_the_files_of_a_dead_process_are_deleted_with_its_lock(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    for file in (registry.record("dead"), draft_of(registry.record("dead")), tmp_path / "dead.lock"):
        file.touch()
    with registry.dead() as workers:
        assert workers == ["dead"]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_inspects_a_lock_is_not_mistaken_for_its_owner(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    (tmp_path / "dead.lock").touch()
    descriptor = os.open(tmp_path / "dead.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # another process inspects the lock at this moment
    assert not registry.is_living("dead")
    assert not registry.is_living("never there")
    with registry.dead() as workers:
        assert workers == ["dead"]
    os.close(descriptor)
