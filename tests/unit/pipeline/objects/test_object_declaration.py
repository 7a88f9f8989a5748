"""The declaration of an object handler."""

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration


def without_context(obj: Any) -> None: ...


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"name": ""}, "name"),
        ({"function": "x"}, "not a function"),
        ({"attempts_max": 0}, "attempts_max"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"),
        ({"on_stop": "panic"}, "on_stop"),
        ({"object_bytes_max": 0}, "object_bytes_max"),
        ({"line_bytes_max": -1}, "line_bytes_max"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "utf-16"}, "encoding"),
        ({"encoding": "base64"}, "encoding"),
        ({"function": nothing}, "takes"),
        ({"cleanup": nothing}, "takes"),
    ],
)
def test_invalid_declarations_are_refused(declared: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"name": "h", "function": without_context, **declared}
    with pytest.raises(UsageError, match=words):
        ObjectHandlerDeclaration(**arguments)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "shift_jis"])
def test_encodings_that_extend_ascii_are_accepted(encoding: str) -> None:
    assert ObjectHandlerDeclaration(name="h", function=without_context, encoding=encoding).encoding == encoding
