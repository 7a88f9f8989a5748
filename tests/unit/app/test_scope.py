"""What is meant by what was named, and how a hint names it again."""

from pathlib import Path

import pytest

from penstock.app.paths import TablePaths, declared_table_paths, table_paths
from penstock.app.scope import Scope, ScopeRequest, find_scope, find_scopes, options_for, scopes_here
from penstock.config import Settings
from penstock.errors import UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


def table(folder: Path) -> TablePaths:
    """A table of `penstock ingest`, as far as it is looked for."""
    where = table_paths(folder)
    where.state.mkdir(parents=True)
    (where.state / "ledger.db").touch()
    return where


def app_state(folder: Path) -> None:
    (folder / ".penstock").mkdir()
    (folder / ".penstock" / "queue.db").touch()


def test_a_scope_has_the_addresses_of_what_was_found(here: Path) -> None:
    where = table(here / "clicks")
    scope = find_scope(ScopeRequest(), here=here)
    assert (scope.table, scope.pipeline, scope.tables_meant) == (where, where.pipeline, {where.pipeline: where})
    assert scope.settings.ledger == f"sqlite:///{where.state}/ledger.db"
    assert scope.settings.data_dir == str(where.state)
    app_state(here)
    scope = find_scope(ScopeRequest(pipeline="clicks"), here=here)
    assert (scope.table, scope.pipeline, scope.options) == (None, "clicks", " --pipeline clicks")
    assert scope.settings.ledger == "sqlite:///.penstock/ledger.db"
    assert [one.table for one in scopes_here(here)] == [None, where]
    assert [one.table for one in find_scopes(ScopeRequest(), here=here)] == [None, where]
    assert [one.table for one in find_scopes(ScopeRequest(table="clicks"), here=here)] == [where]
    assert [one.table for one in find_scopes(ScopeRequest(pipeline="clicks"), here=here)] == [None]
    with pytest.raises(UsageError, match="give --table FOLDER"):
        find_scope(ScopeRequest(), here=here)
    views = table(here / "views")
    assert [one.table for one in find_scopes(ScopeRequest(), here=here)] == [None, where, views]


def test_several_tables_without_an_app_have_to_be_named(here: Path) -> None:
    table(here / "clicks")
    table(here / "views")
    with pytest.raises(UsageError, match="clicks, views"):
        find_scopes(ScopeRequest(), here=here)


def test_a_table_named_goes_before_the_rest(here: Path) -> None:
    where = table(here / "clicks")
    app_state(here)
    assert find_scope(ScopeRequest(table="clicks", pipeline="x", app="nothing:app"), here=here).table == where


def test_the_folder_of_workers_can_be_another_than_the_setting(here: Path) -> None:
    app_state(here)
    assert find_scope(ScopeRequest(pipeline="x", state="other"), here=here).settings.data_dir == "other"


def test_nothing_to_look_at_says_where_was_looked(here: Path) -> None:
    for asked in (ScopeRequest(), ScopeRequest(pipeline="x")):
        with pytest.raises(UsageError, match=r"sqlite:///\.penstock/ledger\.db"):
            find_scope(asked, here=here)
    assert scopes_here(here) == []


def test_a_hint_names_a_table_that_would_not_be_found_without(here: Path) -> None:
    where = table(here / "a table" / "clicks")
    assert options_for(str(where.table), here=here) == ""
    assert options_for(str(where.table), state="s", here=here) == f" --table '{where.table}' --data-dir s"
    other = str(table(here / "views").table)
    assert options_for(other, here=here) == f" --table {other}"
    assert options_for(other, here=Path(other)) == ""
    app_state(here)
    assert options_for(other, here=Path(other) / "nowhere") == f" --table {other}"


def test_tables_are_meant_only_as_far_as_their_folders_are_known(here: Path) -> None:
    settings = Settings.model_construct()
    clicks = declared_table_paths("clicks", here / "t", settings)
    assert (clicks.pipeline, clicks.state) == ("clicks", here / ".penstock")
    assert Scope(settings=settings, tables={"clicks": clicks}, pipeline="clicks").tables_meant == {"clicks": clicks}
    with pytest.raises(UsageError, match="no pipeline views; its pipelines: clicks"):
        _ = Scope(settings=settings, tables={"clicks": clicks}, pipeline="views").tables_meant
    with pytest.raises(UsageError, match="no pipeline with a table"):
        _ = Scope(settings=settings, tableless=frozenset({"notes"})).tables_meant
    with pytest.raises(UsageError, match="give --app"):
        _ = Scope(settings=settings, pipeline="clicks").tables_meant
