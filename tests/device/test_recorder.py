import pytest
import torch

recorder = torch.gapless.recorder


def test_records_are_ordered_and_carry_their_step():
    recorder.start()
    recorder.drain()
    tensor = torch.zeros(100, device="gapless")
    tensor.add_(1)  # the first time goes through PyTorch's wrapper, which calls add.out
    for step in range(3):
        recorder.set_step(step)
        tensor.add_(1)
    recorder.set_step(-1)
    torch.accelerator.synchronize()
    recorder.stop()
    batch = recorder.drain()
    columns = {name: batch.columns[:, i] for i, name in enumerate(recorder.COLUMNS)}
    assert set(columns["step"]) == {-1, 0, 1, 2}
    assert (columns["submit_ns"] <= columns["start_ns"]).all()
    assert (columns["start_ns"] <= columns["end_ns"]).all()
    assert (columns["end_ns"][:-1] <= columns["start_ns"][1:]).all()  # one stream, one thread
    names = [batch.names[i] for i in columns["name_id"]]
    assert names.count("aten::add_.Tensor") == 3
    assert batch.dropped == 0


def test_off_records_nothing():
    recorder.stop()
    recorder.drain()
    torch.ones(3, device="gapless").sum().item()
    assert len(recorder.drain().columns) == 0


def test_a_full_ring_says_what_it_dropped():
    recorder.start(capacity=10)
    tensor = torch.zeros(1, device="gapless")
    for _ in range(50):
        tensor.add_(1)
    torch.accelerator.synchronize()
    recorder.stop()
    batch = recorder.drain()
    assert len(batch.columns) == 10
    assert batch.dropped == 41
    recorder.start()
    recorder.stop()
    with pytest.raises(ValueError, match="at least 1"):
        recorder.start(0)
