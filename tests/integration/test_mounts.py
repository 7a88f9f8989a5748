"""File systems that are mounted below a source's root, and go away: real ones, in a namespace of the test's own."""

import subprocess
import sys
from pathlib import Path

import pytest

IN_A_NAMESPACE_OF_ITS_OWN = """
import subprocess, sys
from pathlib import Path
from penstock.errors import ObjectGone, TemporaryError
from penstock.objects.cleanup_local import FileDeleter
from penstock.objects.local_store import LocalStore

source, late = Path(sys.argv[1]), sys.argv[2] == "late"
folder = source / "d e"
mount = lambda: subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
umount = lambda: subprocess.run(["umount", folder], check=True)
store = LocalStore(source) if late else None
mount()
(folder / "a").write_text("x")
(folder / "b").write_text("x")
store = store or LocalStore(source)
cleaner = FileDeleter(str(source))
a, b = store.describe(folder / "a"), store.describe(folder / "b")
if late:
    store.open(b).close()
umount()
for look in (lambda: store.open(a), lambda: cleaner.clean(a)):
    try:
        look()
    except TemporaryError as away:
        print(away)
mount()
try:
    store.open(a)
except ObjectGone:
    print("gone")
"""


def may_mount() -> bool:
    """Whether this machine grants a namespace of mounts."""
    try:
        tried = subprocess.run(["unshare", "-rm", "true"], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(not may_mount(), reason="not applicable: this machine grants no mount namespaces")
@pytest.mark.parametrize("comes", ["before the start", "late"])
def test_files_below_a_mount_that_is_away_are_not_gone(tmp_path: Path, comes: str) -> None:
    folder = tmp_path.resolve()
    (folder / "d e").mkdir()
    (folder / "other").touch()
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", IN_A_NAMESPACE_OF_ITS_OWN, folder, comes],
        capture_output=True,
        text=True,
        check=False,
    )
    away = f"nothing is mounted on {folder}/d e any more, and files are missing in it"
    told = done.stdout.splitlines()
    assert [line.startswith(away) for line in told] == [True, True, False], done.stderr
    assert told[-1] == "gone"
