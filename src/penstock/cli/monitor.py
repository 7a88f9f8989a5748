"""`penstock admin monitor`: measure queues, dead letters and the ledger, and serve the metrics."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.jobs.monitor.sample import visible_age_seconds
from penstock.cli.apps import AppArgument, AppOption, required_app
from penstock.cli.exits import TEMPORARY_FAILURE, leave_now, stoppable
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.queues import age_of, oldest, oldest_visible
from penstock.config import with_flags
from penstock.errors import UsageError
from penstock.ledger.records import ObjectState

if TYPE_CHECKING:
    from penstock.app.jobs.monitor.sample import MonitorSample


def monitor(
    app: AppArgument = None,
    app_option: AppOption = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Serve here; default: metrics.monitor_address."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Measure once, print the result, and exit.")] = False,
    json_: Json = False,
) -> None:
    """Measure queues, dead letters and the ledger, and serve the metrics.

    It runs until SIGTERM or Ctrl-C, and serves /metrics, /livez, /readyz and /startupz. It changes nothing; run one
    beside any number of workers. Exit code 75: with --once, if something could not be measured.
    """
    if json_ and not once:
        raise UsageError("--json is for --once; without it the numbers are at /metrics.")
    app_name = required_app(app, app_option)
    with stoppable() as stop:
        from penstock.app.jobs.monitor.process import measure_once, run_monitor
        from penstock.app.loading import load_app

        served = load_app(app_name)
        served.settings = with_flags(served.settings, metrics_monitor_address=address)
        if once:
            raise typer.Exit(_report(measure_once(served), json_=json_))
        if not run_monitor(served, stop=stop):
            leave_now(0)


def _report(sample: "MonitorSample", *, json_: bool) -> int:
    """Print the sample; return the exit code."""
    if json_:
        print_json(_document(sample))
    else:
        _print(sample)
        for source, error in sample.errors.items():
            talk(printable(f"The {source} cannot be measured: {error}"))
    return TEMPORARY_FAILURE if sample.errors else 0


def _document(sample: "MonitorSample") -> dict[str, Any]:
    """Return the sample as a JSON document."""
    from penstock.cli.status_documents import objects_by_state  # loads the ledger

    return {
        "at": sample.at,
        "queues": [
            {**dataclasses.asdict(queue), "oldest_visible_message_age_seconds": visible_age_seconds(queue)}
            for queue in sample.queues
        ],
        "dead_letters": [dataclasses.asdict(dlq) for dlq in sample.dead_letters],
        "pipelines": [
            {
                "pipeline": pipeline.pipeline,
                "objects": objects_by_state(pipeline.objects),
                "oldest_unprocessed_age_seconds": pipeline.oldest_unprocessed_age_seconds or 0.0,
                "overdue": pipeline.objects_overdue,
                "committed_seq": pipeline.batches_committed,
                "missing": None if pipeline.reconciled is None else pipeline.objects_missing,
                "commit_to_publish_lag_seconds": sample.publish_lags_seconds.get(pipeline.pipeline),
            }
            for pipeline in sample.pipelines
        ],
        "up": dict(sample.up),
        "errors": dict(sample.errors),
    }


def _print(sample: "MonitorSample") -> None:
    if sample.queues or "broker" not in sample.errors:
        print_table(
            ("queue", "visible", "in flight", "delayed", "oldest visible", "oldest"),
            [
                (queue.queue, queue.visible, queue.in_flight, queue.delayed, oldest_visible(queue), oldest(queue))
                for queue in sample.queues
            ],
            empty="There are no queues yet.",
        )
    if sample.dead_letters:
        print_table(
            ("queue", "tier", "dead letters", "oldest"),
            [
                (dlq.queue, dlq.tier, dlq.dead_letters, age_of(dlq.oldest_age_seconds) if dlq.dead_letters else "")
                for dlq in sample.dead_letters
            ],
            empty="",
        )
    if sample.pipelines:
        print_table(
            ("pipeline", "objects", "oldest unprocessed", "overdue", "missing", "publish lag"),
            [
                (
                    pipeline.pipeline,
                    ", ".join(_counts(pipeline.objects)) or "none",
                    age_of(pipeline.oldest_unprocessed_age_seconds),
                    pipeline.objects_overdue,
                    "" if pipeline.reconciled is None else pipeline.objects_missing,
                    age_of(sample.publish_lags_seconds.get(pipeline.pipeline)),
                )
                for pipeline in sample.pipelines
            ],
            empty="",
        )


def _counts(objects: Mapping[ObjectState, int]) -> Sequence[str]:
    return [f"{count:,} {state}" for state, count in objects.items() if count]
