"""Kinds of tensors that the device does not have are refused, with what to do instead."""

import pytest
import torch
import torch.nn.functional as F

SPARSE = {
    "from one of ours": lambda: torch.eye(3, device="gapless").to_sparse(),
    "from one of ours, CSR": lambda: torch.eye(3, device="gapless").to_sparse_csr(),
    "a move": lambda: torch.eye(3).to_sparse().to("gapless"),
    "a constructor": lambda: torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (3,), device="gapless"
    ),
    "a layout": lambda: torch.zeros(3, layout=torch.sparse_coo, device="gapless"),
    "a gradient": lambda: (
        F.embedding(
            torch.tensor([1], device="gapless"),
            torch.ones(3, 2, device="gapless", requires_grad=True),
            sparse=True,
        )
        .sum()
        .backward()
    ),
}
QUANTISED = {
    "from one of ours": lambda: torch.quantize_per_tensor(
        torch.ones(3, device="gapless"), 0.1, 0, torch.qint8
    ),
    "a move": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("gapless"),
}


@pytest.mark.parametrize("how", SPARSE)
def test_sparse_tensors(how):
    with pytest.raises(NotImplementedError, match=r"gapless has no sparse tensors; use .to_dense"):
        SPARSE[how]()


@pytest.mark.filterwarnings("ignore:.*quantize.*")
@pytest.mark.parametrize("how", QUANTISED)
def test_quantised_tensors(how):
    with pytest.raises(
        NotImplementedError, match=r"gapless has no quantised tensors; use .dequantize"
    ):
        QUANTISED[how]()
