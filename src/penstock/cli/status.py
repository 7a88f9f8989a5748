"""`penstock status`: one screen that says whether anything is late, lost, dead or unconsumed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import grouped_options
from penstock.cli.output import (
    Json,
    advice_in,
    counted,
    moment,
    print_fields,
    print_json,
    printable,
)
from penstock.cli.queues import age_of
from penstock.cli.where import ScopeOptions
from penstock.ledger.records import ObjectState

if TYPE_CHECKING:
    from penstock.app.queues import QueueStatus
    from penstock.app.scope import Scope
    from penstock.operations.status.standing import PipelineStatus, Status


@grouped_options
def status(
    where: ScopeOptions,
    check: Annotated[bool, typer.Option("--check", help="Exit code 3 where something needs a person.")] = False,
    json_: Json = False,
) -> None:
    """Is anything late, lost, dead or unconsumed? The first line says so."""
    from penstock.operations.status.status import standing

    scopes = where.scopes()
    found = [standing(scope) for scope in scopes]
    if json_:
        print_json(document_of(found[0]) if len(found) == 1 else _document_of_all(scopes, found))
    elif len(found) == 1:
        _print(found[0], scopes[0])
    else:
        verdicts = (f"{scope.title}: {one.verdict}" for scope, one in zip(scopes, found, strict=True))
        print(printable("; ".join(verdicts)))
        for scope, one in zip(scopes, found, strict=True):
            print(f"\n{printable(scope.title)}:")
            _print(one, scope)
    if check and any(one.findings for one in found):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _print(found: "Status", scope: "Scope") -> None:
    print(printable(found.verdict))
    print_fields(_of_app(found, ledger=scope.name) if found.table is None else _of_table(found))
    for one in found.pipelines:
        if one.objects.get(ObjectState.DEAD, 0) > one.objects_replaced:
            print(printable(f"-> {advice_in(scope, pipeline=one.pipeline)}"))


def _document_of_all(scopes: "Sequence[Scope]", found: "Sequence[Status]") -> dict[str, Any]:
    """What concerns a person of all of them, and each under ``scopes``."""
    documents = [{"scope": scope.title, **document_of(one)} for scope, one in zip(scopes, found, strict=True)]
    together = ("words", "troubles", "warnings", "notes")
    return {
        "verdict": "; ".join(f"{document['scope']}: {document['verdict']}" for document in documents),
        **{name: list(dict.fromkeys(text for one in documents for text in one[name])) for name in together},
        "scopes": documents,
    }


def document_of(found: "Status") -> dict[str, Any]:
    """All of it as JSON."""
    return {
        "verdict": found.verdict,
        "words": list(found.words),
        "troubles": list(found.troubles),
        "warnings": list(found.warnings),
        "notes": list(found.notes),
        "table": found.table,
        "table_version": found.table_version,
        "objects": objects_by_state(found.objects),
        "objects_replaced": found.objects_replaced,
        "batches_committed": found.batches_committed,
        "batches_unpublished": found.batches_unpublished,
        "messages": {
            "visible": found.messages_visible,
            "in_flight": found.messages_in_flight,
            "delayed": found.messages_delayed,
            "oldest_visible_age_seconds": found.oldest_visible_message_age_seconds,
        },
        "objects_missing": found.objects_missing,
        "objects_overdue": found.objects_overdue,
        "dead_letters": found.dead_letters,
        "dead_letters_replaced": found.dead_letters_replaced,
        "dead_letters_set_aside": found.dead_letters_set_aside,
        "dead_letters_replayed": found.dead_letters_replayed,
        "late": [dataclasses.asdict(one) for one in found.late],
        "workers": list(found.workers),
        "workers_elsewhere": found.workers_elsewhere,
        "pipelines": [dataclasses.asdict(one) | {"objects": objects_by_state(one.objects)} for one in found.pipelines],
        "queues": [dataclasses.asdict(one) for one in found.queues],
    }


def objects_by_state(counts: Mapping[ObjectState, int]) -> dict[str, int]:
    """Every state has its number."""
    return {state.value: counts.get(state, 0) for state in ObjectState}


def _of_table(found: "Status") -> Mapping[str, object]:
    return {
        "table": f"{found.table} ({_version(found.table_version)})",
        "objects": _objects(found.objects, found.objects_replaced),
        "batches": _batches(found.batches_committed, found.batches_unpublished),
        "reconciled": _reconciled(found.pipelines[0]) if found.pipelines else "",
        "messages": _messages(
            visible=found.messages_visible,
            in_flight=found.messages_in_flight,
            delayed=found.messages_delayed,
            oldest_seconds=found.oldest_visible_message_age_seconds,
        ),
        "dead letters": _letters(found),
        "workers": _workers(found),
    }


def _of_app(found: "Status", *, ledger: str) -> Mapping[str, object]:
    return {
        "ledger": ledger,
        **{f"pipeline {one.pipeline}": _pipeline(one) for one in found.pipelines},
        **{f"queue {one.queue}": _queue(one) for one in found.queues},
        "dead letters": _letters(found),
        "workers": _workers(found),
    }


def _pipeline(one: "PipelineStatus") -> str:
    table = "" if one.table is None else f"; table {one.table} ({_version(one.table_version)})"
    objects = _objects(one.objects, one.objects_replaced)
    reconciled = f"; reconciled: {text}" if (text := _reconciled(one)) else ""
    batches = _batches(one.batches_committed, one.batches_unpublished)
    overdue = f"; overdue: {one.objects_overdue:,}" if one.objects_overdue else ""
    return f"objects: {objects}{overdue}; batches: {batches}{table}{reconciled}"


def _reconciled(one: "PipelineStatus") -> str:
    """What the latest reconcile came to; empty where there was none."""
    last = one.reconciled
    if last is None:
        return ""
    missing = f"{last.missing:,} missing, {last.sent:,} announced anew" if last.missing else "nothing missing"
    return f"{missing} as of {moment(last.as_of)}"


def _queue(one: "QueueStatus") -> str:
    messages = _messages(
        visible=one.visible,
        in_flight=one.in_flight,
        delayed=one.delayed,
        oldest_seconds=one.oldest_visible_message_age_seconds,
    )
    letters = f"; {counted(one.dead_letters, 'dead letter')}" if one.dead_letters else ""
    paused = "; paused" if one.paused else "; paused by its breaker" if one.breaker is not None else ""
    unserved = "" if one.unserved is None else f"; not served: {one.unserved}"
    return f"{messages}{letters}{paused}{unserved}"


def _workers(found: "Status") -> str:
    from penstock.app.registry import SERVING

    states = {record.worker: record.state for record in found.records if record.state != SERVING}
    told = [f"{worker} ({states[worker]})" if worker in states else worker for worker in found.workers]
    return ", ".join(told) or ("none on this host" if found.workers_elsewhere else "none running")


def _version(version: int | None) -> str:
    return "no version yet" if version is None else f"version {version}"


def _objects(counts: Mapping[ObjectState, int], replaced: int) -> str:
    words = {state: f"{count:,} {state}" for state, count in counts.items() if count}
    if replaced:
        words[ObjectState.DEAD] += f" ({replaced:,} of them replaced by a later version)"
    return ", ".join(words.values()) or "none"


def _batches(committed: int, unpublished: int | None) -> str:
    if unpublished is None:
        return f"{committed:,} committed; whether they are published can be told with --app"
    return f"{committed:,} committed, {unpublished:,} not yet published"


def _letters(found: "Status") -> str:
    replaced = found.dead_letters_replaced
    aside = found.dead_letters_set_aside
    notes = [f"{aside:,} of them set aside for people"] if aside else []
    notes += [f"{replaced:,} of them for objects replaced since"] if replaced else []
    waiting = found.dead_letters_replayed
    notes += [f"{waiting:,} of them wait for their replay"] if waiting else []
    return f"{found.dead_letters:,}" + (f" ({', '.join(notes)})" if notes else "")


def _messages(*, visible: int, in_flight: int, delayed: int, oldest_seconds: float | None) -> str:
    age = "" if oldest_seconds is None else f"; the oldest visible one is {age_of(oldest_seconds)} old"
    return f"{visible:,} visible, {in_flight:,} in flight, {delayed:,} delayed{age}"
