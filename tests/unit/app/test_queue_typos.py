"""Queue names that resemble a queue of the app: sending to one warns once."""

import warnings

import pytest

from penstock import App, Queue


@pytest.fixture
def app() -> App:
    app = App(broker="memory://")
    for name in ("invoices", "shard-1", "https://sqs.eu-central-1.amazonaws.com/1/landed"):
        app.handler(name, name=name)(lambda message: None)
    return app


def test_a_name_that_resembles_a_queue_of_the_app_is_warned_of_once(app: App) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        app.send("invoces", {"n": 1})
        app.send("invoces", {"n": 2})
        app.send_many("invoces", [{"n": 3}])
    [warning] = caught
    assert str(warning.message) == (
        "This app has no handler for the queue invoces. Did you mean invoices? For a queue of another app, give "
        "Queue('invoces') instead of its name."
    )
    assert warning.filename == __file__
    assert app.broker.stats("invoces").visible == 3


@pytest.mark.parametrize(
    "name",
    [
        "invoices",
        "mails",
        "invoices-eu",
        "invoices-dlq",
        "shard-2",
        "https://sqs.eu-central-1.amazonaws.com/1/lands",
        Queue("invoces"),
    ],
    ids=str,
)
def test_other_names_are_sent_to_without_a_warning(app: App, name: Queue[object] | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.send(name, {"n": 1})
