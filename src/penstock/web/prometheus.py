"""Charts from a Prometheus that scrapes Penstock's own gauges (setting web.prometheus_url).

Whatever goes wrong is the error of one chart: its text names neither the user nor the password of the URL.
"""

import base64
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.app.history.chart import Chart, chart_of
from penstock.app.history.history import SPARKLINE_SECONDS, gap_seconds
from penstock.app.history.points import FIELDS, SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.messaging.clock import Clock

TIMEOUT_SECONDS = 3.0
SILENT_SECONDS = 10.0  # after a timeout or a refused connection, the next query waits for this long
ANSWER_BYTES_MAX = 32 * 1024 * 1024
SPARKLINE_STEP_SECONDS = 60
RATE_SECONDS_MIN = 60
ERROR_CHARACTERS_MAX = 300

_QUEUE = {
    "visible": 'max by (queue) (penstock_queue_messages{{state="visible",{labels}}})',
    "in_flight": 'max by (queue) (penstock_queue_messages{{state="in_flight",{labels}}})',
    "delayed": 'max by (queue) (penstock_queue_messages{{state="delayed",{labels}}})',
    "oldest_visible_age_seconds": (
        'max by (queue) (penstock_queue_oldest_visible_message_age_seconds{{source="exact",{labels}}})'
        ' or min by (queue) (penstock_queue_oldest_visible_message_age_seconds{{source="estimated",{labels}}})'
    ),
    "dead_letters": "sum by (queue) (max by (queue, tier) (penstock_dead_letters{{{labels}}}))",
    "settled_per_second": (
        'sum by (queue) (rate(penstock_messages_settled_total{{outcome=~"acked|dead_lettered",{labels}}}[{window}s]))'
    ),
    "arrived_per_second": (
        'sum by (queue) (rate(penstock_messages_settled_total{{outcome=~"acked|dead_lettered",{labels}}}[{window}s]))'
        " + sum by (queue) (deriv(penstock_queue_messages{{{labels}}}[{window}s]))"
    ),
}
_PIPELINE = {
    "processed": 'max by (pipeline) (penstock_objects{{state="processed",{labels}}})',
    "waiting": (
        'sum by (pipeline) (max by (pipeline, state) (penstock_objects{{state=~"unprocessed|processing",{labels}}}))'
    ),
    "failed": 'max by (pipeline) (penstock_objects{{state="dead",{labels}}})',
    "publish_lag_seconds": "max by (pipeline) (penstock_commit_to_publish_lag_seconds{{{labels}}})",
}
EXPRESSIONS: Mapping[SeriesKind, Mapping[str, str]] = {SeriesKind.QUEUE: _QUEUE, SeriesKind.PIPELINE: _PIPELINE}
_LABELS: Mapping[SeriesKind, str] = {SeriesKind.QUEUE: "queue", SeriesKind.PIPELINE: "pipeline"}

Series = Mapping[float, float]  # by epoch seconds


class PrometheusFailed(Exception):
    """A query failed; the message says why."""


class _RedirectRefusal(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the password would be sent to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class PrometheusCharts:
    """Charts from one Prometheus. Thread-safe.

    ``url`` is its address, with ``user:password@`` for basic authentication. ``measured_every_seconds`` as in
    `HistoryReader`.
    """

    def __init__(self, url: str, *, measured_every_seconds: float, clock: Clock) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._address = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/json"}
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._measured_every_seconds = measured_every_seconds
        self._opener = urllib.request.build_opener(_RedirectRefusal())
        self._clock = clock
        self._silence: tuple[float, str] | None = None  # no answer: since when (monotonic), and why; any thread writes

    def chart(self, kind: SeriesKind, name: str, range_: HistoryRange, *, at: float) -> Chart:
        """Return the chart of a queue or pipeline up to ``at``."""
        label, step = _LABELS[kind], range_.ring.slot_seconds
        end = math.floor(at / step) * step
        matches = f"{label}={_quoted(name)}"
        columns: list[Series] = []
        try:
            for field in FIELDS[kind]:
                expression = EXPRESSIONS[kind].get(field)
                if expression is None:
                    columns.append({})
                    continue
                query = expression.format(labels=matches, window=max(2 * step, RATE_SECONDS_MIN))
                found = self._range(query, since=end - range_.ring.kept_seconds, until=end, step_seconds=step)
                columns.append(next((values for labels, values in found if labels.get(label) == name), {}))
        except PrometheusFailed as failed:
            return Chart(error=str(failed))
        times = sorted({when for column in columns for when in column})
        points = [(when, [column.get(when) for column in columns]) for when in times]
        gap = gap_seconds(range_, measured_every_seconds=self._measured_every_seconds)
        return chart_of(points, FIELDS[kind], slot_seconds=step, gap_seconds=gap)

    def sparklines(self, kind: SeriesKind, field: str, *, at: float) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Return one value of all queues or pipelines over the last hour, by name; empty if a query fails."""
        query = EXPRESSIONS[kind][field].format(labels="", window=RATE_SECONDS_MIN)
        try:
            found = self._range(query, since=at - SPARKLINE_SECONDS, until=at, step_seconds=SPARKLINE_STEP_SECONDS)
        except PrometheusFailed:
            return {}
        return {labels.get(_LABELS[kind], ""): sorted(values.items()) for labels, values in found}

    def _range(
        self, query: str, *, since: float, until: float, step_seconds: int
    ) -> Sequence[tuple[Mapping[str, str], Series]]:
        answer = self._asked(
            "query_range",
            query=query,
            start=f"{since:.3f}",
            end=f"{until:.3f}",
            step=str(step_seconds),
            timeout=f"{TIMEOUT_SECONDS:g}s",
        )
        try:
            return [(dict(one["metric"]), _finite(one["values"])) for one in answer["data"]["result"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusFailed(f"{self._address} gave an answer that is not Prometheus's") from error

    def _asked(self, path: str, **arguments: str) -> Mapping[str, Any]:
        silence = self._silence
        if silence is not None and self._clock.monotonic() - silence[0] < SILENT_SECONDS:
            raise PrometheusFailed(silence[1])  # not every page has to wait for the timeout
        body = urllib.parse.urlencode(arguments, errors="surrogatepass").encode()
        request = urllib.request.Request(f"{self._address}/api/v1/{path}", data=body, headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                text = response.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusFailed(self._refusal(error)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            why = f"{self._address} does not answer: {reason}"
            self._silence = self._clock.monotonic(), why
            raise PrometheusFailed(why) from error
        self._silence = None
        if len(text) > ANSWER_BYTES_MAX:
            raise PrometheusFailed(f"{self._address} gave an answer of more than {ANSWER_BYTES_MAX:,} bytes")
        return self._parsed(text)

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        if error.code in (401, 403):
            return f"{self._address} refuses the user of web.prometheus_url (HTTP {error.code})"
        try:
            why = str(json.loads(error.read(10_000))["error"])[:ERROR_CHARACTERS_MAX]  # errors have the same form
        except (OSError, ValueError, KeyError, TypeError):
            why = f"HTTP {error.code}"
        return f"{self._address} refused a query: {why}"

    def _parsed(self, text: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PrometheusFailed(f"{self._address} gave an answer that is not JSON") from error
        if not isinstance(answer, dict) or answer.get("status") != "success":
            raise PrometheusFailed(f"{self._address} gave an answer that is not Prometheus's")
        return answer


def _finite(values: Sequence[Sequence[Any]]) -> Series:
    found = {float(when): float(value) for when, value in values}
    return {when: max(value, 0.0) for when, value in found.items() if math.isfinite(value)}


def _quoted(text: str) -> str:
    """Return a string of PromQL. Its escapes are those of Go."""
    return json.dumps(text, ensure_ascii=False)
