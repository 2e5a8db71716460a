import pytest
import torch

from gapless.pipeline.op_audit import OpAudit


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 0], "aten::index"),
        (lambda x: torch.equal(x, x), "aten::equal"),
        (lambda x: x.to("meta"), "aten::_to_copy"),
    ],
)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_wait_is_found(work, name, mode):
    x = torch.ones(3)
    with mode(), OpAudit() as audit:
        work(x)
    assert any(found.startswith(name) for found in audit.report().host_syncs)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_composites_are_counted_as_a_backend_sees_them(mode):
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    with mode(), OpAudit() as audit:
        torch.nn.functional.linear(x, weight)
    report = audit.report()
    assert dict(report.kernels) == {"aten::mm.default": 1}
    assert report.views["aten::t.default"] == 1
    assert not report.host_syncs
