"""Loading an app by its name on the command line, with a message for each mistake."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import App
from penstock.app.loading import load_app
from penstock.errors import SettingUnfit, UsageError

_NUMBERS = itertools.count()
Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Return a function that creates a module with the given text in the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(text: str) -> str:
        name = f"loaded_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return make


def test_an_app_in_a_module_of_the_current_folder_is_loaded(module: Module) -> None:
    name = module("from penstock import App\napp = App()\nclass service: inner = app\n")
    assert isinstance(load_app(f"{name}:app"), App)
    assert load_app(f"{name}:service.inner") is load_app(f"{name}:app")


@pytest.mark.parametrize("name", ["shop", "shop:", ":app", ""])
def test_a_name_without_module_or_attribute_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="module:attribute"):
        load_app(name)


@pytest.mark.parametrize("name", ["no_such_module:app", "no_such_module.inner:app"])
def test_a_missing_module_is_reported(module: Module, name: str) -> None:
    with pytest.raises(UsageError, match=r"There is no module no_such_module in .* or on Python's path\."):
        load_app(name)


def test_a_module_with_a_missing_import_is_not_reported_as_missing(module: Module) -> None:
    name = module("\nimport no_such_module\n")
    with pytest.raises(
        UsageError, match=rf"{name} cannot be imported: ModuleNotFoundError: .*no_such_module.*{name}.py:2"
    ):
        load_app(f"{name}:app")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('the reason')\n", r"ValueError: the reason at loaded_\d+\.py:2\."),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* at loaded_\d+\.py:3\."),
        ("import pydantic\nclass A(pydantic.BaseModel):\n    b: 'C d'\n", r" at loaded_\d+\.py:2\."),
        ("import sys\nsys.exit('no guard')\n", "SystemExit: no guard"),
        ("x = 1\n\ndef (:\n", r"SyntaxError: .* at .*\.py:3\."),
        (
            "from penstock import Queue\nQueue('')\n",
            r"ConfigurationError: A queue needs a name.* at loaded_\d+\.py:2\.$",
        ),
    ],
)
def test_an_error_in_a_module_is_reported_with_its_line(module: Module, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_app(f"{module(text)}:app")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://user:secret@host/shop", "postgresql://user:***@host/shop"),
        ("redis://:secret@host", "redis://:***@host"),
        ("https://host/a?token=secret", "https://host/a?token=***"),
    ],
)
def test_an_error_in_a_module_is_reported_without_passwords(module: Module, address: str, shown: str) -> None:
    name = module(f"raise RuntimeError('no connection to {address} now')\n")
    with pytest.raises(UsageError) as raised:
        load_app(f"{name}:app")
    assert str(raised.value) == (
        f"The module {name} cannot be imported: RuntimeError: no connection to {shown} now at {name}.py:1."
    )


@pytest.mark.parametrize("before", ["", "./"])
def test_a_file_instead_of_a_module_is_refused_with_the_name_to_write(module: Module, before: str) -> None:
    name = module("raise AssertionError('it was imported')")
    with pytest.raises(UsageError, match=rf"{name}\.py is a file, and a module is meant: write {name}:app\."):
        load_app(f"{before}{name}.py:app")


def test_a_file_in_a_folder_is_refused_with_its_dotted_module_name(module: Module, tmp_path: Path) -> None:
    module("")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "shop.py").touch()
    with pytest.raises(UsageError, match=r"write inner\.shop:app\."):
        load_app("inner/shop.py:app")


def test_a_missing_or_wrong_attribute_is_refused_with_the_names_of_the_apps(module: Module) -> None:
    name = module("from penstock import App\nfirst = App()\nsecond = App()\nnumber = 7\n")
    with pytest.raises(UsageError, match="has no app; its apps: first, second"):
        load_app(f"{name}:app")
    with pytest.raises(UsageError, match="is no App but of type int; its apps: first, second"):
        load_app(f"{name}:number")
    with pytest.raises(UsageError, match="there is no App in it"):
        load_app(f"{module('x = 1')}:app")


def test_an_invalid_setting_is_not_reported_as_an_error_of_the_module(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module("from penstock import App\napp = App.from_config()\n")
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_MAX_REPLAYS", "many")
    with pytest.raises(SettingUnfit, match=r"The setting dead_letters\.max_replays "):
        load_app(f"{name}:app")
