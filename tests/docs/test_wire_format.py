"""docs/use/wire-format.md: a worker processes what its examples send with other clients."""

import re
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from tests.services.aws_server import AwsServer
from tests.services.forked_process import ForkedPopen
from tests.services.redis_server import RedisServer

from penstock.brokers.sqs.envelope import sealed

PAGE = (Path(__file__).parents[2] / "docs/use/wire-format.md").read_text(encoding="utf-8")
SECONDS_MAX = 60
APP = """
from pathlib import Path
from pydantic import BaseModel
from penstock import App, Context, Queue

class Order(BaseModel):
    id: str
    cents: int

app = App.from_config()

@app.handler(Queue("orders", Order))
def take(order: Order, context: Context) -> None:
    with Path("taken.txt").open("a") as file:
        file.write(f"{order.id} {order.cents} {context.message.group}\\n")
"""


def example(client: str) -> str:
    """Return the page's example for a client."""
    (found,) = re.findall(rf"<!-- example: {client} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def taken(folder: Path, broker: str, *, messages: int, environment: dict[str, str]) -> set[str]:
    """Return the lines that a worker writes for the messages in the queue orders."""
    (folder / "shop.py").write_text(APP)
    worker = ForkedPopen(
        [sys.executable, "-m", "penstock", "worker", "shop:app"],
        cwd=folder,
        env={
            **environment,
            "PENSTOCK_BROKER": broker,
            "PENSTOCK_LOG_FORMAT": "json",
            "PENSTOCK_LOG_LEVEL": "debug",
            "PYTHONUNBUFFERED": "1",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        acked = 0
        while acked < messages:
            line = worker.stderr.readline()
            assert line, "the worker ended early"
            acked += '"event":"message.acked"' in line
    finally:
        worker.terminate()
        worker.communicate(timeout=SECONDS_MAX)
    return set((folder / "taken.txt").read_text().splitlines())


def test_a_worker_processes_messages_sent_by_redis_py(redis_server: RedisServer, tmp_path: Path) -> None:
    exec(example("redis").replace("redis://localhost", redis_server.url))
    lines = taken(tmp_path, redis_server.url, messages=3, environment={})
    assert lines == {"a 100 None", "b 200 tenant-7", "c 300 None"}


def test_a_worker_processes_messages_sent_by_boto3(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_ENDPOINT_URL": moto.url,
        "PENSTOCK_AWS_ENDPOINT_URL": moto.url,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("sqs", region_name="eu-west-1")
    for name in ("orders-dlq", "orders-dead", "orders"):
        client.create_queue(QueueName=name)
    exec(example("sqs"))
    lines = taken(tmp_path, "sqs://eu-west-1", messages=2, environment=environment)
    assert lines == {"d 400 None", "e 500 None"}


def test_penstock_sends_ordinary_messages_to_sqs() -> None:
    entry = sealed(b'{"id": "a"}', {"colour": "red"}, "tenant-7", fifo=False)
    assert entry["MessageBody"] == '{"id": "a"}'
    assert entry["MessageAttributes"]["colour"] == {"DataType": "String", "StringValue": "red"}
    assert entry["MessageAttributes"]["penstock"]["StringValue"] == '{"group":"tenant-7"}'
