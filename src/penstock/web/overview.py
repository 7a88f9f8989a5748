"""The first page: one health line, then a row per queue and per pipeline, the worst first."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from penstock.app.flows import UNKNOWN, QueueFlow
from penstock.app.queues import QueueStatus
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import FAILED_OBJECTS, PipelineStatus, Problem, ProblemKind, Status
from penstock.operations.status.watch import StatusFrame
from penstock.web.charts import Line, SparklineSet, sparkline
from penstock.web.context import context_of
from penstock.web.object_states import WORDS
from penstock.web.rendering import number, render, texts_of, url

ROWS_MAX = 100  # of each table, unless all are asked for
ALL_ROWS_MAX = 5_000
PROBLEMS_SHOWN = 3  # above the queues; the others are counted by kind, and open with a click
PROBLEMS_MAX = 100
PROBLEM_PAGES: Mapping[ProblemKind, str] = {
    ProblemKind.MISSING: "/reconcile",
    ProblemKind.NO_CONSUMER: "/workers",
    ProblemKind.FAILED: "/dead",
    ProblemKind.BAD_LINES: "/objects",
    ProblemKind.LAGGING: "/",
}
"""The page that tells more about each kind of problem, if it is not about one queue or about objects."""
OTHER_STATES = (ObjectState.DELETED, ObjectState.SUPERSEDED, ObjectState.RETRACTED)  # without a column of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQueue:
    """One queue on the page. ``state`` says why it is not delivered, or that it lags; empty if all is well."""

    status: QueueStatus
    flow: QueueFlow
    state: str
    is_bad: bool
    spark: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPipeline:
    """One pipeline or object handler on the page."""

    status: PipelineStatus
    is_bad: bool
    spark: Markup
    others: Sequence[tuple[str, int]]  # objects in further states


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one table: those shown, of how many that match the filter."""

    shown: Sequence[OverviewQueue | OverviewPipeline]
    matching: int
    total: int


def show(request: Request) -> HTMLResponse:
    """Show the overview."""
    context = context_of(request)
    frame = context.sampler.frame()
    wanted, all_rows = request.query_params.get("q", "").strip(), "all" in request.query_params
    rows_max = ALL_ROWS_MAX if all_rows else ROWS_MAX
    lines = context.sparklines.latest()
    label = _label_of(request)
    shown = frame if frame.status is not None else context.sampler.last_status() or frame
    status = shown.status
    return render(
        request,
        "overview.html",
        frame=frame,
        shown=shown,
        wanted=wanted,
        all_rows=all_rows,
        problems_shown=PROBLEMS_SHOWN,
        problems_max=PROBLEMS_MAX,
        problem_page=lambda problem: _problem_page(request, problem),
        more_problem_counts=() if status is None else _problem_counts(status.problems[PROBLEMS_SHOWN:]),
        queues=None if status is None else queue_rows(shown, lines, wanted=wanted, rows_max=rows_max, label=label),
        pipelines=None
        if status is None
        else pipeline_rows(status, lines, wanted=wanted, rows_max=rows_max, label=label),
        is_new=status is not None and not (status.queues or status.pipelines),
    )


def _problem_page(request: Request, problem: Problem) -> str:
    """Return the address of the page that tells more about a problem: that of its queue if it is about one queue."""
    queue = problem.sentence.values.get("queue")
    if isinstance(queue, str):
        return url(request, "/queue", name=queue)
    if problem.sentence.form == FAILED_OBJECTS:
        return url(request, "/objects", state=ObjectState.DEAD)
    return url(request, PROBLEM_PAGES[problem.kind])


def _problem_counts(problems: Sequence[Problem]) -> Sequence[tuple[str, int]]:
    """Return the number of problems of each kind, the worst kind first."""
    return list(Counter(problem.kind.value for problem in problems).items())


Label = Callable[[float, float], str]


def queue_rows(frame: StatusFrame, lines: SparklineSet, *, wanted: str, rows_max: int, label: Label) -> Rows:
    """Return the rows of the queues whose name contains ``wanted``, the worst first."""
    status = frame.status
    if status is None:
        return Rows(shown=(), matching=0, total=0)
    lagging = {one.queue for one in status.lagging}
    unserved = set(status.queues_unserved)
    matching = [one for one in status.queues if _matches(one.queue, wanted)]
    ranked = sorted(matching, key=lambda one: _queue_rank(one, status, lagging=lagging, unserved=unserved))
    return Rows(
        shown=[
            OverviewQueue(
                status=one,
                flow=frame.flows.get(one.queue, UNKNOWN),
                state=(state := queue_state(one, status, lagging=lagging, unserved=unserved)),
                is_bad=state not in ("", "paused"),
                spark=_spark(lines.queues, one.queue, at=lines.at, label=label),
            )
            for one in ranked[:rows_max]
        ],
        matching=len(matching),
        total=len(status.queues),
    )


def queue_state(queue: QueueStatus, status: Status, *, lagging: set[str], unserved: set[str]) -> str:
    """Return the one word for a queue that needs attention; empty if it does not."""
    if queue.paused:
        return "paused"
    if queue.breaker is not None:
        return "breaker"
    if queue.unserved is not None or queue.unread is not None:
        return "unserved"
    deserted = not queue.workers and queue.messages > 0 and status.workers_seen
    if queue.queue in unserved or deserted:
        return "no consumer"
    if queue.queue in status.queues_silent:
        return "no heartbeat"
    return "lagging" if queue.queue in lagging else ""


_STATES = ("breaker", "unserved", "no consumer", "no heartbeat", "lagging", "paused", "")


def _queue_rank(
    queue: QueueStatus, status: Status, *, lagging: set[str], unserved: set[str]
) -> tuple[int, bool, float, int, str]:
    state = queue_state(queue, status, lagging=lagging, unserved=unserved)
    age_seconds = queue.oldest_visible_message_age_seconds or 0.0
    return _STATES.index(state), not queue.dead_letters, -age_seconds, -queue.messages, queue.queue


def pipeline_rows(status: Status, lines: SparklineSet, *, wanted: str, rows_max: int, label: Label) -> Rows:
    """Return the rows of the pipelines whose name contains ``wanted``, the worst first."""
    matching = [one for one in status.pipelines if _matches(one.pipeline, wanted)]
    ranked = sorted(matching, key=lambda one: (*(-bad for bad in _troubles(one)), -one.objects_left, one.pipeline))
    return Rows(
        shown=[
            OverviewPipeline(
                status=one,
                is_bad=any(_troubles(one)),
                spark=_spark(lines.pipelines, one.pipeline, at=lines.at, label=label),
                others=[(WORDS[state], count) for state in OTHER_STATES if (count := one.objects.get(state, 0))],
            )
            for one in ranked[:rows_max]
        ],
        matching=len(matching),
        total=len(status.pipelines),
    )


def _troubles(one: PipelineStatus) -> tuple[int, ...]:
    """Return how bad each thing is that may be wrong with a pipeline, the worst thing first."""
    wrong = int(one.disagreement is not None) + len(one.shortfalls)
    return wrong, one.objects_missing, one.objects_overdue, failed_objects(one), one.warned_objects


def failed_objects(one: PipelineStatus) -> int:
    """Return the number of failed objects without those that a later version replaced."""
    return one.objects.get(ObjectState.DEAD, 0) - one.objects_replaced


def _matches(name: str, wanted: str) -> bool:
    return wanted.casefold() in name.casefold()


def _spark(lines: Mapping[str, Line], name: str, *, at: float, label: Label) -> Markup:
    return sparkline(lines.get(name, ()), at=at, label=label)


def _label_of(request: Request) -> Label:
    texts = texts_of(request)

    def label(latest: float, highest: float) -> str:
        return texts(
            "last hour: now {latest}, at most {highest}", latest=number(round(latest)), highest=number(round(highest))
        )

    return label


ROUTES: Sequence[BaseRoute] = [Route("/", show)]
