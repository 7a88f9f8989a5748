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
    copy = os.fork()
    os.write(1, b"%d\\n" % copy)
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


def test_a_killed_process_is_dead_though_one_that_it_forked_lives(tmp_path: Path) -> None:
    """As children of a `multiprocessing.Pool` do for a while. The end of such a child says nothing either."""
    registry = ProcessRegistry(tmp_path)
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        (copy,) = {int(process.stdout.readline()) for _ in range(2)} - {0}
        assert registry.living() == ["other"]
        process.kill()
        process.wait()
        os.kill(copy, 0)  # it is there
        assert registry.living() == []
        process.stdin.close()
        assert process.stdout.read() == b"", "the copy has ended"
    with registry.dead() as workers:
        assert workers == ["other"]


def test_a_dead_process_is_told_again_when_the_sweep_for_it_failed(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    (tmp_path / "gone.lock").touch()
    failing = registry.dead()
    assert failing.__enter__() == ["gone"]
    failing.__exit__(RuntimeError, RuntimeError("the sweep"), None)
    with registry.dead() as workers:
        assert workers == ["gone"]


def test_the_record_of_a_dead_process_is_forgotten_with_it(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    for file in (registry.record("gone"), draft_of(registry.record("gone")), tmp_path / "gone.lock"):
        file.touch()
    with registry.dead() as workers:
        assert workers == ["gone"]
    assert list(tmp_path.iterdir()) == []


def test_who_only_looks_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path)
    (tmp_path / "gone.lock").touch()
    descriptor = os.open(tmp_path / "gone.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # another process, looking at this moment
    assert not registry.is_living("gone")
    assert not registry.is_living("never there")
    with registry.dead() as workers:
        assert workers == ["gone"]
    os.close(descriptor)
