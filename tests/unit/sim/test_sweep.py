"""Many runs as tasks: one table, whatever made the runs, in whatever order, with however many failures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rnic.sim.scenario import ScenarioError
from rnic.sim.sweep import Failed, Job, Pool, Results, Row, jobs_of, run_job, sweep

TEXT = """\
sample_us = 0
[topology]
kind = "star"
hosts = 3
loss = 0.01
[[workload]]
kind = "incast"
size_bytes = 20000
"""
AXES: dict[str, Sequence[Any]] = {"congestion.mode": ["none", "dcqcn"], "topology.gbps": [10, 25, 40, 100]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(TEXT)
    return path


class Backwards:
    """Makes runs in the opposite order; those in ``fails`` fail as often as they say."""

    def __init__(self, fails: dict[int, int]) -> None:
        self.fails = fails
        self.made: list[int] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Row | Failed]]:
        for job in reversed(jobs):
            self.made.append(job.number)
            if self.fails.get(job.number, 0) > 0:
                self.fails[job.number] -= 1
                yield job, Failed("lightning")
            else:
                yield job, {"number": job.number}


def test_rows_are_in_the_order_of_the_jobs(path: Path) -> None:
    jobs = jobs_of(path, AXES, [1, 2])
    assert len({job.key for job in jobs}) == len(jobs) == 16
    assert [job.number for job in jobs] == list(range(16))
    rows, failed = sweep(jobs, Backwards({}), Results(None))
    assert [row["number"] for row in rows] == list(range(16))
    assert failed == {}


def test_failures_are_tried_again_and_then_told(path: Path) -> None:
    jobs = jobs_of(path, {"topology.gbps": [10, 25, 40]}, [1])
    backend = Backwards({0: 2, 1: 3})
    rows, failed = sweep(jobs, backend, Results(None), retries=2)
    assert backend.made == [2, 1, 0, 1, 0, 1, 0]
    assert [row["number"] for row in rows] == [0, 2]
    assert failed == {1: "lightning"}


def test_a_sweep_that_was_stopped_goes_on(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    jobs = jobs_of(path, {"topology.gbps": [10, 25, 40]}, [1])
    first = sweep(jobs, Backwards({}), Results(out))
    assert len(out.read_text().splitlines()) == 3
    # the last line is cut short, as where the machine went down
    out.write_text(out.read_text()[:-9])
    backend = Backwards({})
    assert sweep(jobs, backend, Results(out)) == first
    assert backend.made == [0]
    # another file is another sweep
    path.write_text(TEXT.replace("20000", "30000"))
    backend = Backwards({})
    sweep(jobs_of(path, {"topology.gbps": [10, 25, 40]}, [1]), backend, Results(out))
    assert backend.made == [2, 1, 0]


def test_another_program_is_another_sweep(path: Path, tmp_path: Path) -> None:
    path.write_text('[topology]\nkind = "pair"\n[[workload]]\nkind = "program"\nfile = "p.py"\n')
    keys = set()
    for text in ("async def main(fabric): pass\n", "async def main(fabric): return 1\n"):
        (tmp_path / "p.py").write_text(text)
        keys |= {job.key for job in jobs_of(path, {}, [1, 2])}
    assert len(keys) == 4


@pytest.mark.slow
def test_processes_make_the_rows_that_one_makes(path: Path) -> None:
    jobs = jobs_of(path, AXES, [1, 2, 3, 4])
    assert len(jobs) == 32
    alone = [run_job(job) for job in jobs]
    rows, failed = sweep(jobs, Pool(2), Results(None))
    assert failed == {}
    assert json.dumps(rows) == json.dumps(alone)
    assert {(row["congestion.mode"], row["topology.gbps"]) for row in rows} == {
        (mode, gbps) for mode in ("none", "dcqcn") for gbps in (10, 25, 40, 100)
    }
    assert len({row["fct_p50_ns"] for row in rows}) > 8


def test_what_a_run_raises_comes_back_as_words(path: Path) -> None:
    jobs = [job._replace(changes={"limit_ms": -1}) for job in jobs_of(path, {}, [1])]
    told: list[Row | Failed] = []
    pool = Pool(1, ThreadPoolExecutor)
    rows, failed = sweep(jobs, pool, Results(None), retries=1, told=lambda job, outcome: told.append(outcome))
    assert rows == []
    assert failed == {0: "ScenarioError: the file: limit_ms=-1 cannot be: give 1e-06 to 3.6e+06"}
    assert len(told) == 2


@pytest.mark.slow
def test_a_run_that_ends_its_process_takes_no_other_along(path: Path, tmp_path: Path) -> None:
    program = "import os\nasync def main(fabric, die):\n    if die:\n        os._exit(9)\n"
    (tmp_path / "p.py").write_text(program + '    await fabric.write("h0", "h1", 1000)\n')
    path.write_text(
        '[topology]\nkind = "pair"\n[[workload]]\nkind = "program"\nfile = "p.py"\narguments = { die = 0 }\n'
    )
    jobs = jobs_of(path, {"workload.0.arguments.die": [1, 0]}, [1, 2])
    rows, failed = sweep(jobs, Pool(2), Results(None), retries=1)
    assert [row["flows_over"] for row in rows] == [1, 1]
    assert failed == {0: "its process ended", 1: "its process ended"}


@pytest.mark.parametrize(
    ("axes", "seeds", "says"),
    [({"topology.gbps": []}, [1], "0 runs"), ({"topology.gbps": [1]}, range(200_000), "200000 runs"),
     ({"colour": [1]}, [1], "has no colour"), ({"seed.x": [1]}, [1], "seed="),
     ({"seed": [1, 2]}, [1], "seed: it is not a value to sweep")],
)  # fmt: skip
def test_mistakes_are_found_before_anything_runs(
    path: Path, axes: dict[str, Sequence[Any]], seeds: Sequence[int], says: str
) -> None:
    with pytest.raises(ScenarioError, match=says):
        jobs_of(path, axes, seeds)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_two_nodes_makes_the_same_table(path: Path) -> None:
    pytest.importorskip("ray", reason="rnic[ray] is not installed")
    from ray.cluster_utils import Cluster

    from rnic.sim.sweep import Ray

    jobs = jobs_of(path, AXES, [1, 2, 3, 4])
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        rows, failed = sweep(jobs, Ray(cluster.address), Results(None))
    finally:
        cluster.shutdown()
    assert failed == {}
    assert json.dumps(rows) == json.dumps([run_job(job) for job in jobs])
