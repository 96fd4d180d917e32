"""A worker killed by SIGKILL ran out of memory only if the kernel says so."""

import pytest

from vocabench.harness.run import memory_kills


def kernel(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return memory_kills.count(root)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.events": "oom_kill 4\n",
                "proc/vmstat": "oom_kill 9\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            },
            1,
        ),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": "nr_free_pages 7\noom_kill 5\n"}, 5),
        ({"proc/vmstat": "nr_free_pages 7\n"}, None),
        ({"proc/self/cgroup": "damaged\n"}, None),
    ],
)
def test_the_count_is_that_of_the_control_group_or_else_of_the_machine(tmp_path, files, count):
    assert kernel(tmp_path, files) == count


@pytest.mark.parametrize(
    ("before", "after", "status", "reason"),
    [
        (1, 2, "oom", "the kernel killed a process for lack of memory"),
        (1, 1, "error", "not for lack of memory, by the kernel's count"),
        (None, None, "error", "is not known"),
    ],
)
def test_a_kill_is_explained_by_the_count(before, after, status, reason):
    found, text = memory_kills.explain(before, after)
    assert found == status
    assert reason in text
