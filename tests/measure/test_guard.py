"""The guard on made-up counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.measure import Guard


def stat(pid: int, name: str, parent: int, ticks: int, waited: int = 0) -> str:
    return f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {waited} 0 20 0 1 0 100"


def machine(root: Path, *, user: int, idle: int, steal: int, processes: dict[int, tuple[str, int, int]]) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    line = f"{user} 0 0 {idle} 0 0 0 {steal} 0 0"
    (root / "proc/stat").write_text(f"cpu  {line}\ncpu0 {line}\ncpu1 {line}\nintr 1\n")
    for pid, (name, parent, ticks) in processes.items():
        (root / f"proc/{pid}").mkdir(exist_ok=True)
        (root / f"proc/{pid}/stat").write_text(stat(pid, name, parent, ticks))
    return root


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    return machine(tmp_path, user=1000, idle=9000, steal=0, processes={10: ("me", 1, 100), 20: ("we) b", 1, 5)})


def test_our_own_work_and_our_childrens_is_no_disturbance(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    machine(quiet, user=1200, idle=9000, steal=0, processes={10: ("me", 1, 250), 11: ("child", 10, 50)})
    assert guard.warnings() == ()


def test_children_that_have_ended_were_ours(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    machine(quiet, user=1200, idle=9000, steal=0, processes={})
    (quiet / "proc/10/stat").write_text(stat(10, "me", 1, 150, waited=150))
    assert guard.warnings() == ()


def test_steal_is_told(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    machine(quiet, user=1000, idle=9180, steal=20, processes={})
    assert len(guard.warnings()) == 1
    assert guard.warnings()[0].startswith("the hypervisor took 10%")


def test_another_process_is_named_with_its_share_of_one_cpu(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    # 400 ticks on two CPUs: ours 100, the other 150 of the 200 that one CPU has.
    machine(quiet, user=1250, idle=9150, steal=0, processes={10: ("me", 1, 200), 20: ("we) b", 1, 155)})
    assert guard.warnings() == ("other processes used 38% of the CPU time (we) b 75% of one CPU)",)
    guard.restart()
    machine(quiet, user=1250, idle=9550, steal=0, processes={})
    assert guard.warnings() == ()


def test_too_short_a_time_says_nothing(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    machine(quiet, user=1010, idle=9000, steal=5, processes={})
    assert guard.warnings() == ()


def test_a_quota_that_bit_is_told(quiet: Path) -> None:
    (quiet / "sys/fs/cgroup").mkdir(parents=True)
    (quiet / "sys/fs/cgroup/cgroup.controllers").write_text("cpu")
    (quiet / "proc/self").mkdir()
    (quiet / "proc/self/cgroup").write_text("0::/")
    (quiet / "sys/fs/cgroup/cpu.stat").write_text("throttled_usec 1000000\n")
    guard = Guard(quiet, pid=10)
    (quiet / "sys/fs/cgroup/cpu.stat").write_text("throttled_usec 1250000\n")
    assert guard.warnings() == ("the control group's CPU quota stopped this process for 0.25 s: use fewer threads",)


def test_a_machine_without_counters_is_quiet(tmp_path: Path) -> None:
    assert Guard(tmp_path / "nothing").warnings() == ()
    assert isinstance(Guard().warnings(), tuple)


def test_what_is_too_bad_to_keep_is_more_than_what_is_told(quiet: Path) -> None:
    guard = Guard(quiet, pid=10)
    machine(quiet, user=1040, idle=9150, steal=10, processes={10: ("me", 1, 100), 20: ("we) b", 1, 45)})
    assert len(guard.warnings()) == 2 and guard.bad() == ()
    machine(quiet, user=1200, idle=9150, steal=60, processes={10: ("me", 1, 100), 20: ("we) b", 1, 205)})
    assert [text.partition(" used")[0].partition(" took")[0] for text in guard.bad()] == [
        "the hypervisor", "other processes",
    ]  # fmt: skip
    assert "we) b" in guard.bad()[1]


def test_quota_memory_and_heat_make_a_block_bad(quiet: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/", "sys/fs/cgroup/cgroup.controllers": "cpu",
        "sys/fs/cgroup/cpu.stat": "throttled_usec 0\n",
        "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 total=0\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7",
    }  # fmt: skip
    for name, text in files.items():
        (quiet / name).parent.mkdir(parents=True, exist_ok=True)
        (quiet / name).write_text(text)
    guard = Guard(quiet, pid=10)
    assert guard.bad() == ()
    hour = 3600 * 10**6  # of microseconds: more than any share of the time that this test takes
    (quiet / "sys/fs/cgroup/cpu.stat").write_text(f"throttled_usec {hour}\n")
    (quiet / "proc/pressure/memory").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={hour}\n")
    (quiet / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count").write_text("9")
    quota, memory, heat = guard.bad()
    assert "quota" in quota and "100% of the time" in quota and "memory" in memory and "hot" in heat
    guard.restart()
    assert guard.bad() == ()
