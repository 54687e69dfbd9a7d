"""The fingerprint of machines that are not here: their ``/proc`` and ``/sys`` as files."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbench.core import default_threads
from kbench.core.kernelfile import cpu_list, kibibytes
from kbench.measure import Gpu, Host, host, read_host

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def cpuinfo(n_cpus: int, flags: str, vendor: str = "GenuineIntel", name: str = "Intel(R) Xeon(R)  Gold 6338") -> str:
    return "\n\n".join(
        f"processor\t: {cpu}\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: {name}\n"
        f"physical id\t: {cpu % 2}\ncore id\t\t: {cpu // 2 % 2}\nflags\t\t: {flags}"
        for cpu in range(n_cpus)
    )


def xeon(root: Path) -> Path:
    """Two sockets of two cores with two threads each: CPU c and c + 4 share a core, even CPUs are on socket 0."""
    files = {
        "proc/cpuinfo": cpuinfo(8, "fpu ssse3 fma avx avx2 avx512f avx512_vnni amx_int8 rdseed"),
        "proc/meminfo": "MemTotal: 263856000 kB\nMemAvailable: 200000000 kB\nHugepagesize: 2048 kB",
        "proc/self/cgroup": "0::/user.slice",
        "sys/devices/system/cpu/online": "0-7",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "512",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "sys/fs/cgroup/user.slice/cpu.max": "max 100000",
        "sys/fs/cgroup/user.slice/memory.max": "max",
    }
    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        pair = f"{cpu % 4},{cpu % 4 + 4}"
        files[f"{folder}/topology/physical_package_id"] = str(cpu % 2)
        files[f"{folder}/topology/core_id"] = str(cpu // 2 % 2)
        files[f"{folder}/topology/thread_siblings_list"] = pair
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", pair),
                (1, "Instruction", "32K", pair),
                (2, "Unified", "1280K", pair),
                (3, "Unified", "48M", "0,2,4,6" if cpu % 2 == 0 else "1,3,5,7"),
            ]
        ):
            for name, text in {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}.items():
                files[f"{folder}/cache/index{index}/{name}"] = text
    for node in (0, 1):
        files[f"sys/devices/system/node/node{node}/cpulist"] = f"{node},{node + 2},{node + 4},{node + 6}"
        files[f"sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       131928000 kB"
    return write(root, files)


def test_two_sockets_with_smt(tmp_path: Path) -> None:
    machine = read_host(xeon(tmp_path), affinity=range(8))
    cpu = machine.cpu
    assert (cpu.vendor, cpu.model) == ("Intel", "Intel(R) Xeon(R) Gold 6338 (family 6 model 106)")
    assert cpu.flags == ("ssse3", "fma", "avx", "avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert (cpu.n_sockets, cpu.n_physical_cores, cpu.n_logical_cpus, cpu.smt) == (2, 4, 8, True)
    assert cpu.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [(c.name, c.n_bytes, len(c.instances)) for c in cpu.caches] == [
        ("L1d", 48 << 10, 4), ("L1i", 32 << 10, 4), ("L2", 1280 << 10, 4), ("L3", 48 << 20, 2),
    ]  # fmt: skip
    assert [(node.cpus, node.memory_bytes) for node in cpu.numa] == [
        ((0, 2, 4, 6), 131928000 << 10),
        ((1, 3, 5, 7), 131928000 << 10),
    ]
    assert (machine.usable_cpus, machine.pin_cpus) == (4, (0, 1, 2, 3))
    assert machine.llc_bytes == 96 << 20
    assert machine.memory.thp == "madvise"
    assert (machine.memory.free_huge_pages, machine.memory.huge_page_bytes) == (512, 2 << 20)
    assert machine.usable_memory_bytes == machine.memory.total_bytes == 263856000 << 10
    assert (machine.cgroup.cpu_quota, machine.cgroup.memory_limit_bytes) == (None, None)


def test_affinity_leaves_fewer_cores_and_one_cache(tmp_path: Path) -> None:
    machine = read_host(xeon(tmp_path), affinity=[4, 6, 2])
    assert (machine.usable_cpus, machine.pin_cpus) == (2, (4, 2))
    assert default_threads(tmp_path, [4, 6, 2]) == 2
    assert machine.llc_bytes == 48 << 20


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("250000 100000", 3), ("300000 100000", 3), ("50000 100000", 1), ("400000 100000", 4), ("900000 100000", 4)],
)
def test_a_container_of_version_2(tmp_path: Path, quota: str, threads: int) -> None:
    files = {
        "sys/fs/cgroup/user.slice/pod/cpu.max": "max 100000",
        "sys/fs/cgroup/user.slice/cpu.max": quota,  # the limit sits on the parent
        "sys/fs/cgroup/user.slice/pod/memory.max": str(8 * GIB),
        "sys/fs/cgroup/user.slice/memory.max": str(64 * GIB),
        "sys/fs/cgroup/user.slice/pod/cpu.stat": "usage_usec 5\nthrottled_usec 1500000",
        "proc/self/cgroup": "0::/user.slice/pod",
    }
    machine = read_host(write(xeon(tmp_path), files), affinity=range(8))
    assert machine.usable_cpus == threads == len(machine.pin_cpus)
    assert default_threads(tmp_path, range(8)) == threads
    assert machine.usable_memory_bytes == 8 * GIB
    assert machine.cgroup.version == 2
    assert machine.cgroup.throttled_seconds == pytest.approx(1.5)


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_a_container_of_version_1(tmp_path: Path, mount: str) -> None:
    root = xeon(tmp_path)
    (root / "sys/fs/cgroup/cgroup.controllers").unlink()
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x",
        # The namespace hides /docker/abc: the limits lie at the mount itself.
        f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "150000",
        f"sys/fs/cgroup/{mount}/cpu.cfs_period_us": "50000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
    }
    machine = read_host(write(root, files), affinity=range(8))
    assert (machine.cgroup.version, machine.cgroup.cpu_quota, machine.usable_cpus) == (1, 3.0, 3)
    assert default_threads(root, range(8)) == 3
    assert machine.usable_memory_bytes == 2 * GIB


def test_no_limit_of_version_1(tmp_path: Path) -> None:
    root = xeon(tmp_path)
    (root / "sys/fs/cgroup/cgroup.controllers").unlink()
    files = {
        "proc/self/cgroup": "4:memory:/\n3:cpu:/",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    machine = read_host(write(root, files), affinity=range(8))
    assert (machine.cgroup.cpu_quota, machine.cgroup.memory_limit_bytes) == (None, None)


def test_a_group_path_cannot_climb_out(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../../secret", "secret/cpu.max": "100000 100000"}
    assert read_host(write(xeon(tmp_path), files), affinity=range(8)).cgroup.cpu_quota is None


def test_arm(tmp_path: Path) -> None:
    block = "BogoMIPS : 50.00\nFeatures : fp asimd asimdhp asimddp sve i8mm bf16\nCPU implementer : 0x41\nCPU part : "
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": "\n\n".join(f"processor\t: {cpu}\n{block}0xd4f" for cpu in range(4)),
            "proc/meminfo": "MemTotal: 16000000 kB\nMemFree: 8000000 kB",
        },
    )
    machine = read_host(root, affinity=range(4))
    assert (machine.cpu.vendor, machine.cpu.model) == ("Arm", "Neoverse-V2")
    assert machine.cpu.flags == ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve")
    assert machine.cpu.n_physical_cores == 4 and not machine.cpu.smt
    assert machine.memory.available_bytes == 8000000 << 10
    unknown = write(tmp_path, {"proc/cpuinfo": f"processor\t: 0\n{block}0x123\n"})
    assert read_host(unknown, affinity=[0]).cpu.model == "part 0x123"


def test_cpuinfo_alone_tells_cores(tmp_path: Path) -> None:
    machine = read_host(write(tmp_path, {"proc/cpuinfo": cpuinfo(8, "avx2 hypervisor")}), affinity=range(8))
    assert machine.cpu.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert machine.cpu.virtual


def test_an_empty_machine_is_read_without_an_error(tmp_path: Path) -> None:
    machine = read_host(tmp_path / "nothing", affinity=[0, 1, 5])
    assert (machine.usable_cpus, machine.pin_cpus, machine.cpu.model) == (3, (0, 1, 5), "unknown")
    assert machine.cgroup.version == 0
    assert default_threads(tmp_path / "nothing", [0, 1, 5]) == 3 and default_threads(tmp_path, []) == 1
    assert machine.llc_bytes > 0
    assert json.loads(json.dumps(machine.as_dict()))["host_id"] == machine.host_id


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from([
    "proc/cpuinfo", "proc/meminfo", "proc/self/cgroup", "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/topology/core_id", "sys/devices/system/cpu/cpu0/cache/index0/size",
    "sys/devices/system/node/node0/cpulist", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/cgroup.controllers",
]), st.text("0123456789-,: \n\tkMx/max", max_size=40)))  # fmt: skip
def test_garbage_is_read_without_an_error(files: dict[str, str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        machine = read_host(write(Path(folder), files), affinity=[0])
        assert machine.usable_cpus >= 1
        json.dumps(machine.as_dict())


def test_host_id_is_the_machine_and_not_its_state(tmp_path: Path) -> None:
    one = read_host(xeon(tmp_path), affinity=range(8))
    same = [
        dataclasses.replace(one, affinity=(0,), variables={"OMP_NUM_THREADS": "1"}, versions={}),
        dataclasses.replace(one, memory=dataclasses.replace(one.memory, available_bytes=1, thp="never")),
        dataclasses.replace(one, memory=dataclasses.replace(one.memory, total_bytes=one.memory.total_bytes - 9000)),
    ]
    gpu = Gpu(0, "NVIDIA H200", 141 * GIB, 140 * GIB, "570.1")
    other = [
        dataclasses.replace(one, cpu=dataclasses.replace(one.cpu, flags=one.cpu.flags[:-1])),
        dataclasses.replace(one, cpu=dataclasses.replace(one.cpu, model="else")),
        dataclasses.replace(one, cpu=dataclasses.replace(one.cpu, cores=one.cpu.cores[:2])),
        dataclasses.replace(one, memory=dataclasses.replace(one.memory, total_bytes=64 * GIB)),
        dataclasses.replace(one, gpus=(gpu,)),
    ]
    assert {machine.host_id for machine in same} == {one.host_id}
    assert len({machine.host_id for machine in [one, *other]}) == 1 + len(other)
    assert len(one.host_id) == 12


def test_this_machine(tmp_path: Path) -> None:
    machine = host()
    assert isinstance(machine, Host) and machine is host()
    assert 1 <= machine.usable_cpus == len(machine.pin_cpus) <= len(machine.affinity)
    assert machine.memory.total_bytes > 1 << 28
    assert machine.gpus or machine.gpu_reason
    assert {"python", "numpy", "kbench"} <= set(machine.versions)


def test_the_fingerprint_imports_nothing_heavy() -> None:
    code = "import sys; from kbench.measure import host; host(); print('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "False"]


def test_kernel_lists_and_sizes() -> None:
    assert cpu_list("0-3,8") == (0, 1, 2, 3, 8)
    assert cpu_list("") == cpu_list("x,-,3-") == ()
    assert len(cpu_list("0-99999")) == 8193
    assert (kibibytes("32K"), kibibytes("8M"), kibibytes("12 kB"), kibibytes("x")) == (32768, 8 << 20, 12288, None)
