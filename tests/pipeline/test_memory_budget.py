import pytest
import torch

from gapless.pipeline import memory_budget
from gapless.pipeline.memory_budget import free_bytes, require_memory

CPU = torch.device("cpu")


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Replaces what the system says: kB available, and a container's limit and use in bytes."""

    def replace(available_kb, limit=None, used=None):
        for name, text in (
            ("_MEMINFO", f"MemTotal: 9 kB\nMemAvailable:   {available_kb} kB\n"),
            ("_CGROUP_LIMIT", limit),
            ("_CGROUP_USED", used),
        ):
            path = tmp_path / name
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
            monkeypatch.setattr(memory_budget, name, path)

    return replace


def test_the_smaller_of_machine_and_container_counts(system):
    system(1000)
    assert free_bytes(CPU) == 1000 * 1024
    system(1000, limit="max\n", used="5\n")
    assert free_bytes(CPU) == 1000 * 1024
    system(1000, limit="50000\n", used="20000\n")
    assert free_bytes(CPU) == 30000


def test_what_fits_passes_and_what_does_not_says_both_sizes(system):
    system(1 << 20)
    require_memory(1 << 30, CPU, "the thing", "make it smaller")
    with pytest.raises(torch.OutOfMemoryError) as error:
        require_memory((1 << 30) + 1, CPU, "the thing", "make it smaller")
    assert str(error.value) == (
        "out of memory on cpu: the thing needs 1.00 GiB and 1.00 GiB are free; make it smaller"
    )


def test_unknown_memory_stops_nobody(monkeypatch, tmp_path):
    for name in ("_MEMINFO", "_CGROUP_LIMIT", "_CGROUP_USED"):
        monkeypatch.setattr(memory_budget, name, tmp_path / "missing")
    assert free_bytes(CPU) is None
    require_memory(1 << 60, CPU, "the thing", "")
