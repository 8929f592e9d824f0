"""Many runs of one scenario: one task per combination of values and seed, on this machine's cores or a Ray cluster.

A run's row depends only on its file, values and seed, so the table is the same on every machine. Rows are written to a
file as they arrive: repeating the command continues a stopped sweep with the missing runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from rnic.sim.measure import Measure
from rnic.sim.scenario import Scenario, ScenarioError

Row = dict[str, Any]
RETRIES = 2
MOST_RUNS = 100_000


class Job(NamedTuple):
    """One run: its row number, its unique key, and its inputs."""

    number: int
    key: str
    path: str
    changes: dict[str, Any]
    seed: int


class Failed(NamedTuple):
    """A run that raised an exception, or whose process died."""

    why: str


class Backend(Protocol):
    """Executor of runs."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Row | Failed]]:
        """Run the jobs in any order; yield each once."""


def jobs_of(path: Path, axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Job]:
    """Return all combinations of values, each with all seeds.

    Args:
        path: path of the scenario.
        axes: values by dotted key.
        seeds: one run each.

    Raises:
        ScenarioError: there are too many, or one is invalid.
        TopologyError: a topology is invalid.
    """
    if "seed" in axes:
        raise ScenarioError("seed: it is not a value to sweep: give --seed for the first, --seeds for how many")
    text = path.read_bytes()
    count = len(seeds)
    for values in axes.values():
        count *= len(values)
    if not 0 < count <= MOST_RUNS:
        raise ScenarioError(f"{count} runs: give 1 to {MOST_RUNS}, by fewer values or seeds")
    jobs: list[Job] = []
    for values in itertools.product(*axes.values()):
        changes = dict(zip(axes, values, strict=True))
        programs = Scenario.load(path, changes).programs  # find errors before anything runs
        for seed in seeds:
            what = json.dumps([changes, seed], sort_keys=True).encode()
            key = hashlib.sha256(b"\0".join([text, what, *programs])).hexdigest()[:24]
            jobs.append(Job(len(jobs), key, os.fspath(path.absolute()), changes, seed))
    return jobs


def run_job(job: Job) -> Row:
    """Run one job and return its row.

    Raises:
        RnicError: the scenario is invalid.
    """
    scenario = Scenario.load(Path(job.path), job.changes)
    with scenario.fabric(job.seed) as fabric:
        measure = Measure(fabric, 0)
        finished = True
        try:
            fabric.run(scenario.limit_ns)
        except TimeoutError:
            finished = False
        sizes = measure.sizes()
        row: Row = {**job.changes, "seed": job.seed, "finished": finished, **measure.summary()}
        row["queue_peak_bytes"] = max((port.peak_bytes for port in measure.ports), default=0)
        return row | (
            {name: sizes[-1][name] for name in sizes[-1] if name.startswith(("fct", "slow"))} if sizes else {}
        )


def _tried(job: Job) -> Row | Failed:
    """Run a job in a worker; return an exception as text, which every process can unpickle."""
    try:
        return run_job(job)
    except Exception as error:  # noqa: BLE001 - a run of many: the others go on, and the caller hears why
        return Failed(f"{type(error).__name__}: {error}")


def _end_by_ctrl_c() -> None:
    """Let Ctrl-C end a worker silently: the terminal sends it to the worker too, and only the parent reports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _quiet_births() -> Iterator[None]:
    """Block SIGINT in processes started inside, until they have set up its handling."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processes(workers: int) -> Executor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_by_ctrl_c)


def _alone(job: Job) -> Row | Failed:
    """Run a job in a separate process."""
    with _processes(1) as pool:
        try:
            with _quiet_births():
                begun = pool.submit(_tried, job)
            return begun.result()
        except BrokenProcessPool:
            return Failed("its process ended")


@dataclass
class Pool:
    """Processes of this machine.

    ``workers`` is their number; ``make`` creates the executor, for tests.
    """

    workers: int
    make: Callable[[int], Executor] | None = None

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Row | Failed]]:
        """See :class:`Backend`."""
        lost: list[Job] = []
        before = set(active_children())
        # not as_completed: it acquires the locks of all runs, and Ctrl-C in between would leave them locked
        done: SimpleQueue[Future[Row | Failed]] = SimpleQueue()
        with (self.make or _processes)(min(self.workers, len(jobs))) as pool:
            try:
                asked: dict[Future[Row | Failed], Job] = {}
                with _quiet_births():
                    for job in jobs:
                        asked[future := pool.submit(_tried, job)] = job
                        future.add_done_callback(done.put)
                for _ in jobs:
                    future = done.get()
                    try:
                        yield asked[future], future.result()
                    except BrokenProcessPool:
                        lost.append(asked[future])
            except BaseException:
                # stopped: do not wait for anything
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(active_children()) - before:
                    child.terminate()
                raise
        # a dead process breaks the whole pool: from now on, each run gets its own process
        with ThreadPoolExecutor(self.workers) as threads:
            try:
                yield from zip(lost, threads.map(_alone, lost), strict=True)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass
class Ray:
    """A Ray cluster.

    ``address`` is the cluster's; ``"local"`` starts one in this process. The scenario file must exist on all nodes.
    """

    address: str

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Row | Failed]]:
        """See :class:`Backend`."""
        import ray  # noqa: PLC0415 - an optional extra, slow to load

        mine = not ray.is_initialized()
        if mine:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            task = ray.remote(_tried)
            asked = {task.options(max_retries=RETRIES).remote(job): job for job in jobs}
            while asked:
                (ready, *_), _rest = ray.wait(list(asked), num_returns=1)
                job = asked.pop(ready)
                try:
                    yield job, ray.get(ready)
                except ray.exceptions.RayError as error:
                    yield job, Failed(f"Ray: {type(error).__name__}")
        finally:
            if mine:
                ray.shutdown()


class Results:
    """Existing rows by the key of their run, in a file of JSON lines. The run of a truncated line is repeated."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    said = json.loads(line)
                    self.rows[said["key"]] = said["row"]
                except (ValueError, TypeError, KeyError):
                    continue

    def of(self, jobs: Iterable[Job]) -> list[Row]:
        """Return the existing rows of these jobs, in their order."""
        return [self.rows[job.key] for job in jobs if job.key in self.rows]

    def add(self, job: Job, row: Row) -> None:
        """Store a row."""
        self.rows[job.key] = row
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": job.key, "row": row}) + "\n")


def sweep(
    jobs: Iterable[Job],
    backend: Backend,
    results: Results,
    *,
    retries: int = RETRIES,
    told: Callable[[Job, Row | Failed], None] = lambda job, outcome: None,
) -> tuple[list[Row], dict[int, str]]:
    """Make the runs that have no row yet; retry those that fail at most ``retries`` times.

    Returns:
        The rows in the order of the jobs, and the reasons of failed jobs, by number.
    """
    whole = list(jobs)
    left = [job for job in whole if job.key not in results.rows]
    failed: dict[int, str] = {}
    for _ in range(retries + 1):
        if not left:
            break
        again = []
        failed = {}
        for job, outcome in backend.run(left):
            told(job, outcome)
            if isinstance(outcome, Failed):
                again.append(job)
                failed[job.number] = outcome.why
            else:
                results.add(job, outcome)
        left = sorted(again)
    return results.of(whole), failed
