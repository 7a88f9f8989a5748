"""Fingerprints: the same for the same failure, different for different failures."""

import json
import sysconfig
import traceback as tracebacks
from collections.abc import Callable
from functools import partial

import pytest

from penstock.messaging.failure import fingerprint
from penstock.messaging.schema import load

HERE = "messaging/test_fingerprints.py"


def raised_by(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def resize(text: str) -> object:
    return json.loads(text)


def crop() -> object:
    raise KeyError("width")


def wrap() -> object:
    try:
        return crop()
    except KeyError as error:
        raise ValueError("no size") from error


def test_the_location_is_the_users_function_and_not_the_library_that_it_called() -> None:
    error = raised_by(lambda: resize("{"))
    assert fingerprint("make", "JSONDecodeError", error, None) == f"make|JSONDecodeError|{HERE}:resize"


def test_the_location_is_not_in_penstock() -> None:
    error = raised_by(lambda: load("{"))
    assert fingerprint("make", type(error).__name__, error, None).endswith(f"{HERE}:<lambda>")


@pytest.mark.parametrize("call", [lambda: resize("{"), crop, wrap])
def test_the_text_of_a_traceback_gives_the_same_location(call: Callable[[], object]) -> None:
    error = raised_by(call)
    text = "".join(tracebacks.format_exception(error))
    assert fingerprint("h", "E", None, text) == fingerprint("h", "E", error, None)
    assert HERE in fingerprint("h", "E", None, text)


def test_failures_differ_by_handler_type_and_location() -> None:
    error, other = raised_by(crop), raised_by(wrap)
    fingerprints = {
        fingerprint("a", "KeyError", error, None),
        fingerprint("b", "KeyError", error, None),
        fingerprint("a", "ValueError", error, None),
        fingerprint("a", "KeyError", other, None),
    }
    assert len(fingerprints) == 4


def test_an_error_raised_only_in_libraries_has_their_location() -> None:
    error = raised_by(partial(json.loads, "{"))
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this file's own frame
    assert fingerprint("h", "E", error, None) == "h|E|json/decoder.py:raw_decode"


def traceback_of(*files: str) -> str:
    return "".join(["Traceback (most recent call last):\n", *(f'  File "{file}", line 3, in work\n' for file in files)])


def test_packages_installed_below_the_standard_library_do_not_belong_to_it() -> None:
    library = sysconfig.get_path("stdlib")
    text = traceback_of("/srv/shop/make.py", f"{library}/site-packages/pandas/frame.py", f"{library}/json/decoder.py")
    assert fingerprint("h", "E", None, text) == "h|E|pandas/frame.py:work"


def test_the_location_is_that_of_the_exception_and_not_of_its_cause() -> None:
    own = traceback_of("/srv/shop/make.py", json.__file__)
    text = traceback_of("/srv/shop/cause.py") + "KeyError: 1\n\nDuring handling of it:\n\n" + own
    assert fingerprint("h", "E", None, text) == "h|E|shop/make.py:work"
    text = (
        traceback_of("/srv/shop/cause.py") + "KeyError: 1\n\nDuring handling of it:\n\n" + traceback_of(json.__file__)
    )
    assert fingerprint("h", "E", None, text) == "h|E|json/__init__.py:work"


@pytest.mark.parametrize("text", [None, "", "ValueError: no", "\ud800"])
def test_a_text_without_a_traceback_gives_no_location(text: str | None) -> None:
    assert fingerprint("h", "E", None, text) == "h|E|"
