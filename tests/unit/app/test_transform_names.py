"""The name under which a ledger remembers a transform, and the check of a run against it."""

import sys
from functools import partial, wraps
from types import ModuleType
from typing import Any

import pytest

from penstock.app.pipelines.transforms import accepting, check_transform, name_of
from penstock.errors import UsageError
from penstock.ledger.records import PipelineRow

HERE = __name__


def clean(frame: Any, unit: str = "kg") -> Any:
    return frame


class Cleaner:
    def __call__(self, frame: Any) -> Any:
        return frame

    def clean(self, frame: Any) -> Any:
        return frame


class NamedCleaner:
    def __init__(self, unit: str) -> None:
        self.transform_name = f"shop:NamedCleaner({unit})"

    def __call__(self, frame: Any) -> Any:
        return frame


def logged(function: Any) -> Any:
    @wraps(function)
    def wrapper(frame: Any) -> Any:
        return function(frame)

    return wrapper


def made() -> Any:
    def inner(frame: Any) -> Any:
        return frame

    return inner


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (None, ""),
        (clean, f"{HERE}:clean"),
        (logged(clean), f"{HERE}:clean"),
        (partial(clean, unit="g"), f"{HERE}:clean"),
        (partial(partial(clean), unit="g"), f"{HERE}:clean"),
        (lambda frame: frame, f"{HERE}:<lambda>"),
        (made(), f"{HERE}:made.<locals>.inner"),
        (Cleaner(), f"{HERE}:Cleaner"),
        (partial(Cleaner()), f"{HERE}:Cleaner"),
        (Cleaner().clean, f"{HERE}:Cleaner.clean"),
        (Cleaner, f"{HERE}:Cleaner"),
        (NamedCleaner("g"), "shop:NamedCleaner(g)"),
        (partial(NamedCleaner("g")), "shop:NamedCleaner(g)"),
        (NamedCleaner, f"{HERE}:NamedCleaner"),
        (dict, "builtins:dict"),
    ],
)
def test_the_name_is_that_of_the_function_as_python_imports_it(transform: Any, name: str) -> None:
    assert name_of(transform) == name


@pytest.mark.parametrize(
    ("spec", "file", "module"),
    [
        (None, "/srv/shop.py", "shop"),  # python shop.py
        ("jobs.shop", "/srv/jobs/shop.py", "jobs.shop"),  # python -m jobs.shop
        ("jobs.__main__", "/srv/jobs/__main__.py", "jobs"),  # python -m jobs
        (None, None, "__main__"),  # a notebook
    ],
)
def test_a_function_of_the_script_has_the_name_under_which_others_import_it(
    monkeypatch: pytest.MonkeyPatch, spec: str | None, file: str | None, module: str
) -> None:
    script: Any = ModuleType("__main__")
    script.__spec__ = None
    if spec is not None:
        script.__spec__ = type("Spec", (), {"name": spec})()
    if file is not None:
        script.__file__ = file
    exec("def clean(frame): return frame", script.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert name_of(script.clean) == f"{module}:clean"


def check(recorded: str | None, name: str) -> None:
    row = PipelineRow(id="clicks", next_seq=2, schema_id=0, table_schema=None, source_schema=None, transform=recorded)
    check_transform(
        row, name, table="tables/clicks", has="the app declares", remedy="declare the same", command="penstock x"
    )


@pytest.mark.parametrize(("recorded", "name"), [(None, "a:b"), (None, ""), ("", ""), ("a:b", "a:b")])
def test_an_unknown_or_equal_transform_is_accepted(recorded: str | None, name: str) -> None:
    check(recorded, name)


@pytest.mark.parametrize(
    ("recorded", "name", "sentence"),
    [
        ("a:b", "a:c", "were made with the transform a:b, and the app declares the transform a:c: declare the same."),
        ("a:b", "", "were made with the transform a:b, and the app declares none: declare the same."),
        ("", "a:b", "were made without a transform, and the app declares the transform a:b: declare the same."),
    ],
)
def test_another_transform_is_refused_with_the_recorded_one_and_the_way_out(
    recorded: str, name: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check(recorded, name)
    assert f"The rows of tables/clicks {sentence}" in str(refused.value)
    assert "run `penstock x` first" in str(refused.value)


def test_the_command_that_accepts_a_lambda_can_be_pasted_into_a_shell() -> None:
    assert accepting("shop:<lambda>", " --pipeline clicks") == (
        "penstock admin schema transform 'shop:<lambda>' --pipeline clicks"
    )
    assert accepting("", "") == "penstock admin schema transform --none"
