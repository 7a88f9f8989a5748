"""Traces of sends without `App.send`: the outbox and its relay, notifications of objects."""

from contextlib import closing
from pathlib import Path

from opentelemetry import trace
from sqlalchemy import create_engine
from tests.traced import Traces, context_in, linked, process_provider, traceparent

from penstock import App, Queue
from penstock.app.brokers import open_broker
from penstock.app.relays import relay_once
from penstock.config import Settings
from penstock.events import ignore
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.tracing import unwrapped
from penstock.testing import TestWorker
from penstock.transactions.tables import metadata

SETTINGS = Settings(broker="memory://", tracing_enabled=True)


def test_a_row_of_the_outbox_carries_the_trace_of_its_transaction(tmp_path: Path) -> None:
    traces = Traces(process_provider())
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata.create_all(engine)
    app = App(settings=SETTINGS)
    app.relay(engine)

    ids: dict[bytes, str] = {}

    @app.handler(Queue("orders"))
    def handle(message: Message) -> None:
        ids[message.body] = message.id

    with TestWorker(app) as worker:
        with engine.begin() as connection, trace.get_tracer("users").start_as_current_span("checkout"):
            app.outbox(connection).send("orders", b"1")
            app.outbox(connection).send("orders", b"2", attributes={"traceparent": "theirs"})
        with engine.begin() as connection:
            app.outbox(connection).send("orders", b"3")
        assert relay_once(app, emit=ignore).sent == 3
        carried = {message.body: context_in(message.attributes) for message in worker.waiting("orders")}
        checkout, sent = traces.only("checkout"), traces.only("send orders")
        assert carried == {b"1": traceparent(checkout), b"2": "theirs", b"3": traceparent(sent)}
        assert linked(sent) == [traceparent(checkout)]
        worker.run_until_empty()
    # By message: two functions that run at once may end in either order.
    links = {
        dict(span.attributes or {})["messaging.message.id"]: linked(span) for span in traces.named("process orders")
    }
    assert links == {ids[b"1"]: [traceparent(checkout)], ids[b"2"]: [], ids[b"3"]: [traceparent(sent)]}
    app.close()


def test_a_row_of_the_outbox_has_no_trace_without_tracing(tmp_path: Path) -> None:
    process_provider()
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata.create_all(engine)
    app = App(broker="memory://")
    app.relay(engine)
    with TestWorker(app) as worker, trace.get_tracer("users").start_as_current_span("checkout"):
        with engine.begin() as connection:
            app.outbox(connection).send("orders", b"1")
        relay_once(app, emit=ignore)
        (message,) = worker.waiting("orders")
    assert context_in(message.attributes) is None
    app.close()


def test_a_notification_of_an_object_carries_a_trace(tmp_path: Path) -> None:
    traces = Traces(process_provider())
    (tmp_path / "a.csv").write_text("1\n")
    app = App(settings=SETTINGS)
    with TestWorker(app) as worker:
        assert app.announce("clicks", str(tmp_path)) == 1
        (message,) = worker.waiting("clicks")
    assert context_in(message.attributes) == traceparent(traces.only("send clicks"))


def test_a_broker_opened_by_its_settings_is_traced(tmp_path: Path) -> None:
    """Commands open a broker in this way: a replay, a reconcile."""
    traces = Traces(process_provider())
    settings = Settings(broker=f"sqlite:///{tmp_path}/queue.db", tracing_enabled=True)
    with closing(open_broker(settings, holder="")) as broker:
        broker.send("q", [Outgoing(body=b"1")])
        assert context_in(broker.browse("q", messages_max=1)[0].attributes) == traceparent(traces.only("send q"))
    with closing(open_broker(settings.model_copy(update={"tracing_enabled": False}), holder="")) as broker:
        assert unwrapped(broker) is broker
        broker.send("q", [Outgoing(body=b"2")])
        assert context_in(broker.browse("q", messages_max=2)[1].attributes) is None
