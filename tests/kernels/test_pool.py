"""The thread pool, seen through programs that run on it."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

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
    pool = native.Pool(threads)
    assert pool.threads == threads
    program, values = _adder(pool)
    values[0], values[1] = 2, 3
    program.run(TOKEN, 0)
    assert (values[2] == 5).all()


def test_by_default_no_more_threads_than_processors() -> None:
    assert 1 <= native.Pool().threads <= len(os.sched_getaffinity(0))


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
    with pytest.raises(ValueError, match="1000000 threads"):
        native.Pool(1000000)
    with pytest.raises(ValueError, match="affinity"):
        native.Pool(2, [100000, 100001])


def test_two_python_threads_may_share_a_pool() -> None:
    pool = native.Pool(2)
    programs = [_adder(pool) for _ in range(2)]
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
