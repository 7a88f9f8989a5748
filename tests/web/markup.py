"""The structure of a page, by Python's own HTML parser: what foreign text must not be able to change."""

import re
from collections import Counter
from html.parser import HTMLParser

_VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "wbr"})
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_ADDRESSES = frozenset({"href", "src", "action", "formaction", "hx-get", "sse-connect"})


class Markup(HTMLParser):
    """A parsed page: its elements with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.page = page
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.others: list[str] = []  # comments, declarations and processing instructions
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"an attribute of <{tag}> appears twice: {attrs}"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def shapes(self) -> Counter[tuple[str, tuple[str, ...]]]:
        """Count the elements by their name and the names of their attributes."""
        return Counter((tag, tuple(sorted(attributes))) for tag, attributes in self.elements)

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attributes[attribute] for name, attributes in self.elements if name == tag and attribute in attributes]

    def part(self, tag: str) -> str:
        """Return the text of the first element of this kind, which has no elements in it."""
        found = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}>", self.page, re.DOTALL)
        assert found is not None, f"there is no <{tag}>"
        inner = Markup(found[0])
        assert len(inner.elements) == 1
        return inner.text


def harmless(page: str) -> Markup:
    """Return the page, after checks that hold for every page, whatever foreign text it shows."""
    found = Markup(page)
    assert found.open == []
    assert not found.others
    assert _UNSAFE.search(page) is None
    for tag, attributes in found.elements:
        assert tag not in {"iframe", "object", "embed", "style", "base", "img", "svg", "math", "template"}, tag
        assert not {name for name in attributes if name.startswith("on") or name == "style"}, (tag, attributes)
        for name in _ADDRESSES & attributes.keys():
            assert re.match(r"/(?!/)|#", attributes[name]), (tag, name, attributes[name])
    assert {source.partition("?")[0].startswith("/static/") for source in found.values("script", "src")} == {True}
    assert len(found.values("script", "src")) == sum(tag == "script" for tag, _ in found.elements)
    return found
