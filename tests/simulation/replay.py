"""Repeat one schedule and print what happened: ``python -m tests.simulation.replay SEED``."""

import sys
import tempfile
from pathlib import Path

from tests.simulation.harness import Sabotage, Theatre
from tests.simulation.oracle import judge


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Theatre(Path(folder)).play(int(sys.argv[1]), Sabotage()) as play:
        try:
            play.perform()
            judge(play)
        finally:
            sys.stdout.write("\n".join(play.stage.log) + "\n")
            for thing in play.world.things.values():
                timeline = play.ledger.attempts_of(play.pipeline, thing.ref.object_id)
                sys.stdout.write(f"{thing.ref.key} is {thing.kind}: {[attempt.outcome for attempt in timeline]}\n")


if __name__ == "__main__":
    main()
