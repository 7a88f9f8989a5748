"""`penstock status`: report whether anything needs attention, on one screen."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.registry import SERVING
from penstock.app.scope import Scope
from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, moment, print_fields, print_json, printable
from penstock.cli.queues import age_of
from penstock.cli.status_documents import document_of, document_of_all
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.ledger.records import ObjectState
from penstock.messaging.wording import counted
from penstock.operations.advice import advice_for_several, advice_in
from penstock.operations.status.status import read_status

if TYPE_CHECKING:
    from penstock.app.queues import QueueStatus
    from penstock.operations.status.model import PipelineStatus, Status


@grouped_options
def status(
    where: ScopeOptions,
    check: Annotated[bool, typer.Option("--check", help="Exit code 3 if anything needs a person.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Live view: refresh until q or Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="DURATION", help="With --watch: poll at this interval; default 2s, SQS 15s."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="With --watch: print one sample, and exit.")] = False,
    json_: Json = False,
) -> None:
    """Report problems with queues, workers and pipelines.

    The first line names what is missing, has no consumer, failed or lags, if anything; several problems have a line
    each. With --watch the view has
    a row per queue with ages, depths and rates, and a row per pipeline. If the output is not a terminal, each sample
    is a block of lines; with --json a line of JSON.
    """
    if check and watch:
        raise UsageError("Give --check or --watch, not both.")
    if not watch and (every is not None or once):
        raise UsageError("--every and --once are for --watch; add it, or leave them out.")
    scopes = where.scopes()
    if watch:
        from penstock.cli.status_watch import watch as show_live  # loads rich

        show_live(scopes, every=every, once=once, json_=json_)
        return
    found = [read_status(scope) for scope in scopes]
    if json_:
        print_json(document_of(found[0]) if len(found) == 1 else document_of_all(scopes, found))
    elif len(found) == 1:
        _print(found[0], scopes[0])
    else:
        summaries = (f"{scope.title}: {one.summary}" for scope, one in zip(scopes, found, strict=True))
        print(printable("; ".join(summaries)))
        for scope, one in zip(scopes, found, strict=True):
            print(f"\n{printable(scope.title)}:")
            _print(one, scope)
    if check and any(status.problems for status in found):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _print(found: "Status", scope: Scope) -> None:
    for line in found.lines:
        print(printable(line))
    print_fields(_of_app(found, ledger=scope.name) if found.table is None else _of_table(found))
    failed = [one.pipeline for one in found.pipelines if one.objects.get(ObjectState.DEAD, 0) > one.objects_replaced]
    if len(failed) == 1:
        print(printable(f"-> {advice_in(scope, pipeline=failed[0])}"))
    elif failed:
        print(printable(f"-> {advice_for_several(scope, len(failed))}"))


def _of_table(found: "Status") -> Mapping[str, object]:
    return {
        "table": f"{found.table} ({_version(found)})",
        "objects": _objects(found),
        "batches": _batches(found.batches_committed, found.batches_unpublished) + _replaced(found),
        "reconciled": _reconciled(found.pipelines[0]) if found.pipelines else "",
        "other writers": _other_writers(found.pipelines[0]) if found.pipelines else "",
        "messages": _messages(
            visible=found.messages_visible,
            in_flight=found.messages_in_flight,
            delayed=found.messages_delayed,
            oldest_seconds=found.oldest_visible_message_age_seconds,
        ),
        "dead letters": _dead_letters(found),
        "workers": _workers(found),
    }


def _of_app(found: "Status", *, ledger: str) -> Mapping[str, object]:
    return {
        "ledger": ledger,
        **{f"pipeline {pipeline.pipeline}": _pipeline(pipeline) for pipeline in found.pipelines},
        **{f"queue {queue.queue}": _queue(queue) for queue in found.queues},
        "dead letters": _dead_letters(found),
        "workers": _workers(found),
    }


def _pipeline(pipeline: "PipelineStatus") -> str:
    table = "" if pipeline.table is None else f"; table {pipeline.table} ({_version(pipeline)})"
    objects = _objects(pipeline)
    reconciled = f"; reconciled: {text}" if (text := _reconciled(pipeline)) else ""
    batches = _batches(pipeline.batches_committed, pipeline.batches_unpublished) + _replaced(pipeline)
    overdue = f"; overdue: {pipeline.objects_overdue:,}" if pipeline.objects_overdue else ""
    others = f"; other writers: {text}" if (text := _other_writers(pipeline)) else ""
    return f"objects: {objects}{overdue}; batches: {batches}{table}{reconciled}{others}"


def _other_writers(pipeline: "PipelineStatus") -> str:
    """Return the latest commit of another writer, and how many there are; empty without any."""
    if not pipeline.foreign_commits:
        return ""
    last, more = pipeline.foreign_commits[0], len(pipeline.foreign_commits) - 1
    when = "" if last.committed_at is None else f", {moment(last.committed_at)}"
    others = f" and {more} more" if more else ""
    return f"{last.operation or 'a commit'} by {last.engine} (version {last.version}{when}){others}"


def _reconciled(pipeline: "PipelineStatus") -> str:
    """Return the result of the latest reconcile; empty if there was none."""
    last = pipeline.reconciled
    if last is None:
        return ""
    missing = f"{last.missing:,} missing, {last.sent:,} enqueued again" if last.missing else "nothing missing"
    return f"{missing} as of {moment(last.as_of)}"


def _queue(queue: "QueueStatus") -> str:
    messages = _messages(
        visible=queue.visible,
        in_flight=queue.in_flight,
        delayed=queue.delayed,
        oldest_seconds=queue.oldest_visible_message_age_seconds,
    )
    dead_letters = f"; {counted(queue.dead_letters, 'dead letter')}" if queue.dead_letters else ""
    paused = "; paused" if queue.paused else "; paused by its breaker" if queue.breaker is not None else ""
    unserved = "" if queue.unserved is None else f"; not served: {queue.unserved}"
    return f"{messages}{dead_letters}{paused}{unserved}"


def _workers(found: "Status") -> str:
    states = {record.worker: record.state for record in found.records if record.state != SERVING}
    shown = [f"{worker} ({states[worker]})" if worker in states else worker for worker in found.workers]
    return ", ".join(shown) or ("none on this host" if found.workers_elsewhere else "none running")


def _version(found: "Status | PipelineStatus") -> str:
    """Return the format and version of a table, such as ``delta, version 3``."""
    version = found.table_version
    return f"{found.table_format}, {'no version yet' if version is None else f'version {version}'}"


def _objects(found: "Status | PipelineStatus") -> str:
    texts = {state: f"{count:,} {state}" for state, count in found.objects.items() if count}
    if found.objects_replaced:
        texts[ObjectState.DEAD] += f" ({found.objects_replaced:,} of them replaced by a later version)"
    shown = ", ".join(texts.values()) or "none"
    return f"{shown} (counted by version, a changed object several times)" if found.replaced_objects else shown


def _batches(committed: int, unpublished: int | None) -> str:
    if unpublished is None:
        return f"{committed:,} committed; --app shows whether they are published"
    return f"{committed:,} committed, {unpublished:,} not yet published"


def _replaced(found: "Status | PipelineStatus") -> str:
    """Return how often rows of changed objects were replaced; empty if never."""
    if not found.replaced_objects:
        return ""
    changes, rows = counted(found.replaced_objects, "changed object"), counted(found.replaced_rows, "earlier row")
    return f"; {rows} of {changes} replaced"


def _dead_letters(found: "Status") -> str:
    replaced = found.dead_letters_replaced
    aside = found.dead_letters_set_aside
    notes = [f"{aside:,} of them in final DLQs"] if aside else []
    notes += [f"{replaced:,} of them for objects replaced since"] if replaced else []
    waiting = found.dead_letters_replayed
    notes += [f"{waiting:,} of them wait for their replay"] if waiting else []
    return f"{found.dead_letters:,}" + (f" ({', '.join(notes)})" if notes else "")


def _messages(*, visible: int, in_flight: int, delayed: int, oldest_seconds: float | None) -> str:
    age = "" if oldest_seconds is None else f"; the oldest visible one is {age_of(oldest_seconds)} old"
    return f"{visible:,} visible, {in_flight:,} in flight, {delayed:,} delayed{age}"
