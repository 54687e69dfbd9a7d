"""The thread pool, seen through programs that run on it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from kbench.core import default_threads
from kbench.kernels.cpu import pool

native = pytest.importorskip("kbench.kernels.cpu._native")


def _arena(n_bytes: int) -> np.ndarray:
    raw = np.zeros(n_bytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + n_bytes]


def _adder(pool, d: int = 64):
    """A program of one addition, its two inputs and its output."""
    arena = _arena(3 * 4 * d)
    program = native.Program(pool, arena, 1)
    program.add("scalar", 0, 4 * d, 8 * d, d)
    return program, arena.view(np.float32).reshape(3, d)


TOKEN = np.zeros(1, np.int32)


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_a_pool_has_the_threads_that_were_asked_for_and_works(threads: int) -> None:
    made = native.Pool(threads)
    assert made.threads == threads
    program, values = _adder(made)
    values[0], values[1] = 2, 3
    program.run(TOKEN, 0)
    assert (values[2] == 5).all()


def test_the_shared_pool_has_by_default_what_this_process_should_use() -> None:
    assert pool().threads == default_threads()
    assert pool() is pool(default_threads())


def test_the_caller_keeps_its_affinity() -> None:
    before = os.sched_getaffinity(0)
    program, _ = _adder(native.Pool(min(2, len(before))))
    program.run(TOKEN, 0)
    assert os.sched_getaffinity(0) == before


def test_pinned_threads_go_to_the_processors_given() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one processor only")
    chosen = allowed[1::-1]
    assert native.Pool(2, chosen).cpus == chosen
    # More threads than processors: nobody is pinned.
    assert native.Pool(len(allowed) + 1).cpus == [-1] * (len(allowed) + 1)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 threads"):
        native.Pool(-1)
    with pytest.raises(ValueError, match="0 threads"):
        native.Pool(0)
    with pytest.raises(ValueError, match="1000000 threads"):
        native.Pool(1000000)
    with pytest.raises(ValueError, match="affinity"):
        native.Pool(2, [100000, 100001])
    with pytest.raises(ValueError, match="one of them"):
        native.Pool(1, [0], node=0)
    with pytest.raises(ValueError, match="node 77"):
        native.Pool(1, node=77)


def test_two_python_threads_may_share_a_pool() -> None:
    shared = native.Pool(2)
    programs = [_adder(shared) for _ in range(2)]
    wrong = []

    def work(index: int) -> None:
        program, values = programs[index]
        for i in range(200):
            values[0], values[1], values[2] = i, index, -1
            program.run(TOKEN, 0)
            if not (values[2] == i + index).all():
                wrong.append((index, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pools_come_and_go() -> None:
    for i in range(20):
        program, values = _adder(native.Pool(2 + i % 3))
        values[0] = i
        program.run(TOKEN, 0)
        assert (values[2] == i).all()


def test_after_a_fork_the_child_is_told_and_ends() -> None:
    program, _ = _adder(native.Pool(2))
    program.run(TOKEN, 0)
    pid = os.fork()
    if pid == 0:  # the child: exit code 7 when the error is the expected one, also through the pool's destructor
        code = 1
        try:
            program.run(TOKEN, 0)
        except RuntimeError as error:
            code = 7 if "fork" in str(error) else 2
        finally:
            del program
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    program.run(TOKEN, 0)


def test_a_fork_in_the_middle_of_a_run_leaves_a_child_that_is_told() -> None:
    """The lock of the program that runs is held for ever in the child: nothing there may wait for it."""
    program, _ = _adder(native.Pool(2), d=1 << 20)
    stop = threading.Event()

    def keep_running() -> None:
        while not stop.is_set():
            program.run(TOKEN, 0)

    worker = threading.Thread(target=keep_running)
    worker.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # a child that hangs ends
                try:
                    program.run(TOKEN, 0)
                except RuntimeError as error:
                    os._exit(7 if "fork" in str(error) else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        stop.set()
        worker.join()


def test_nothing_is_recorded_while_the_program_runs() -> None:
    """A step that is added while threads walk the steps would be read half written."""
    program, _ = _adder(native.Pool(2), d=1 << 20)
    steps = program.n_steps
    refused = threading.Event()
    workers = [threading.Thread(target=lambda: [program.run(TOKEN, 0) for _ in range(400) if not refused.is_set()])]
    workers[0].start()
    while workers[0].is_alive() and not refused.is_set():
        try:
            program.add("scalar", 0, 1 << 22, 2 << 22, 1 << 20)
            steps += 1
        except RuntimeError as error:
            assert "another thread runs" in str(error)
            refused.set()
    workers[0].join()
    assert refused.is_set()
    assert program.n_steps == steps
    program.run(TOKEN, 0)


# Two sockets of four cores with two threads each: CPU c and c + 8 share a core, even CPUs are on node 0; node 2 is
# memory without processors.
CPUS = range(16)


@pytest.fixture
def two_nodes(tmp_path: Path) -> str:
    files = {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}" for cpu in CPUS}
    for node, cpus in enumerate(("0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15", "")):
        files[f"node/node{node}/cpulist"] = cpus
        files[f"node/node{node}/meminfo"] = f"Node {node} MemTotal:   {1 << 20} kB\nNode {node} MemFree:  1 kB"
    for name, text in files.items():
        path = tmp_path / "sys/devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(tmp_path)


def test_memory_nodes_are_those_with_processors(two_nodes: str) -> None:
    assert native.memory_nodes(two_nodes) == [
        (0, [0, 2, 4, 6, 8, 10, 12, 14], 1 << 30),
        (1, [1, 3, 5, 7, 9, 11, 13, 15], 1 << 30),
    ]
    assert native.memory_nodes("/nowhere") == []


@pytest.mark.parametrize(
    ("threads", "allowed", "placed"),
    [
        (1, CPUS, [-1]),  # nobody to collide with
        (2, CPUS, [0, 1]),  # one on each node
        (4, CPUS, [0, 2, 1, 3]),  # numbers grouped by node, one processor of each core
        (5, CPUS, [0, 2, 1, 3, 5]),
        (8, CPUS, [0, 2, 4, 6, 1, 3, 5, 7]),
        (16, CPUS, [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]),
        (17, CPUS, [-1] * 17),
        (3, [0, 2, 4, 1], [0, 2, 1]),  # three cores against one: shares of 2.25 and 0.75
        (4, [0, 2, 4, 1], [0, 2, 4, 1]),
        (2, [8, 0, 2], [0, 2]),  # 0 and 8 share a core
        (3, [8, 0, 2], [0, 2, 8]),
        (2, [40, 41], [40, 41]),  # of no node that is known
    ],
)
def test_threads_are_spread_over_nodes(two_nodes: str, threads: int, allowed: list[int], placed: list[int]) -> None:
    assert native.place_threads(threads, list(allowed), root=two_nodes) == placed


def test_a_pool_of_one_node_stays_there(two_nodes: str) -> None:
    assert native.place_threads(3, list(CPUS), 1, two_nodes) == [1, 3, 5]
    assert native.place_threads(6, list(CPUS), 1, two_nodes) == [1, 3, 5, 7, 9, 11]
    assert native.place_threads(1, list(CPUS), 1, two_nodes) == [1]
    with pytest.raises(ValueError, match="1 to its 8 processors"):
        native.place_threads(9, list(CPUS), 1, two_nodes)
    with pytest.raises(ValueError, match="node 2 has no processor"):
        native.place_threads(1, list(CPUS), 2, two_nodes)


def test_a_machine_without_a_node_listing_is_one_node() -> None:
    assert native.place_threads(3, [5, 3, 4], root="/nowhere") == [5, 3, 4]


def test_a_pool_may_stay_on_a_node_of_this_machine() -> None:
    nodes = [node for node in native.memory_nodes() if set(node[1]) & os.sched_getaffinity(0)]
    if not nodes:
        pytest.skip("this machine lists no memory nodes")
    number, cpus, _ = nodes[0]
    before = os.sched_getaffinity(0)
    made = native.Pool(1, node=number)
    assert set(made.cpus) <= set(cpus)
    program, values = _adder(made)
    values[0], values[1] = 2, 3
    program.run(TOKEN, 0)
    assert (values[2] == 5).all()
    assert os.sched_getaffinity(0) == before
