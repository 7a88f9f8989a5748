"""The scope that options of a command select, and the options that a hint gives."""

from pathlib import Path

import pytest

from penstock.app.paths import TablePaths, declared_table_paths, table_paths
from penstock.app.scope import Scope, ScopeRequest, find_scope, find_scopes, options_for, scopes_here
from penstock.config import Settings
from penstock.errors import SettingUnfit, UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


def table(folder: Path) -> TablePaths:
    """Create the files by which a table of `penstock ingest` is found."""
    paths = table_paths(folder)
    paths.state.mkdir(parents=True)
    (paths.state / "ledger.db").touch()
    return paths


def app_state(folder: Path) -> None:
    (folder / ".penstock").mkdir()
    (folder / ".penstock" / "queue.db").touch()


def test_a_scope_has_the_addresses_of_the_table_or_app_that_was_found(here: Path) -> None:
    paths = table(here / "clicks")
    scope = find_scope(ScopeRequest(), here=here)
    assert (scope.table, scope.pipeline, scope.tables_meant) == (paths, paths.pipeline, {paths.pipeline: paths})
    assert scope.settings.ledger == f"sqlite:///{paths.state}/ledger.db"
    assert scope.settings.data_dir == str(paths.state)
    app_state(here)
    scope = find_scope(ScopeRequest(pipeline="clicks"), here=here)
    assert (scope.table, scope.pipeline, scope.options) == (None, "clicks", " --pipeline clicks")
    assert scope.settings.ledger == "sqlite:///.penstock/ledger.db"
    assert [scope.table for scope in scopes_here(here)] == [None, paths]
    assert [scope.table for scope in find_scopes(ScopeRequest(), here=here)] == [None, paths]
    assert [scope.table for scope in find_scopes(ScopeRequest(table="clicks"), here=here)] == [paths]
    assert [scope.table for scope in find_scopes(ScopeRequest(pipeline="clicks"), here=here)] == [None]
    with pytest.raises(UsageError, match="give --table FOLDER"):
        find_scope(ScopeRequest(), here=here)
    views = table(here / "views")
    assert [scope.table for scope in find_scopes(ScopeRequest(), here=here)] == [None, paths, views]


def test_one_of_several_tables_without_an_app_must_be_named(here: Path) -> None:
    table(here / "clicks")
    table(here / "views")
    with pytest.raises(UsageError, match="clicks, views"):
        find_scopes(ScopeRequest(), here=here)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("broker = x", r"^penstock\.toml in the current folder cannot be read: .*line 1"),
        ("brokr = 'x'", r"^penstock\.toml has no setting brokr\. Did you mean broker "),
        ("[worker]\nlease = 'x'", r"^The setting worker\.lease \(from penstock\.toml\) is invalid"),
    ],
)
def test_invalid_settings_beside_a_table_are_an_error_unless_the_table_is_named(
    here: Path, text: str, error: str
) -> None:
    paths = table(here / "clicks")
    (here / "penstock.toml").write_text(text)
    for find in (find_scope, find_scopes):
        with pytest.raises(SettingUnfit, match=error):
            find(ScopeRequest(), here=here)
    assert find_scope(ScopeRequest(table="clicks"), here=here).table == paths
    assert [scope.table for scope in scopes_here(here)] == [paths], "the doctor checks the settings itself"
    assert options_for(str(paths.table), here=here) == f" --table {paths.table}"


def test_a_table_in_s3_is_read_with_the_settings_of_aws(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "home"))
    monkeypatch.setenv("PENSTOCK_AWS_REGION", "eu-north-1")
    state = table_paths("s3://lake/clicks").state
    state.mkdir(parents=True)
    (state / "ledger.db").touch()
    for address in ("s3://lake/clicks", "delta:s3://lake/clicks"):
        assert find_scope(ScopeRequest(table=address), here=here).aws.region == "eu-north-1"


def test_a_named_table_overrides_the_other_options(here: Path) -> None:
    paths = table(here / "clicks")
    app_state(here)
    assert find_scope(ScopeRequest(table="clicks", pipeline="x", app="nothing:app"), here=here).table == paths


def test_the_data_directory_can_differ_from_the_setting(here: Path) -> None:
    app_state(here)
    assert find_scope(ScopeRequest(pipeline="x", state="other"), here=here).settings.data_dir == "other"


def test_the_error_for_an_empty_folder_lists_the_searched_addresses(here: Path) -> None:
    for request in (ScopeRequest(), ScopeRequest(pipeline="x")):
        with pytest.raises(UsageError, match=r"sqlite:///\.penstock/ledger\.db"):
            find_scope(request, here=here)
    assert scopes_here(here) == []


def test_a_hint_names_a_table_that_would_not_be_found_otherwise(here: Path) -> None:
    paths = table(here / "a table" / "clicks")
    assert options_for(str(paths.table), here=here) == ""
    assert options_for(str(paths.table), state="s", here=here) == f" --table '{paths.table}' --data-dir s"
    other = str(table(here / "views").table)
    assert options_for(other, here=here) == f" --table {other}"
    assert options_for(other, here=Path(other)) == ""
    app_state(here)
    assert options_for(other, here=Path(other) / "nowhere") == f" --table {other}"


def test_the_tables_of_a_scope_are_those_with_a_known_folder(here: Path) -> None:
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
