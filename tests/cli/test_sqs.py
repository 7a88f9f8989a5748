"""Commands and workers on queues in SQS, by name, URL and ARN; and the errors for what SQS cannot do."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import Process, Start
from tests.cli.scene import Scene
from tests.services.aws_server import REGION, AwsServer

from penstock.app.spark import Spark
from penstock.brokers.sqs import SqsBroker
from penstock.ledger.records import AttemptFailure
from penstock.messaging.broker import QueueSettings, listed_name
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter
from penstock.operations.doctor import checks

USAGE, TEMPORARY, CONFIGURATION = 2, 75, 78
LEASE_SECONDS = 600.0
APP = """
import os
import threading
from pathlib import Path
from penstock import App

app = App.from_config()

@app.handler(os.environ.get("QUEUE", "slow"), name="wait")
def wait(message):
    while not Path("go_on").exists():
        threading.Event().wait(0.02)
"""
LAKE = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()
app.pipeline("clicks", source=ObjectSource("landing", queue="nope", schema="id long"), sink=DeltaSink("lake/clicks"))
"""


@pytest.fixture
def here(tmp_path: Path, moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with an app whose queues are in SQS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_spark_checks", lambda *_: ())
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqs://{REGION}")
    (tmp_path / "cloud_shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text("[worker]\nlease = 600\nstop_timeout = 10\n")
    return tmp_path


@pytest.fixture
def broker(here: Path, moto: AwsServer) -> Iterator[SqsBroker]:
    queues = [QueueSettings(name="orders"), QueueSettings(name="slow", receives_max=20)]
    with closing(SqsBroker(moto.aws, holder="test", queues=queues, poll_seconds=1)) as broker:
        yield broker


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: object, **options: object) -> Process:
        process = Process(here, "worker", *arguments, **options)  # type: ignore[arg-type]  # passed on unchanged
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


def names_of(moto: AwsServer, queue: str) -> dict[str, str]:
    """Return the three ways to name a queue."""
    url = moto.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
    return {"name": queue, "url": url, "arn": f"arn:aws:sqs:{REGION}:{moto.account}:{queue}"}


def dead_letter(broker: SqsBroker) -> None:
    broker.send("orders", [Outgoing(body=b"1")])
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=LEASE_SECONDS)
    assert not broker.settle([(delivery, DeadLetter(reason="no such order"))])


QUEUES = "orders, orders-dead, orders-dlq, slow, slow-dead, slow-dlq"
named_by = pytest.mark.parametrize("named_by", ["name", "url", "arn"])


@named_by
def test_a_queue_is_sent_to_and_shown_by_each_name(
    penstock: Call, moto: AwsServer, broker: SqsBroker, named_by: str
) -> None:
    name = names_of(moto, "orders")[named_by]
    (Path("lines")).write_text("1\n2\n3\n")
    assert penstock("send", name, "--file", "lines", "--group", "t").out == f"3 messages sent to {name}.\n"
    assert penstock("send", name, "--body", "4", "--delay", 600, "--json").document["sent"] == 1
    dead_letter(broker)
    document = penstock("queues", "show", name, "--json").document
    del document["workers"]
    assert document == {
        "queue": name,
        "visible": 3,
        "in_flight": 0,
        "delayed": 1,
        "oldest_visible_message_age_seconds": None,
        "oldest_visible_message_age_source": None,
        "oldest_message_age_seconds": None,
        "oldest_message_age_source": None,
        "dead_letters": 1,
        "dead_letters_set_aside": 0,
        "paused": False,
        "breaker": None,
        "unserved": None,
        "sender_key": None,
        "unread": None,
    }
    lines = dict(line.split(maxsplit=1) for line in penstock("queues", "show", name).out.splitlines()[:4])
    assert lines["visible"] == "3"
    assert "oldest visible  not known" in penstock("queues", "show", name).out


def test_queues_are_listed_and_purged(penstock: Call, broker: SqsBroker) -> None:
    penstock("send", "orders", "--body", "1")
    rows = {row["queue"]: row["visible"] for row in penstock("queues", "list", "--json").document}
    assert rows == {"orders": 1, **dict.fromkeys(("orders-dead", "orders-dlq", "slow", "slow-dead", "slow-dlq"), 0)}
    assert penstock("queues", "list").out.splitlines()[1].split()[:4] == ["orders", "1", "0", "0"]
    assert penstock("queues", "purge", "orders", "--yes", "--json").document["deleted"] == 1
    again = penstock("queues", "purge", "orders", "--yes")
    assert (again.exit_code, "purges once in that time" in again.err) == (TEMPORARY, True)


def test_an_account_without_queues_lists_none(penstock: Call, here: Path) -> None:
    assert penstock("queues", "list", "--json").document == []
    result = penstock("queues", "list")
    assert "create one" in result.out + result.err


@pytest.mark.parametrize(
    "named_by", ["nope", f"arn:aws:sqs:{REGION}:123456789012:nope", "http://127.0.0.1:{port}/1/nope"]
)
def test_a_missing_queue_is_reported(penstock: Call, moto: AwsServer, broker: SqsBroker, named_by: str) -> None:
    name = named_by.format(port=moto.port)
    sent = penstock("send", name, "--body", "1")
    assert (sent.exit_code, sent.out) == (CONFIGURATION, "")
    assert f"There is no queue {name!r}" in sent.err
    shown = penstock("queues", "show", name)
    assert (shown.exit_code, shown.err) == (
        USAGE,
        f"penstock: There is no queue {name}; existing queues: {QUEUES}.\n",
    )


def test_a_queue_of_another_region_is_refused_by_its_arn(penstock: Call, broker: SqsBroker) -> None:
    result = penstock("send", "arn:aws:sqs:eu-west-1:123456789012:orders", "--body", "1")
    assert result.exit_code == CONFIGURATION
    assert "write sqs://eu-west-1" in result.err


def test_unsupported_operations_are_reported_in_one_line(penstock: Call, broker: SqsBroker) -> None:
    late = penstock("send", "orders", "--body", "1", "--delay", 901)
    assert late.exit_code == CONFIGURATION
    assert "900 s" in late.err.splitlines()[-1]
    cannot = {
        "pause": "The queue 'orders' cannot be paused on SQS; let its workers drain instead.",
        "resume": "The queue 'orders' cannot be resumed: on SQS none is ever paused.",
    }
    for command, message in cannot.items():
        result = penstock("queues", command, "orders")
        assert (result.exit_code, result.out, result.err) == (CONFIGURATION, "", f"penstock: {message}\n")


def test_a_deduplication_id_works_only_with_fifo_queues(penstock: Call, moto: AwsServer, broker: SqsBroker) -> None:
    result = penstock("send", "orders", "--body", "1", "--deduplication-id", "x")
    assert result.out == "1 message sent to orders.\n"
    assert "only FIFO queues" in result.err
    moto.client("sqs").create_queue(QueueName="line.fifo", Attributes={"FifoQueue": "true"})
    for _ in range(2):
        again = penstock("send", "line.fifo", "--body", "1", "--group", "g", "--deduplication-id", "x")
        assert "unless one with this deduplication id" in again.out
    assert penstock("queues", "show", "line.fifo", "--json").document["visible"] == 1


# Dead letters


@pytest.mark.parametrize("named_by", ["orders", "{url}"])
def test_dead_letters_are_counted_and_shown_if_their_queue_is_named(
    penstock: Call, moto: AwsServer, broker: SqsBroker, named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = named_by.format(url=names_of(moto, "orders")["url"])
    assert penstock("dead", "list", "--queue", queue).exit_code == 0
    dead_letter(broker)
    unnamed = penstock("dead", "list")
    assert (unnamed.exit_code, "No queue is named" in unnamed.err) == (USAGE, True)
    (listed,) = penstock("dead", "list", "--queue", queue, "--json").document
    assert (listed_name(listed["queue"]), listed["original_queue"]) == ("orders-dlq", "orders")
    assert len(penstock("dead", "list", "--queue", queue, "--json").document) == 1, "the message was not visible again"
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", '{"orders": 1}')
    assert penstock("status", "--json").document["problems"] == ["dead letters: 1"]


@pytest.fixture
def foreign_queues(moto: AwsServer) -> None:
    """Create queues of another team in the same account, with dead letters."""
    sqs = moto.client("sqs")
    for name in ("foreign", "foreign-team-dlq"):
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="1")


@pytest.mark.usefixtures("foreign_queues")
def test_foreign_queues_are_not_counted_for_an_app(
    penstock: Call, broker: SqsBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "lonely.py").write_text(APP.replace('os.environ.get("QUEUE", "slow")', '"slow"'))
    dead_letter(broker)  # in orders, which this app does not serve
    penstock("send", "slow", "--body", "1")
    found = penstock("status", "--app", "lonely:app", "--json").document
    assert (found["problems"], found["messages"]["visible"], found["dead_letters"]) == ([], 1, 0)
    assert "foreign" not in penstock("status", "--app", "lonely:app").out
    (app,) = [one for one in penstock("doctor", "--app", "lonely:app", "--json").document if one["check"] == "app"]
    assert (app["level"], "foreign" in app["found"]) == ("ok", False)
    assert penstock("dead", "list", "--app", "lonely:app").exit_code == 0
    assert "foreign" in penstock("queues", "list").out

    unnamed = penstock("status")
    assert unnamed.out.splitlines()[0].startswith("all well; no queue is named")
    assert "foreign" not in unnamed.out


@pytest.mark.usefixtures("foreign_queues")
def test_the_hint_for_dead_letters_that_cannot_be_browsed_names_status(
    penstock: Call, broker: SqsBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "loser.py").write_text(APP.replace('os.environ.get("QUEUE", "slow")', '"orders"'))
    dead_letter(broker)
    (app,) = [
        one for one in json.loads(penstock("doctor", "--app", "loser:app", "--json").out) if one["check"] == "app"
    ]
    assert (app["level"], app["found"]) == ("warning", "loser:app: dead letters: 1")
    assert app["hint"] == "`penstock status --app loser:app` shows more."


def test_a_dlq_shared_by_queues_counts_once(
    penstock: Call, moto: AwsServer, broker: SqsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DLQ is found by the redrive policy, whatever its name; that of a FIFO queue by its name."""
    sqs = moto.client("sqs")
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("a", "b", "lost")]
    policy = {"deadLetterTargetArn": names_of(moto, "lost")["arn"], "maxReceiveCount": 9}
    for url in urls[:2]:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    sqs.send_message(QueueUrl=urls[2], MessageBody="1")
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", '{"a": 1, "b": 1}')
    assert penstock("status", "--json").document["dead_letters"] == 1
    for name in ("line.fifo", "line-dlq.fifo"):
        url = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g", MessageDeduplicationId="1")
    for named_by in (*names_of(moto, "line.fifo").values(), "line-dlq.fifo"):
        monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", json.dumps({named_by: 1}))
        found = penstock("status", "--json").document
        assert (found["dead_letters"], found["messages"]["visible"]) == (1, 0), named_by
        result = penstock("dead", "list", "--queue", named_by)
        assert "each read counts as a receive" in result.err, named_by


def test_failed_objects_are_listed_even_if_dead_letters_cannot_be(
    penstock: Call, broker: SqsBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.of_app(here)
    scene.fail("a.jsonl", AttemptFailure.DEAD, "it is no JSON")
    scene.process("a.jsonl", version="2")
    dead_letter(broker)
    for options in ((), ("--pipeline", "clicks")):
        result = penstock("dead", "list", "--json", *options)
        (dead,) = result.document
        assert dead["kind"] == "object"
        (message,) = result.err.splitlines()
        assert "No queue is named" in message
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", '{"orders": 1}')
    status = penstock("status", "--json")
    assert status.exit_code in (0, 1), status.err
    assert "dead letters: 1" in json.loads(status.out)["problems"]


# Workers


@pytest.mark.parametrize("options", [(), ("--watch",)], ids=["once", "watching"])
def test_an_ingest_from_a_missing_queue_is_a_configuration_error(
    penstock: Call, moto: AwsServer, broker: SqsBroker, options: tuple[str, ...]
) -> None:
    """The queue's counts are those of an empty one, and Spark is not started to find out."""
    for bucket in ("landing", "lake"):
        moto.client("s3").create_bucket(Bucket=bucket)
    result = penstock(
        "ingest",
        "s3://landing/in",
        "s3://lake/t",
        "--queue",
        "nope",
        "--one-host",
        "--schema",
        "id long",
        "--data-dir",
        "state",
        *options,
    )
    assert result.exit_code == CONFIGURATION, result.out + result.err
    assert "There is no queue 'nope'" in result.err
    assert "watching" not in result.err


@named_by
def test_a_worker_serves_a_queue_drains_and_stops(
    penstock: Call, start: Start, moto: AwsServer, broker: SqsBroker, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    name = names_of(moto, "slow")[named_by]
    monkeypatch.setenv("QUEUE", name)
    penstock("send", name, "--body", "1")
    worker = start("cloud_shop:app")
    assert worker.expect("worker.started")["broker"] == f"sqs://{REGION}"
    worker.expect("message.started", queue=name, attempt=1)
    id = worker.expect("worker.started")["worker"]
    assert penstock("queues", "show", name, "--json").document["workers"] == [id]
    assert [row["worker"] for row in penstock("admin", "workers", "list", "--json").document] == [id]
    if named_by == "name":
        drained = penstock("admin", "workers", "drain", "--json").document
        assert drained == {"asked": [id], "elsewhere": [], "suspended": []}
        worker.expect("worker.draining")
    Path("go_on").touch()
    worker.expect("message.acked")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert penstock("queues", "show", name, "--json").document["in_flight"] == 0


def test_a_worker_with_a_missing_queue_is_a_configuration_error(
    start: Start, broker: SqsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", "nope")
    worker = start("cloud_shop:app")
    assert worker.exit_code() == CONFIGURATION
    assert "There is no queue 'nope'" in worker.error_message()
    (failed,) = (json.loads(line) for line in worker.log_lines if line.startswith("{"))
    assert (failed["event"], failed["error.type"]) == ("worker.failed", "QueueMissing")
    assert "exception" not in failed


def test_a_worker_with_one_missing_queue_receives_nothing(
    penstock: Call, start: Start, broker: SqsBroker, here: Path
) -> None:
    more = '\n@app.handler("nope")\ndef more(message):\n    pass\n'
    (here / "cloud_shop.py").write_text(APP + more)
    penstock("send", "slow", "--body", "1")
    worker = start("cloud_shop:app")
    assert worker.exit_code() == CONFIGURATION
    assert "There is no queue 'nope'" in worker.error_message()
    assert [json.loads(line)["event"] for line in worker.log_lines if line.startswith("{")] == ["worker.failed"]
    counts = penstock("queues", "show", "slow", "--json").document
    assert (counts["visible"], counts["in_flight"]) == (1, 0)


def test_a_run_with_a_missing_queue_fails_before_spark_starts(
    penstock: Call, broker: SqsBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(Spark, "session", lambda self: pytest.fail("Spark was started"))
    (here / "cloud_lake.py").write_text(LAKE)
    for options in ((), ("--available-now",)):
        result = penstock("run", "cloud_lake:app", "clicks", *options)
        assert (result.exit_code, result.out) == (CONFIGURATION, ""), result.err
        assert "There is no queue 'nope'" in result.err


def test_an_unavailable_server_is_a_temporary_failure(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", '{"orders": 1}')
    for command in (("send", "orders", "--body", "1"), ("queues", "list"), ("queues", "show", "orders"), ("status",)):
        result = penstock(*command)
        assert result.exit_code == TEMPORARY, (command, result.err)
        assert result.err.splitlines()[-1].startswith("penstock: ")


def test_doctor_checks_an_apps_queues_by_each_name(
    penstock: Call, moto: AwsServer, broker: SqsBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    for named_by, name in names_of(moto, "slow").items():
        module = f"doctored_{named_by}"
        (here / f"{module}.py").write_text(APP.replace('os.environ.get("QUEUE", "slow")', repr(name)))
        document = penstock("doctor", "--app", f"{module}:app", "--json").document
        found = {one["check"]: one["level"] for one in document}
        assert (found["broker"], found["aws"], found["sqs queue"]) == ("ok", "ok", "ok"), document
        assert found["sqs dead"] in ("ok", "warning"), document
    assert "AWS_ENDPOINT_URL" in os.environ
