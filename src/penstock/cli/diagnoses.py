"""How diagnoses of logs, and the story of an object, are printed."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.cli.output import counted, print_table, printable, talk

if TYPE_CHECKING:
    from penstock.monitoring.diagnoses import Diagnoses, Found, Line, Outage

REASON_CHARS = 160
_TOLD = ("reason", "rows", "lines_quarantined", "count", "seq", "tries", "error.type", "error.message", "message_id")

_SECTIONS: Mapping[str, tuple[str, str, str]] = {
    "wrongly_processed": (
        "Wrongly marked as processed",
        "skipped as already processed, and no line before says that it was",
        (
            "`penstock objects show URI` names the attempt on record. If that is older than these logs, read its logs "
            "too, and all is well; else look for the object's rows in the table, by its column _object."
        ),
    ),
    "died": (
        "Died with their worker",
        "an attempt without an end, and none after it",
        (
            "The worker was killed (SIGKILL, out of memory), or is still at it: see its last line, and `penstock "
            "worker ps`. A message comes again when its lease is over; `penstock objects show` says where an object "
            "stands. Were its message lost, `penstock reconcile` would announce it anew."
        ),
    ),
    "failed": (
        "Failed",
        "given up on",
        "`penstock dead show` has reason and traceback; once that is mended, `penstock dead replay`.",
    ),
    "taken_over": (
        "Taken over",
        "their worker died or hung, and another one went on",
        (
            "What that worker did outside Penstock before it ended may have been done twice: `penstock logs diagnose "
            "--object URI` and the lines of the message show both attempts."
        ),
    ),
    "interrupted": (
        "Interrupted by a stop",
        "given back, for another attempt",
        "Those without a later attempt wait in their queue: `penstock status` says whether somebody serves it.",
    ),
    "finished": (
        "Finished",
        "when, and by which attempt; if one of them is wrong in the table, that is where to look",
        "`--object URI` tells the story of one of them, `penstock objects show URI` the batch that it came with.",
    ),
}


_OUTAGES = {
    "breaker": "queue {} paused",
    "ledger": "ledger away",
    "store": "store {} away",
    "look": "monitor could not see {}",
}


def print_diagnoses(found: "Diagnoses", *, limit: int, lines: int) -> None:
    """A section for each diagnosis: how many, the first of them, and how to go on."""
    if not lines:
        print("No line of Penstock is within --since and --until, so there is nothing to diagnose.")
        return
    for name, (title, meaning, advice) in _SECTIONS.items():
        _print_section(title, meaning, advice, getattr(found, name), limit=limit)
    _print_outages(found.outages, limit=limit)
    for remark in found.remarks:
        talk(remark)


def print_story(lines: "Sequence[Line]", found: "Diagnoses", *, uri: str) -> None:
    """Every line about the object, then what is wrong with it."""
    print_table(
        ("ts", "event", "worker", "attempt", "what"),
        [
            (
                line.ts,
                line.event,
                line.name("worker") or "",
                line.name("attempt_id") or line.fields.get("attempt") or "",
                "; ".join(_told(line)),
            )
            for line in lines
        ],
        empty=printable(f"These logs say nothing of {uri}."),
    )
    for name, (title, meaning, advice) in _SECTIONS.items():
        if name != "finished" and getattr(found, name):
            _print_section(title, meaning, advice, getattr(found, name), limit=len(lines))


def document(
    found: "Diagnoses", *, summary: Mapping[str, Any], story: "Sequence[Line] | None", limit: int
) -> Mapping[str, Any]:
    """The same for programs."""
    diagnoses = {
        name: {"count": len(getattr(found, name)), "first": [_row(one) for one in getattr(found, name)[:limit]]}
        for name in _SECTIONS
    }
    outages = {"count": len(found.outages), "first": [_outage_row(one) for one in found.outages[:limit]]}
    told: dict[str, Any] = {"read": dict(summary), **diagnoses, "outages": outages, "remarks": list(found.remarks)}
    return told if story is None else {**told, "story": [dict(line.fields) for line in story]}


def _print_section(title: str, meaning: str, advice: str, found: "Sequence[Found]", *, limit: int) -> None:
    if not found:
        print(f"{title}: none.")
        return
    print(f"\n{title}: {_how_many(found)} ({meaning}).")
    for one in found[:limit]:
        print(printable(f"  {one.ts}  {one.name}{_facts(one)}"))
    if len(found) > limit:
        print(f"  ... and {len(found) - limit:,} more; --limit shows them.")
    print(f"  -> {advice}\n")


def _print_outages(found: "Sequence[Outage]", *, limit: int) -> None:
    if not found:
        print("Outages: none.")
        return
    print(f"\nOutages: {len(found):,} (a breaker was open, or a service that workers need was away).")
    for one in found[:limit]:
        end = "no end in these logs" if one.ended_ts is None else f"until {one.ended_ts}{_lasted(one)}"
        facts = [_OUTAGES[one.what].format(one.name), counted(one.workers, "worker"), _cut(one.error or "")]
        print(printable(f"  {one.began_ts}  {end}" + "".join(f", {fact}" for fact in facts if fact)))
    if len(found) > limit:
        print(f"  ... and {len(found) - limit:,} more; --limit shows them.")
    print("  -> Nothing is lost in an outage: messages wait. Look at the service that the error names.\n")


def _lasted(one: "Outage") -> str:
    seconds = _seconds_of(one)
    return "" if seconds is None else f" ({seconds:,.0f} s)"


def _seconds_of(one: "Outage") -> float | None:
    try:
        return (datetime.fromisoformat(one.ended_ts or "") - datetime.fromisoformat(one.began_ts)).total_seconds()
    except ValueError:  # it did not end, or digits that are no time
        return None


def _outage_row(one: "Outage") -> Mapping[str, Any]:
    row = {**dataclasses.asdict(one), "seconds": _seconds_of(one)}
    return {name: value for name, value in row.items() if value is not None}


def _how_many(found: "Sequence[Found]") -> str:
    objects = len({(one.place, one.name) for one in found if one.kind == "object"})
    messages = len({(one.place, one.name) for one in found if one.kind == "message"})
    counts = [counted(objects, "object")] if objects else []
    counts += [counted(messages, "message")] if messages else []
    return ", ".join(counts)


def _facts(one: "Found") -> str:
    facts = [
        f"{one.place}" if one.place else "",
        f"attempt {one.attempt_id or one.attempt}" if one.attempt_id or one.attempt else "",
        f"by {one.worker}" if one.worker else "",
        f"from attempt {one.from_attempt or '?'} of {one.from_worker}" if one.from_worker else "",
        f"{one.times} times" if one.times > 1 else "",
        f"its last line: {one.worker_last_ts}" if one.worker_last_ts else "",
        _cut(one.reason) if one.reason and one.reason != "already_processed" else "",
    ]
    if one.later is not None:
        attempt = one.later.attempt_id or one.later.attempt or "?"
        facts.append(f"finished {one.later.ts} by attempt {attempt} of {one.later.worker or '?'}")
    return "".join(f", {fact}" for fact in facts if fact)


def _told(line: "Line") -> Iterator[str]:
    for name in _TOLD:
        if name in line.fields and not (name == "message_id" and line.event.startswith("object.")):
            value = line.fields[name]
            yield f"{name}={_cut(value if isinstance(value, str) else json.dumps(value))}"


def _row(one: "Found") -> Mapping[str, Any]:
    return {name: value for name, value in dataclasses.asdict(one).items() if value is not None}


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else text[:REASON_CHARS] + "..."
