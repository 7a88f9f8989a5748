from collections.abc import Mapping
from pathlib import Path

from scripts.measure_code import measured, table

FILES: Mapping[str, str] = {
    "__init__.py": "",
    "one.py": '"""What it does. Nobody knows."""\n\n\nclass Twice:\n    pass\n',
    "two.py": "from penstock import one\n\n\nclass Twice:\n    pass\n\n\ndef f() -> None:\n    import penstock.three\n",
    "three.py": "from penstock.one import Twice  # tells who came\n",
    "four.py": "def long() -> None:\n" + "    pass\n" * 80,
}


def tree(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    package = folder / "src" / "penstock"
    package.mkdir(parents=True)
    for name, text in files.items():
        (package / name).write_text(text, encoding="utf-8")
    return folder


def test_files_imports_and_classes_are_counted(tmp_path: Path) -> None:
    found = measured(tree(tmp_path), trace=False)
    assert found["files"] == 5
    assert found["files under 50 lines"] == 4
    assert found["max lines of a file"] == 81
    assert found["functions over 80 lines"] == 1
    assert found["modules with one importer"] == 1  # three.py; one.py has two
    assert found["function-level imports"] == 1
    assert found["duplicates"] == {"Twice": ["src/penstock/one.py", "src/penstock/two.py"]}


def test_prose_is_measured_per_1000_words(tmp_path: Path) -> None:
    found = measured(tree(tmp_path), trace=False)
    assert found["words of docstrings and comments"] == 8
    assert found['"what" per 1,000 words'] == 125.0
    assert found["nobody, somebody per 1,000 words"] == 125.0
    assert found["docstrings that begin with What/Whether/Whoever/Of"] == 1


def test_columns_are_aligned_and_a_missing_measure_is_a_dash() -> None:
    assert table(["before", "now"], [{"files": 1_234}, {"files": 5, "lines": 10}]) == (
        "       before  now\nfiles   1,234    5\nlines       -   10\n"
    )
