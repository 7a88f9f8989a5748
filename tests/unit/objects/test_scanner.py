"""The scanner on real folders: a fixed order, no silent omissions, no loops."""

import errno
import os
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import PROBLEMS_MAX, Scanner, ScanReport
from penstock.objects.selection import SkipReason


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "in"
    folder.mkdir()
    return folder


def write(path: Path, content: bytes = b"x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def scan(folder: Path, *roots: Path, excluded: tuple[Path, ...] = ()) -> tuple[list[ObjectRef], ScanReport]:
    scanner = Scanner(folder, store=LocalStore(*(roots or (folder,))), excluded=excluded)
    found = [ref for chunk in scanner.chunks() for ref in chunk]
    return found, scanner.report()


def names(found: list[ObjectRef], folder: Path) -> list[str]:
    return [os.path.relpath(ref.key, folder) for ref in found]


def test_files_are_found_in_a_fixed_order(folder: Path) -> None:
    for name in ("b", "a/2", "a/1", "c/d/e", "B", "a.txt", "é"):
        write(folder / name)
    found, report = scan(folder)
    assert names(found, folder) == ["B", "a.txt", "b", "é", "a/1", "a/2", "c/d/e"]
    assert report == ScanReport(found=7, size_bytes=14, ignored={}, problems=(), problems_count=0)
    assert scan(folder)[0] == found


def test_references_equal_those_of_the_store(folder: Path) -> None:
    path = write(folder / "a", b"")
    found, _ = scan(folder)
    assert found == [LocalStore(folder).describe(path)]
    assert found[0].size_bytes == 0


def test_chunks_are_bounded_and_lazy(folder: Path) -> None:
    for number in range(7):
        write(folder / f"{number}")
    scanner = Scanner(folder, store=LocalStore(folder), chunk_objects=3)
    chunks = scanner.chunks()
    assert len(next(chunks)) == 3
    assert scanner.report().found == 3
    assert [len(chunk) for chunk in chunks] == [3, 1]
    assert [len(chunk) for chunk in scanner.chunks()] == [3, 3, 1]  # another walk, with new counts
    assert scanner.report().found == 7


def test_hidden_excluded_and_special_entries_are_counted(folder: Path) -> None:
    write(folder / "good")
    write(folder / ".hidden")
    write(folder / ".git" / "config")
    write(folder / "table" / "data" / "part-0.parquet")
    os.mkfifo(folder / "fifo")
    (folder / "to-fifo").symlink_to(folder.parent / "fifo")
    os.mkfifo(folder.parent / "fifo")
    (folder / "to-table").symlink_to(folder / "table")
    (folder / "to-part").symlink_to(folder / "table" / "data" / "part-0.parquet")
    found, report = scan(folder, excluded=(folder / "table", folder / "missing"))
    assert names(found, folder) == ["good"]
    assert report.ignored == {SkipReason.HIDDEN: 2, SkipReason.SPECIAL: 2, SkipReason.EXCLUDED: 3}
    assert report.excluded == (str(folder / "table"),)
    assert report.problems == ()


@pytest.mark.parametrize("own", ["_delta_log", "_penstock"])
def test_other_tables_in_the_source_are_excluded(folder: Path, own: str) -> None:
    write(folder / "good")
    write(folder / "other" / own / "00000.json")
    write(folder / "other" / "data" / "part-0.parquet")
    found, report = scan(folder)
    assert names(found, folder) == ["good"]
    assert report.ignored == {SkipReason.EXCLUDED: 1}
    assert report.excluded == (str(folder / "other"),)


@pytest.mark.parametrize("own", ["_delta_log", "_penstock"])
def test_table_and_data_directories_at_the_top_of_the_source_are_excluded(folder: Path, own: str) -> None:
    write(folder / "good")
    write(folder / own / "ledger.db")
    scanner = Scanner(folder, store=LocalStore(folder))
    assert names([ref for chunk in scanner.chunks() for ref in chunk], folder) == ["good"]
    assert scanner.report().ignored == {SkipReason.EXCLUDED: 1}
    assert list(scanner.at(folder / own / "ledger.db")) == []


def test_an_excluded_folder_may_be_named_through_a_link(folder: Path) -> None:
    write(folder / "table" / "part-0.parquet")
    (folder.parent / "link").symlink_to(folder)
    found, report = scan(folder.parent / "link", excluded=(folder.parent / "link" / "table",))
    assert found == []
    assert report.ignored == {SkipReason.EXCLUDED: 1}


def test_links_within_the_folder_add_no_objects(folder: Path) -> None:
    write(folder / "a")
    write(folder / "sub" / "b")
    (folder / "0-link-a").symlink_to("a")
    (folder / "link-b").symlink_to(folder / "sub" / "b")
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "sub" / "link-sub").symlink_to(folder / "sub")
    (folder / "self").symlink_to("self")
    (folder / "dangling").symlink_to("nowhere")
    found, report = scan(folder)
    assert names(found, folder) == ["a", "sub/b"]
    assert report.ignored == {SkipReason.LINK_TO_SCANNED: 4, SkipReason.LINK_BROKEN: 2}


def test_a_hidden_file_is_found_once_through_its_links(folder: Path) -> None:
    # Kubernetes mounts files in this layout.
    target = write(folder / "..2024" / "a")
    (folder / "..data").symlink_to("..2024")
    (folder / "a").symlink_to("..data/a")
    (folder / "again").symlink_to("..data/a")
    found, report = scan(folder)
    assert [ref.key for ref in found] == [str(target)]
    assert report.ignored == {SkipReason.HIDDEN: 2, SkipReason.LINK_TO_SCANNED: 1}


def test_links_out_of_the_roots_are_refused_as_problems(folder: Path) -> None:
    outside = write(folder.parent / "outside" / "a")
    (folder / "file").symlink_to(outside)
    (folder / "folder").symlink_to(outside.parent)
    found, report = scan(folder)
    assert found == []
    assert report.problems == (
        f"{folder}/file: points outside the folders that may be read, to {outside}",
        f"{folder}/folder: links to folders are not followed; this one leads to {outside.parent}",
    )
    assert names(scan(folder, folder, outside.parent)[0], folder) == ["../outside/a"]


def test_two_hard_links_are_two_objects(folder: Path) -> None:
    os.link(write(folder / "a"), folder / "b")
    assert names(scan(folder)[0], folder) == ["a", "b"]


def test_a_folder_that_cannot_be_listed_is_a_problem_and_the_rest_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a")
    write(folder / "locked" / "b")
    write(folder / "vanished" / "c")
    write(folder / "z" / "d")
    real = os.scandir

    def scandir(path: bytes) -> object:
        match path.rpartition(b"/")[2]:
            case b"locked":
                raise PermissionError(errno.EACCES, "Permission denied")
            case b"vanished":
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found, report = scan(folder)
    assert names(found, folder) == ["a", "z/d"]
    assert report.problems == (f"{folder}/locked: Permission denied",)
    assert report.ignored == {SkipReason.VANISHED: 1}


def test_paths_too_long_for_the_system_are_problems(folder: Path) -> None:
    previous = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(20):  # 20 x 251 bytes: beyond any PATH_MAX
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
        Path("unreachable").write_bytes(b"x")
    finally:
        os.chdir(previous)
    write(folder / "z")
    found, report = scan(folder)
    assert names(found, folder) == ["z"]
    assert len(report.problems) == 1
    assert report.problems[0].endswith(": File name too long")


def test_a_file_deleted_between_listing_and_reading_its_status_is_counted(folder: Path) -> None:
    write(folder / "a")
    write(folder / "b")
    scanner = Scanner(folder, store=LocalStore(folder), chunk_objects=1)
    chunks = scanner.chunks()
    next(chunks)
    (folder / "b").unlink()
    assert list(chunks) == []
    assert scanner.report().ignored == {SkipReason.VANISHED: 1}


def test_problems_are_kept_up_to_a_maximum_and_counted(folder: Path) -> None:
    for number in range(PROBLEMS_MAX + 5):
        (folder / f"{number}").symlink_to("/etc")
    _, report = scan(folder)
    assert (len(report.problems), report.problems_count) == (PROBLEMS_MAX, PROBLEMS_MAX + 5)


def test_problems_are_valid_text_for_any_file_name(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).symlink_to("/etc")
    _, report = scan(folder)
    report.problems[0].encode()
    assert "\\xff" in report.problems[0]


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_missing_folder_or_a_file_is_a_usage_error(folder: Path, name: str) -> None:
    write(folder / "file")
    with pytest.raises(UsageError, match=f"{name} cannot be scanned"):
        Scanner(folder / name, store=LocalStore(folder))
