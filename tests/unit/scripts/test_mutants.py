from pathlib import Path

import pytest
from scripts.mutants import ROOT, TABLES, BadMutantError, Mutant, place_of, read_tables, texts_of


def mutant(old: str, new: str = "return 2") -> Mutant:
    return Mutant(name="m", area="a", breaks="", old=old, new=new, tests=())


def test_every_mutant_is_found_once_and_its_tests_exist() -> None:
    texts = texts_of(ROOT / "src")
    mutants = read_tables(TABLES)
    assert len(mutants) >= 60
    for each in mutants:
        place_of(each, texts)
        assert each.tests
        assert all((ROOT / test.partition("::")[0]).exists() for test in each.tests), each.name


def test_any_white_space_matches_and_new_lines_are_indented_like_the_old() -> None:
    text = "def f():\n        if a:\n            return   1\n"
    place = place_of(mutant("if a:\n  return 1", "if b:\n    return 2"), [(Path("f.py"), text)])
    assert place.after == "def f():\n        if b:\n            return 2\n"


@pytest.mark.parametrize("text", ["", "return 1\nreturn 1\n"])
def test_a_text_that_does_not_occur_exactly_once_is_refused(text: str) -> None:
    with pytest.raises(BadMutantError, match="times and not once"):
        place_of(mutant("return 1"), [(Path("f.py"), text)])


def test_a_mutant_that_changes_nothing_is_refused() -> None:
    with pytest.raises(BadMutantError, match="by the same"):
        place_of(mutant("return 1", "return 1"), [(Path("f.py"), "return 1\n")])
