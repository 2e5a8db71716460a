"""``torch.func`` and forward-mode gradients, against the CPU, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

pytestmark = pytest.mark.usefixtures("same_threads")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
CASES = {
    "grad": lambda x: grad(lambda y: (y**3).sum())(x),
    "vmap": lambda x: vmap(lambda y: (y @ y).sin())(x),
    "vmap over one of two": lambda x: vmap(torch.mv, in_dims=(None, 0))(x, x),
    "vmap of grad": lambda x: vmap(grad(lambda y: y.exp().sum()))(x),
    "vmap of a layer": lambda x: vmap(lambda y: F.layer_norm(F.linear(y, x), (3,)))(x),
    "jvp": lambda x: jvp(lambda y: y.sin() * y, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda x: jacrev(torch.tanh)(x[0]),
    "jacfwd": lambda x: jacfwd(torch.tanh)(x[0]),
    "hessian": lambda x: hessian(lambda y: y.tanh().sum())(x[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_cpu(name):
    actual = CASES[name](X.to("gapless"))
    assert actual.device.type == "gapless"
    assert torch.equal(actual.cpu(), CASES[name](X))
