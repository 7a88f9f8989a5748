"""For tests of what is built on Penstock.

`perform` runs one handler on one message, in the test's own thread, and returns what became of it and what it sent.
`TestWorker` is a real worker over queues in memory, where waits take no time. `run_pipeline` brings files through a
declared pipeline, in a Spark session of the test's. `FakeClock` stands still until somebody moves it. The module
`penstock.testing.plugin` has them as fixtures of pytest.
"""

from penstock.testing.fake_clock import FakeClock
from penstock.testing.perform import Performed, perform
from penstock.testing.recorder import Sent
from penstock.testing.run_pipeline import PipelineResult, run_pipeline
from penstock.testing.worker import DeadMessage, TestWorker

__all__ = ["DeadMessage", "FakeClock", "Performed", "PipelineResult", "Sent", "TestWorker", "perform", "run_pipeline"]
