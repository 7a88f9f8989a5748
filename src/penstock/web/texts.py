"""The texts of the dashboard in each language, looked up by their English form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from markupsafe import Markup

LANGUAGES: Mapping[str, str] = MappingProxyType({"en": "English", "ja": "日本語"})
DEFAULT_LANGUAGE = "en"
KEPT = frozenset("\n\t\u3000")  # harmless in HTML: line ends, tabs, and the space of Japanese text


def visible(text: str) -> str:
    """Return foreign text with control characters, direction marks and lone surrogates made visible.

    For names and values. Bodies and error texts went through `shown_bodies.printable`, which keeps unusual spaces.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in KEPT else ascii(character)[1:-1] for character in text
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts in one language. One without a translation stays English."""

    language: str
    translations: Mapping[str, str]

    def __call__(self, text: str, /, **values: object) -> Markup:
        """Return the text in this language, with the values in place of ``{names}``, escaped."""
        shown = {name: visible(value) if isinstance(value, str) else value for name, value in values.items()}
        return Markup(self.translations.get(text, text)).format(**shown)

    def count(self, number: int, one: str, many: str, /, **values: object) -> Markup:
        """Return the text for 1 or for any other number, which is ``{count}`` in it."""
        return self(one if number == 1 else many, count=f"{number:,}", **values)


@cache
def texts_in(language: str) -> Texts:
    """Return the texts in this language, one of `LANGUAGES`."""
    found: dict[str, str] = {}
    if language != DEFAULT_LANGUAGE:
        for file in (files("penstock.web") / "texts" / language).iterdir():
            found |= json.loads(file.read_text(encoding="utf-8"))
    return Texts(language=language, translations=MappingProxyType(found))


def best_language(accepted: str) -> str:
    """Return the language that an Accept-Language header prefers, among ours."""
    weighted: list[tuple[float, str]] = []
    for part in accepted.split(",")[:20]:
        name, _, parameters = part.partition(";")
        try:
            weight = float(parameters.strip().removeprefix("q=")) if parameters else 1.0
        except ValueError:
            continue
        weighted.append((-weight, name.strip().lower().split("-")[0]))
    return next((name for _, name in sorted(weighted, key=lambda one: one[0]) if name in LANGUAGES), DEFAULT_LANGUAGE)
