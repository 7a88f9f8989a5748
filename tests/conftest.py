"""Marks for the tests of every folder, and their spread over processes."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.lanes import Lanes, collection_order, position
from xdist.remote import Producer

# The duration of an example depends on the machine and its load, not on the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

pytest_plugins = ["tests.services.plugin", "tests.services.spark_cluster_fixtures"]

# Container images often set PYTHONDONTWRITEBYTECODE. Then every process that a test starts would compile all its
# imports (2.5 s of CPU instead of 1.1 s for penstock.testing), and every pytest process all tests (53 s instead of 17).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SPARK_TESTS = Path(__file__).parent / "spark"

# Fixtures that start a server, or give access to one.
SERVER_FIXTURES = {"servers", "frozen_servers", "start_redis", "start_moto", "start_fauxqs", "start_aws_proxy"}


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, processes that tests start would ignore it too
    if isinstance(worker := getattr(config, "workerinput", None), dict):
        config.args = collection_order(config.args, worker["workerid"], worker["workercount"])
    gc.disable()  # until all tests are collected, which makes a million objects and no garbage


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)
    if hasattr(config, "workerinput"):  # one of several processes: Lanes distributes files in this order
        items.sort(key=lambda item: (position(item.nodeid), item.path))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()  # ten thousand tests live until the end: no later collection needs to scan them


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    return Lanes(config, log)
