"""Patterns against a definition of their own: one that tries everything, and is slow."""

import string
from functools import cache

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.objects.globs import compiled, cut, escaped, has_wildcard, literal_prefix, may_begin, unescaped
from penstock.objects.selection import Selection

PARTS = st.lists(st.sampled_from(["a", "b", "_", ".", "=", "*", "?", "**", "[ab]", "[!a]", "[_]", "[*]"]), max_size=5)
PATTERNS = st.lists(PARTS.map("".join), min_size=1, max_size=4).map("/".join)
NAMES = st.text("ab_.=*", max_size=4)
KEYS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("*?[]!-/"), min_size=1, max_size=20)


@cache
def matches_part(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(matches_part(pattern[1:], name[number:]) for number in range(len(name) + 1))
    if not name:
        return False
    if pattern[0] == "?":
        return matches_part(pattern[1:], name[1:])
    for kind, chosen in (("[ab]", "ab"), ("[_]", "_"), ("[*]", "*")):
        if pattern.startswith(kind):
            return name[0] in chosen and matches_part(pattern[len(kind) :], name[1:])
    if pattern.startswith("[!a]"):
        return name[0] != "a" and matches_part(pattern[4:], name[1:])
    return pattern[0] == name[0] and matches_part(pattern[1:], name[1:])


def matches(pattern: list[str], key: list[str]) -> bool:
    if pattern == ["**"]:
        return len(key) > 1 or bool(key and key[0])
    if not pattern or not key:
        return not pattern and not key
    if pattern[0] == "**":
        return matches(pattern[1:], key) or (len(key) > 1 and matches(pattern, key[1:]))
    return matches_part(pattern[0], key[0]) and matches(pattern[1:], key[1:])


@given(PATTERNS, KEYS)
@example("**/a/**/**/b", "a/a/b")
@example("a**b", "aab")
def test_a_pattern_matches_as_defined(pattern: str, key: str) -> None:
    parts = f"{pattern}**".split("/") if pattern.endswith("/") else pattern.split("/")
    if key.endswith("/") and parts[-1] == "**":
        return  # a folder marker, about which nothing is promised
    assert (compiled(pattern).fullmatch(key) is not None) == matches(parts, key.split("/"))


@given(PATTERNS, KEYS)
def test_wildcards_leave_out_underscores_only_in_addition(pattern: str, key: str) -> None:
    if compiled(pattern, plain=True).fullmatch(key):
        assert compiled(pattern).fullmatch(key)
    if not any(part.startswith("_") for part in key.split("/")):
        assert bool(compiled(pattern).fullmatch(key)) == bool(compiled(pattern, plain=True).fullmatch(key))


@given(PATTERNS, KEYS)
def test_matches_have_the_literal_prefix_and_lie_in_folders_that_are_walked(pattern: str, key: str) -> None:
    if compiled(pattern).fullmatch(key):
        assert key.startswith(literal_prefix(pattern))
        folders = key.split("/")[:-1]
        assert all(may_begin(pattern, "/".join(folders[: number + 1])) for number in range(len(folders)))


@given(TEXTS)
def test_every_name_can_be_named(name: str) -> None:
    assert not has_wildcard(escaped(name))
    assert unescaped(escaped(name)) == name
    assert cut(escaped(name)).folder == name
    if not name.endswith("/") and "**" not in name.split("/"):
        assert compiled(escaped(name)).fullmatch(name)


@given(TEXTS, TEXTS)
def test_every_text_is_a_pattern(pattern: str, key: str) -> None:
    compiled(pattern).fullmatch(key)
    compiled(pattern, plain=True).fullmatch(key)
    may_begin(pattern, key)


@given(PATTERNS, KEYS, st.booleans())
def test_a_walk_that_skips_folders_finds_as_much_as_a_listing(pattern: str, key: str, underscored: bool) -> None:
    selection = Selection(below="s/", pattern=pattern, skips_underscored=underscored, exclude=("b*",))
    if selection.left_out(f"s/{key}", 1) is None:
        folders = key.split("/")[:-1]
        for number in range(len(folders)):
            assert selection.leaves_out_folder(f"s/{'/'.join(folders[: number + 1])}") is None


def test_a_long_key_takes_no_long_time() -> None:
    pattern = "**/" + "*a" * 30 + "/**/" + "*b" * 30 + "/**/c"
    key = ("a" * 29 + "/") * 60 + "b" * 500 + string.ascii_letters
    assert not compiled(pattern).fullmatch(key)
