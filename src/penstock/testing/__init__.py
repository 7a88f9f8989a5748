"""Tools for testing applications built on Penstock.

`perform` runs one handler on one message, in the test's own thread, and returns the outcome and the messages sent.
`TestWorker` is a real worker over in-memory queues, where retries and delays take no time. `run_pipeline` processes
files with a declared pipeline, in the test's Spark session. `FakeClock` moves only when the test advances it.
`penstock.testing.plugin` provides pytest fixtures for them.
"""

from penstock.testing.fake_clock import FakeClock
from penstock.testing.perform import Performed, perform
from penstock.testing.recorder import Sent
from penstock.testing.run_pipeline import PipelineResult, run_pipeline
from penstock.testing.worker import DeadMessage, TestWorker

__all__ = ["DeadMessage", "FakeClock", "Performed", "PipelineResult", "Sent", "TestWorker", "perform", "run_pipeline"]
