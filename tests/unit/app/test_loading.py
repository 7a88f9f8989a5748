"""From a name on the command line to an app, and a sentence for each way to get it wrong."""

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
    """Makes a module of that text in the current folder; answers its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(text: str) -> str:
        name = f"loaded_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return make


def test_an_app_in_a_module_of_the_current_folder(module: Module) -> None:
    name = module("from penstock import App\napp = App()\nclass service: inner = app\n")
    assert isinstance(load_app(f"{name}:app"), App)
    assert load_app(f"{name}:service.inner") is load_app(f"{name}:app")


@pytest.mark.parametrize("name", ["shop", "shop:", ":app", ""])
def test_a_name_without_its_halves(name: str) -> None:
    with pytest.raises(UsageError, match="module:attribute"):
        load_app(name)


@pytest.mark.parametrize("name", ["no_such_module:app", "no_such_module.inner:app"])
def test_a_module_that_is_not_there(module: Module, name: str) -> None:
    with pytest.raises(UsageError, match="There is no module no_such_module; it is looked for in"):
        load_app(name)


def test_a_module_that_lacks_another_one_is_not_said_to_be_missing(module: Module) -> None:
    name = module("\nimport no_such_module\n")
    with pytest.raises(
        UsageError, match=rf"{name} cannot be imported: ModuleNotFoundError: .*no_such_module.*{name}.py:2"
    ):
        load_app(f"{name}:app")


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_a_module_that_raises_tells_what_and_where(module: Module, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_app(f"{module(text)}:app")


@pytest.mark.parametrize("before", ["", "./"])
def test_a_file_instead_of_a_module_is_told_what_to_write(module: Module, before: str) -> None:
    name = module("raise AssertionError('it was imported')")
    with pytest.raises(UsageError, match=rf"{name}\.py is a file, and a module is meant: write {name}:app\."):
        load_app(f"{before}{name}.py:app")


def test_a_file_in_a_folder_is_told_as_a_module_of_it(module: Module, tmp_path: Path) -> None:
    module("")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "shop.py").touch()
    with pytest.raises(UsageError, match=r"write inner\.shop:app\."):
        load_app("inner/shop.py:app")


def test_an_attribute_that_is_not_there_or_no_app_names_the_apps_there_are(module: Module) -> None:
    name = module("from penstock import App\nfirst = App()\nsecond = App()\nnumber = 7\n")
    with pytest.raises(UsageError, match="has no app; its apps: first, second"):
        load_app(f"{name}:app")
    with pytest.raises(UsageError, match="is no App but of type int; its apps: first, second"):
        load_app(f"{name}:number")
    with pytest.raises(UsageError, match="there is no App in it"):
        load_app(f"{module('x = 1')}:app")


def test_a_setting_that_does_not_fit_is_told_as_such_and_not_as_the_module_s_fault(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module("from penstock import App\napp = App.from_config()\n")
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_MAX_REPLAYS", "many")
    with pytest.raises(SettingUnfit, match=r"The setting dead_letters\.max_replays "):
        load_app(f"{name}:app")
