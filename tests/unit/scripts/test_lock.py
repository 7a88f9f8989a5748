from pathlib import Path

import pytest

LOCKS = sorted((Path(__file__).parents[3] / "locks").glob("*.txt"))


def test_the_set_of_locks_is_complete() -> None:
    of_tools = {"bench", "bench-older", "build", "dev", "docs", "release", "spark40", "uv"}
    of_images = {"image", "image-spark", "local-aws"}
    assert {lock.stem for lock in LOCKS} == of_tools | of_images


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_index_and_hashes_every_pin(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    pins = [number for number, line in enumerate(lines) if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in lines[number] and "--hash=sha256:" in lines[number + 1] for number in pins)
