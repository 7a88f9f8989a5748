from pathlib import Path

import pytest
from tests.lanes import collection_order, lane, position

SPARK = "tests/spark/test_traces.py::test_one"
TUTORIAL = "tests/docs/test_tutorial.py::test_page[a::b]"
CLUSTER = "tests/spark/test_executors.py::test_one"
KILLS = "tests/chaos/test_spark_kills.py::test_killed[x/y]"
UNIT = "tests/unit/app/test_naming.py::test_one[tests/spark/x]"


def test_tests_with_a_session_share_a_lane_and_other_files_have_their_own() -> None:
    assert len({lane(each) for each in (SPARK, TUTORIAL, KILLS, CLUSTER)}) == 4
    assert lane(SPARK) == lane("tests/spark/test_watch.py::test_one")
    assert lane(KILLS) == lane("tests/chaos/test_cluster_mounts.py::test_one")
    assert lane(CLUSTER) == lane("tests/spark/test_doctor_spark.py::test_one")
    assert lane("tests/web/browser/test_use.py::test_one") == lane("tests/web/browser/test_actions.py::test_one")
    assert lane("tests/web/test_dead.py::test_one") == "tests/web/test_dead.py"
    assert lane("tests/chaos/test_stop.py::test_one") == "tests/chaos/test_stop.py"
    assert lane(UNIT) == "tests/unit/app/test_naming.py"


@pytest.mark.parametrize("short", [UNIT, "tests/cli/test_status.py::test_one", "tests/docs/test_docs.py::test_one"])
def test_tests_in_lanes_run_before_short_tests(short: str) -> None:
    assert max(map(position, (SPARK, TUTORIAL, KILLS, CLUSTER))) < position(short)


def test_each_process_collects_all_files_and_begins_with_different_ones(tmp_path: Path) -> None:
    files = [str(tmp_path / "a" / f"test_{number}.py") for number in range(6)]
    (tmp_path / "a").mkdir()
    for file in [*files, str(tmp_path / "a" / "scene.py")]:
        Path(file).touch()
    orders = [collection_order([str(tmp_path)], f"gw{number}", 3) for number in range(3)]
    assert orders == [files, files[2:] + files[:2], files[4:] + files[:4]]
    assert collection_order([files[5], f"{files[0]}::test_one"], "gw1", 3) == [files[5], f"{files[0]}::test_one"]
