"""Run one schedule again and print its log: ``python -m tests.simulation.replay SEED``."""

import sys
import tempfile
from pathlib import Path

from tests.simulation.harness import Sabotage, ScheduleRunner
from tests.simulation.oracle import judge


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        ScheduleRunner(Path(folder)).schedule(int(sys.argv[1]), Sabotage()) as schedule,
    ):
        try:
            schedule.run()
            judge(schedule)
        finally:
            sys.stdout.write("\n".join(schedule.scheduler.log) + "\n")
            for obj in schedule.world.objects.values():
                timeline = schedule.ledger.attempts_of(schedule.pipeline, obj.ref.object_id)
                sys.stdout.write(f"{obj.ref.key} is {obj.kind}: {[attempt.outcome for attempt in timeline]}\n")


if __name__ == "__main__":
    main()
