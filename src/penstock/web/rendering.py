"""Render the pages: the Jinja environment, its filters, and the values that every page has."""

import hashlib
import re
import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from penstock.operations.status.sentences import Elapsed, Names, Sentence, rate_text, span_parts
from penstock.web.context import context_of
from penstock.web.security import csrf_token, user_of
from penstock.web.texts import LANGUAGES, Texts, best_language, texts_in, visible

LANGUAGE_COOKIE, THEME_COOKIE = "penstock_language", "penstock_theme"
THEMES: Mapping[str, str] = {"auto": "Automatic", "light": "Light", "dark": "Dark"}
UNKNOWN = "–"  # noqa: RUF001 - a number that is not known
_FOLDER_ENDS = re.compile(r"(?<=/)(?!/)")
NAVIGATION: Mapping[str, str] = {
    "/": "Overview",
    "/dead": "Dead letters",
    "/objects": "Objects",
    "/batches": "Batches",
    "/reconcile": "Reconcile",
    "/workers": "Workers",
    "/actions": "Actions",
    "/audit": "Audit log",
}
PARENTS: Mapping[str, str] = {
    "/queue": "/",
    "/messages": "/",
    "/message": "/",
    "/worker": "/workers",
    "/object": "/objects",
    "/batch": "/batches",
}
"""The entry of the navigation that a page without one belongs to."""


def render(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Return the page of this template. Every string in ``values`` is foreign: it is escaped when it is shown."""
    return HTMLResponse(environment().get_template(template).render({**_common(request), **values}), status)


def render_alone(request: Request, template: str, *, status: int, **values: object) -> HTMLResponse:
    """Return a page that needs neither a user nor a context."""
    texts = texts_of(request)
    common = {"_": texts, "language": texts.language}
    return HTMLResponse(environment().get_template(template).render({**common, **values}), status)


def texts_of(request: Request) -> Texts:
    """Return the texts in the language of the request: its cookie, else its Accept-Language header."""
    chosen = request.cookies.get(LANGUAGE_COOKIE)
    if chosen in LANGUAGES:
        return texts_in(chosen)
    return texts_in(best_language(request.headers.get("accept-language", "")))


def url(request: Request, path: str, **query: object) -> str:
    """Return the address of a page of this dashboard, wherever it is mounted. A value of None is left out."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    root: str = request.scope.get("root_path", "")
    encoded = urlencode(given, errors="surrogatepass")
    return f"{root}{path}{'?' + encoded if encoded else ''}"


@cache
def environment() -> Environment:
    """Return the Jinja environment. Undefined names are errors, and everything is escaped."""
    made = Environment(
        loader=PackageLoader("penstock.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters.update(
        number=number, rate=rate, span=_span, moment=moment, size=size, sentence=_sentence, address=address
    )
    return made


def number(value: float | None) -> str:
    """Return a number with thousands separators; a dash if it is not known."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a number per second with two or three digits that matter; a dash if it is not known."""
    return UNKNOWN if value is None else rate_text(value)


def size(value: int | None) -> str:
    """Return a number of bytes in the unit that fits; a dash if it is not known."""
    if value is None:
        return UNKNOWN
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{value / length:,.1f} {unit}"
    return f"{value:,} B"


def moment(epoch_seconds: float | None) -> Markup:
    """Return a time in UTC to the second, as an element that tells programs the same; a dash if there is none.

    A forged time outside the calendar is shown as a number.
    """
    if epoch_seconds is None:
        return Markup(UNKNOWN)
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(epoch_seconds))
    except (OverflowError, ValueError, OSError):
        return Markup("{} s").format(f"{epoch_seconds:g}")
    return Markup('<time datetime="{}Z">{}Z</time>').format(text.replace(" ", "T"), text)


def address(uri: str) -> Markup:
    """Return an object's address, escaped, in which a line may break after each slash."""
    return Markup("<wbr>").join(_FOLDER_ENDS.split(visible(uri)))


def span_text(texts: Texts, seconds: float | None) -> str:
    """Return a duration in the unit that fits; a dash if it is not known."""
    if seconds is None:
        return UNKNOWN
    count, unit = span_parts(seconds)
    return texts(f"{{count}} {unit}", count=count)


def sentence_text(texts: Texts, sentence: Sentence) -> Markup:
    """Return a sentence in this language, escaped."""
    values = {name: _sentence_value(texts, value) for name, value in sentence.values.items()}
    return texts(sentence.form, **values)


def _sentence_value(texts: Texts, value: object) -> object:
    if isinstance(value, Elapsed):
        return span_text(texts, value)
    if isinstance(value, Names):
        names, others = value.shown
        joined = ", ".join(names)
        return texts("{names} and {count} more queues", names=joined, count=f"{others:,}") if others else joined
    return f"{value:,}" if isinstance(value, int) else value


@pass_context
def _sentence(context: Context, sentence: Sentence) -> Markup:
    return sentence_text(context["_"], sentence)


@pass_context
def _span(context: Context, seconds: float | None) -> str:
    return span_text(context["_"], seconds)


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _common(request: Request) -> dict[str, Any]:
    """Return the values that every page has."""
    texts, user, context = texts_of(request), user_of(request), context_of(request)
    theme = request.cookies.get(THEME_COOKIE)
    here = url(request, request.url.path.removeprefix(request.scope.get("root_path", "")) or "/")
    return {
        "_": texts,
        "counted": texts.count,
        "csrf": lambda: Markup('<input type="hidden" name="csrf" value="{}">').format(csrf_token(request)),
        "dashboard_title": context.title,
        "here": here + (f"?{request.url.query}" if request.url.query else ""),
        "language": texts.language,
        "languages": LANGUAGES,
        "live": lambda: _live(request),
        "may_act": user is not None and user.may_act,
        "navigation": [(url(request, path), text, _is_current(request, path)) for path, text in NAVIGATION.items()],
        "static": lambda name: url(request, f"/static/{name}", v=_version(name)),
        "theme": theme if theme in THEMES else "auto",
        "themes": THEMES,
        "url": lambda path, **query: url(request, path, **query),
        "user": user,
    }


def _live(request: Request) -> Markup:
    """Return the attributes of a part that is fetched again when there is a new reading. Its id is `live`."""
    query = f"?{request.url.query}" if request.url.query else ""
    return Markup(
        'hx-get="{}{}" hx-trigger="sse:changed" hx-select="#live" hx-target="#live" hx-swap="morph:outerHTML"'
    ).format(request.url.path, query)


def _is_current(request: Request, path: str) -> bool:
    """Return True if the page of the request belongs to this entry of the navigation."""
    here = request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"
    section = "/" + here.split("/")[1]
    return PARENTS.get(section, section) == path


@cache
def _version(name: str) -> str:
    """Return a short digest of a static file, so that browsers keep it until it changes."""
    return hashlib.sha256((files("penstock.web") / "static" / name).read_bytes()).hexdigest()[:12]
