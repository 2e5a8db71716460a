"""DataLoader with pinned memory and worker processes."""

import os
from pathlib import Path

import pytest
import torch
from child import run
from torch.utils.data import DataLoader, TensorDataset


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"row": torch.full((1000,), float(index)), "label": torch.tensor(index)}


def total(loader: DataLoader) -> tuple[int, float]:
    pinned, sums = 0, []
    for batch in loader:
        pinned += batch["row"].is_pinned() and batch["label"].is_pinned()
        row = batch["row"].to("gapless", non_blocking=True)
        batch["row"] = None  # the pinned memory may be used again only after the copy
        sums.append(row.sum())
    return pinned, torch.stack(sums).sum().item()


def test_pinning_in_this_process():
    torch.gapless.departures.reset()
    assert total(DataLoader(Rows(), batch_size=4, pin_memory=True)) == (8, 1000.0 * 31 * 16)
    operations = [entry.operation for entry in torch.gapless.departures.counts()]
    assert "copy host to device" not in operations


@pytest.mark.parametrize(
    ("method", "used_before"),
    [
        ("fork", True),
        ("fork", False),
        ("spawn", True),
        pytest.param("spawn", False, marks=pytest.mark.thorough),
    ],
)
def test_workers(method, used_before):
    """The pinning thread serves batches of worker processes, whoever used the device first."""
    done = run(
        f"""
        import torch
        from torch.utils.data import DataLoader
        from test_data_loader import Rows, total

        if __name__ == "__main__":
            if {used_before}:
                torch.ones(3, device="gapless").sum().item()
            options = dict(num_workers=2, multiprocessing_context="{method}")
            loader = DataLoader(Rows(), batch_size=4, pin_memory=True, **options)
            for _ in range(2):
                print(*total(loader))
        """,
        PYTHONPATH=_path(),
    )
    assert done.stdout == f"8 {1000.0 * 31 * 16}\n" * 2, done.stderr


def test_a_worker_that_uses_the_device_after_a_fork_is_told():
    done = run(
        """
        import torch
        from torch.utils.data import DataLoader

        torch.ones(3, device="gapless").sum().item()
        rows = list(range(4))
        to_device = lambda rows: torch.tensor(rows).gapless()
        try:
            list(DataLoader(rows, num_workers=1, collate_fn=to_device))
        except RuntimeError as error:
            print(error)
        """
    )
    assert "before this process was forked" in done.stdout, done.stderr
    assert "spawn" in done.stdout


def test_tensors_of_the_device_as_a_data_set():
    rows = torch.arange(12.0, device="gapless").view(6, 2)
    loader = DataLoader(TensorDataset(rows), batch_size=2, shuffle=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_gapless for batch in batches)
    assert sorted(torch.cat(batches).flatten().tolist()) == list(range(12))


def _path() -> str:
    here = Path(__file__).parent
    return os.pathsep.join(
        [str(here), str(here.parent / "device"), os.environ.get("PYTHONPATH", "")]
    )
