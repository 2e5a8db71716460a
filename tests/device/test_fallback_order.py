import pytest
import torch

import gapless


def test_the_first_that_is_there_is_taken_and_told(capsys):
    chosen = gapless.device("nonsense", "neuron", "gapless", "cpu")
    assert chosen == torch.device("gapless")
    told = capsys.readouterr().err
    assert told.startswith("gapless: device gapless (nonsense: torch does not know it; neuron: ")
    assert gapless.device("cpu", "gapless") == torch.device("cpu")
    assert capsys.readouterr().err == "gapless: device cpu\n"
    assert torch.ones(2, device=chosen).sum().item() == 2


def test_an_index_that_is_not_there_is_passed_over(capsys):
    assert gapless.device("gapless:77", "cpu").type == "cpu"
    assert "gapless:77: there are" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which is taken")
def test_a_device_that_torch_was_built_without_is_passed_over():
    assert gapless.device("cuda", "cpu").type == "cpu"


def test_none_is_an_error_that_says_why():
    with pytest.raises(RuntimeError, match=r"none of the devices is there \(nonsense: torch does"):
        gapless.device("nonsense")
    with pytest.raises(ValueError, match="no device was named"):
        gapless.device()
