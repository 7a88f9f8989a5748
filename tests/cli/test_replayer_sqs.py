"""`penstock admin replayer` on queues in SQS."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.process import DEADLINE_SECONDS, SRC
from tests.services.aws_server import REGION, AwsServer
from tests.services.forked_process import run_forked

from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import COUNTER_ATTRIBUTE
from penstock.messaging.settlement import DeadLetter

CONFIGURATION = 78
APP = """
from penstock import App

app = App.from_config()
"""
TIERS = (QueueSettings(name="orders"), QueueSettings(name="orders-dlq"))


@pytest.fixture
def here(tmp_path: Path, moto: AwsServer) -> Path:
    (tmp_path / "cloud_shop.py").write_text(APP)
    (tmp_path / "penstock.toml").write_text(f'broker = "sqs://{REGION}"\n')
    return tmp_path


@pytest.fixture
def broker(moto: AwsServer) -> Iterator[SqsBroker]:
    with closing(SqsBroker(moto.aws, holder="test", queues=TIERS, poll_seconds=1)) as broker:
        yield broker


def run_replayer(here: Path, moto: AwsServer, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [sys.executable, "-m", "penstock", "admin", "replayer", "cloud_shop:app", "--json", *arguments],
        cwd=here,
        env={**os.environ, **moto.environment, "PYTHONPATH": str(SRC), **variables},
        timeout=DEADLINE_SECONDS,
    )


def dead_letter(broker: SqsBroker, **attributes: str | bytes) -> None:
    broker.send("orders", [Outgoing(body=b"1", attributes=attributes)])
    (delivery,) = broker.receive("orders", messages_max=1, lease_seconds=60)
    assert not broker.settle([(delivery, DeadLetter(reason="no such order"))])


def url_of(moto: AwsServer, queue: str) -> str:
    url: str = moto.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"]
    return url


def test_the_replayer_replaces_the_aws_sample_with_its_variables_and_counter(
    here: Path, moto: AwsServer, broker: SqsBroker
) -> None:
    dead_letter(broker, binary=b"\x00\xff")
    dead_letter(broker, **{COUNTER_ATTRIBUTE: "2"})
    variables = {"SQS_MAIN_URL": url_of(moto, "orders"), "MAX_ATTEMPS": "2", "BACKOFF_RATE": "0.001"}
    ran = run_replayer(here, moto, **variables, MESSAGE_RETENTION_PERIOD="345600")
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(ran.stdout).values()
    assert found == {"sent": 1, "waiting": 0, "set_aside": 1, "released": 0}
    (set_aside,) = broker.receive("orders-dead", messages_max=9, lease_seconds=60, wait_seconds=2)
    assert set_aside.message.attributes[COUNTER_ATTRIBUTE] == "2"
    (replayed,) = broker.receive("orders", messages_max=9, lease_seconds=60, wait_seconds=3)
    assert (replayed.message.attributes[COUNTER_ATTRIBUTE], replayed.message.attributes["binary"]) == ("1", b"\x00\xff")
    assert not broker.receive("orders-dlq", messages_max=9, lease_seconds=60)


@pytest.mark.parametrize(
    ("missing", "result"),
    [
        ("orders", "Dead letters cannot be replayed: There is no queue 'orders'"),
        ("orders-dlq", "Dead letters cannot be replayed: There is no queue 'orders-dlq'"),
        ("orders-dead", "The dead letters in orders-dlq that fail again have no final DLQ: there is no queue"),
    ],
)
def test_a_missing_queue_or_dlq_is_reported_before_anything_is_received(
    here: Path, moto: AwsServer, broker: SqsBroker, missing: str, result: str
) -> None:
    moto.client("sqs").delete_queue(QueueUrl=url_of(moto, missing))
    ran = run_replayer(here, moto, "--queues", "orders")
    assert ran.returncode == CONFIGURATION
    (line,) = ran.stderr.splitlines()
    assert json.loads(line)["event"] == "worker.failed"
    assert result in json.loads(line)["error.message"]
