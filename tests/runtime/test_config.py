"""How many Ps: affinity, cgroups of both versions, environment."""

import math
import os

import pytest
from gmploop import config

pytestmark = pytest.mark.timeout(60)


def tree(root, cgroup, mounts, files):
    """A faked /proc and /sys/fs/cgroup."""
    for path, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, **files}.items():
        where = root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)
    return str(root)


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = ("31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
G = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize("cgroup, mounts, files, cpus", [
    ("0::/a/b\n", V2, {}, 8),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "max 100000\n"}, 8),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "200000 100000\n"}, 2),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "150000 100000\n"}, 1.5),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "max 100000\n", f"{G}/a/cpu.max": "300000 100000\n"}, 3),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "400000 100000\n", f"{G}/cpu.max": "100000 100000\n"}, 1),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "5000 100000\n"}, 0.05),
    ("0::/\n", V2, {f"{G}/cpu.max": "200000 100000\n"}, 2),
    ("0::/a/b\n", V2, {f"{G}/a/b/cpu.max": "broken\n"}, 8),
    ("4:cpu,cpuacct:/x/y\n3:memory:/z\n", V1,
     {f"{G}/cpu,cpuacct/x/y/cpu.cfs_quota_us": "-1\n", f"{G}/cpu,cpuacct/x/y/cpu.cfs_period_us": "100000\n"}, 8),
    ("4:cpu,cpuacct:/x/y\n", V1,
     {f"{G}/cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n", f"{G}/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"}, 2.5),
    ("0::/docker/abc\n", V2.replace(" / /sys", " /docker/abc /sys"), {f"{G}/cpu.max": "100000 100000\n"}, 1),
    ("", "", {}, 8),
])
def test_quotas(tmp_path, cgroup, mounts, files, cpus):
    root = tree(tmp_path, cgroup, mounts, files)
    assert config.usable_cpus_fraction(root) == cpus
    assert config.usable_cpus(root) == max(1, -(-cpus // 1))


def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert config.usable_cpus(tree(tmp_path, "0::/a\n", V2, {f"{G}/a/cpu.max": "400000 100000\n"})) == 1


def test_no_proc_at_all(tmp_path):
    assert config.usable_cpus(str(tmp_path)) == 8


def test_the_default_with_and_without_the_gil(monkeypatch):
    monkeypatch.delenv("GMPLOOP_PROCS", raising=False)
    monkeypatch.setattr(config, "usable_cpus", lambda: 5)
    monkeypatch.setattr(config, "gil_enabled", lambda: True)
    assert config.resolve_procs() == 1
    monkeypatch.setattr(config, "gil_enabled", lambda: False)
    assert config.resolve_procs() == 5


@pytest.mark.parametrize("text", ["0", "257", "two", "-1", "1.5"])
def test_a_bad_environment_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("GMPLOOP_PROCS", text)
    with pytest.raises(ValueError, match="GMPLOOP_PROCS takes"):
        config.resolve_procs()


def test_the_environment_wins_over_the_default(monkeypatch):
    monkeypatch.setenv("GMPLOOP_PROCS", "3")
    assert config.resolve_procs() == 3 and config.resolve_procs(2) == 2


@pytest.mark.parametrize("text, key, value", [
    ("schedtrace=1000,scheddetail=1", "trace_ns", 1_000_000_000), ("scheddetail=1", "detail", True),
    ("preempt=observe", "observe", True), ("preempt=handoff", "observe", False), ("stall_ms=250", "stall_ns", 250_000_000),
    ("stall_ms=0", "stall_ns", 0), ("retake_ms=0", "retake_ns", 0), ("retake_ms=3", "retake_ns", 3_000_000),
    ("latepoll_ms=0", "poll_ns", 0), ("latepoll_ms=7", "poll_ns", 7_000_000), ("queue_ms=0", "queue_ns", 0),
    ("queue_ms=4", "queue_ns", 4_000_000), ("nap_ms=5", "nap_max_ns", 5_000_000)])
def test_debug_settings_of_the_scheduler(monkeypatch, text, key, value):
    monkeypatch.setenv("GMPLOOP_DEBUG", text)
    assert config.sysmon_duties()[key] == value


@pytest.mark.parametrize("text, function, key, value", [
    ("", "batch_tunables", "wait_ns", 1_000_000), ("batch_wait_us=200", "batch_tunables", "wait_ns", 200_000),
    ("batch_min_ready=0", "batch_tunables", "min_ready", 0), ("uring_entries=4", "uring_sizes", "entries", 4),
    ("uring_cq=8", "uring_sizes", "cq_entries", 8), ("uring_buffers=16", "uring_sizes", "buffers", 16)])
def test_debug_settings_of_pollers(monkeypatch, text, function, key, value):
    monkeypatch.setenv("GMPLOOP_DEBUG", text)
    assert getattr(config, function)()[key] == value


@pytest.mark.parametrize("text", ["stall_ms=x", "stall_ms=-1", "schedtrace=3600001", "preempt=raise", "scheddetail=2",
                                  "nap_ms=0", "retake_ms=-1", "queue_ms=", "sigquit=yes",
                                  "uring_entries=0", "uring_buffers=100", "batch_wait_us=1.5"])
def test_bad_debug_settings_are_refused(text):
    with pytest.raises(ValueError, match="GMPLOOP_DEBUG"):
        config.parse_debug(text)


@pytest.mark.parametrize("cpus, nap_ms, full_ms, shortest_ns", [
    (8, 1, 2, 20_000), (1, 1, 2, 20_000), (0.5, 2, 2, 2_000_000), (0.1, 10, 10, 10_000_000), (0.001, 50, 50, 50_000_000)])
def test_naps_are_longer_under_a_small_quota(monkeypatch, cpus, nap_ms, full_ms, shortest_ns):
    monkeypatch.delenv("GMPLOOP_DEBUG", raising=False)
    monkeypatch.setattr(config, "usable_cpus_fraction", lambda root="/": cpus)
    duties = config.sysmon_duties()
    naps = [duties[key] for key in ("nap_max_ns", "nap_full_ns", "nap_min_ns")]
    assert naps == [nap_ms * 1_000_000, full_ms * 1_000_000, shortest_ns]
    assert duties["cpus"] == math.ceil(cpus)


@pytest.mark.parametrize("nap_ms", [1, 3])
def test_a_nap_that_is_asked_for_is_taken_under_a_quota_and_with_all_ps_busy(monkeypatch, nap_ms):
    monkeypatch.setenv("GMPLOOP_DEBUG", f"nap_ms={nap_ms}")
    monkeypatch.setattr(config, "usable_cpus_fraction", lambda root="/": 0.1)
    duties = config.sysmon_duties()
    assert duties["nap_max_ns"] == duties["nap_full_ns"] == nap_ms * 1_000_000
