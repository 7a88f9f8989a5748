"""File systems mounted below a source's root that are unmounted: real ones, in a separate namespace."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
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


def can_mount() -> bool:
    """Return True if this machine grants a mount namespace."""
    try:
        tried = subprocess.run(["unshare", "-rm", "true"], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="not applicable: this machine grants no mount namespaces")
@pytest.mark.parametrize("mounted", ["before the start", "late"])
def test_files_below_an_unmounted_file_system_are_not_reported_as_deleted(tmp_path: Path, mounted: str) -> None:
    folder = tmp_path.resolve()
    (folder / "d e").mkdir()
    (folder / "other").touch()
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", SCRIPT, folder, mounted],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"nothing is mounted on {folder}/d e any more, and files are missing in it"
    printed = done.stdout.splitlines()
    assert [line.startswith(expected) for line in printed] == [True, True, False], done.stderr
    assert printed[-1] == "gone"
