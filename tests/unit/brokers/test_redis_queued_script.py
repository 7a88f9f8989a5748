"""The script that looks at messages: no command in it reads a whole collection, or needs another permission."""

import re
from importlib.resources import files
from pathlib import Path

SCRIPT = (files("penstock.brokers.redis") / "lua" / "queued.lua").read_text(encoding="utf-8")
CALLS = re.findall(r"redis\.p?call\('([A-Z]+)'([^\n]*)", SCRIPT)
REDIS = (Path(__file__).parents[3] / "docs" / "run" / "redis.md").read_text(encoding="utf-8")


def test_every_range_has_an_end_or_a_count() -> None:
    ranges = [(name, arguments) for name, arguments in CALLS if name.endswith("RANGE") or name == "XPENDING"]
    assert {name for name, _ in ranges} == {"LRANGE", "ZRANGE", "XRANGE", "XPENDING"}
    for name, arguments in ranges:
        match name:
            case "XRANGE":
                assert "stream, id, id)" in arguments
            case "XPENDING":
                assert re.search(r"'\+', (count|SEARCH_MAX)\)|id, id, 1\)", arguments), arguments
            case _:
                assert re.search(r"(- 1|\+ 2|2 \* PAGE|middle|rank)(, 'WITHSCORES')?\)", arguments), arguments


def test_it_only_reads_and_needs_no_other_permission() -> None:
    for name in {name for name, _ in CALLS}:
        assert f"+{name.lower()}" in REDIS.split(), name
        assert name in {"HGET", "LINDEX", "LLEN", "LRANGE", "XPENDING", "XRANGE", "ZCARD", "ZRANGE"}
