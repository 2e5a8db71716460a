"""Several devices in one process, on every driver that is built in."""

import pytest
from child import run

DRIVERS = ["cpu", "sim"]


def on(driver: str, code: str, devices: int = 3) -> str:
    done = run(code, GAPLESS_DRIVER=driver, GAPLESS_NUM_DEVICES=str(devices))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("driver", DRIVERS)
def test_peer_copies_keep_every_layout_and_dtype(driver):
    code = """
        import torch
        host = torch.randn(6, 5, 4)
        views = [
            lambda t: t, lambda t: t.t() if t.dim() == 2 else t.transpose(0, 2),
            lambda t: t[1:, ::2], lambda t: t[:, 0], lambda t: t[0, 0, 0], lambda t: t[:0],
            lambda t: t[:, :1].expand(6, 3, 4),
        ]
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
            for view in views:
                source = view(host.to(dtype).to("gapless:0"))
                expected = view(host.to(dtype))
                moved = source.to("gapless:2")
                assert moved.device.index == 2 and torch.equal(moved.cpu(), expected)
                target = torch.zeros(expected.shape[::-1], dtype=torch.float64, device="gapless:1")
                if not dtype.is_complex:
                    target = target.permute(tuple(reversed(range(target.dim()))))
                    target.copy_(source)
                    assert torch.equal(target.cpu(), expected.double())
        conj = torch.randn(3, dtype=torch.complex64)
        assert torch.equal(conj.to("gapless:0").conj().to("gapless:1").cpu(), conj.conj())
        print("equal")
        """
    assert on(driver, code) == "equal\n"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_peer_copy_is_ordered_on_both_devices(driver):
    code = """
        import torch
        a = torch.zeros(300, 300, device="gapless:0")
        b = torch.zeros(300, 300, device="gapless:1")
        for i in range(50):
            a.add_(1)
            b.copy_(a)      # after the add, before the next one
            a.mul_(1)
            with torch.device("gapless:1"):
                b.mul_(2)
            a.copy_(b)
            a.div_(2)
        assert torch.equal(a.cpu(), torch.full((300, 300), 50.0))
        print("equal")
        """
    assert on(driver, code) == "equal\n"


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_device_has_its_own_state(driver):
    code = """
        import torch
        acc = torch.accelerator
        assert acc.device_count() == 3
        torch.gapless.manual_seed_all(7)
        draws = [torch.rand(4, device=f"gapless:{i}").cpu() for i in range(3)]
        torch.gapless.manual_seed_all(7)
        again = [torch.rand(4, device=f"gapless:{i}").cpu() for i in reversed(range(3))][::-1]
        assert all(torch.equal(x, y) for x, y in zip(draws, again))
        with acc.device_index(1):
            block = torch.empty(1 << 20, device="gapless")
            assert block.device.index == 1
        assert acc.current_device_index() == 0
        used = [torch.gapless.memory_allocated(i) for i in range(3)]
        assert used[1] >= 4 << 20 and used[2] == 0, used
        stream = torch.Stream("gapless:2")
        with stream:
            assert acc.current_device_index() == 2
            assert acc.current_stream() == stream
        assert acc.current_device_index() == 0
        try:
            torch.empty(1, device="gapless:3")
        except RuntimeError as error:
            print(error)
        try:
            torch.empty(2, device="gapless:0") + torch.empty(2, device="gapless:1")
        except RuntimeError as error:
            print("gapless:0 and gapless:1" in str(error))
        """
    assert on(driver, code) == "there is no device gapless:3; there are 3\nTrue\n"


@pytest.mark.parametrize("driver", DRIVERS)
def test_events_order_work_across_devices(driver):
    code = """
        import torch
        for _ in range(20):
            a = torch.zeros(200, 200, device="gapless:0")
            pinned = torch.zeros(200, 200, pin_memory=True)
            a.add_(3)
            pinned.copy_(a, non_blocking=True)
            done = torch.Event("gapless:0")
            done.record(torch.accelerator.current_stream(0))
            with torch.accelerator.device_index(1):
                done.wait(torch.accelerator.current_stream(1))
                b = pinned.to("gapless:1", non_blocking=True)
                assert b.cpu().unique().tolist() == [3.0]
        print("ordered")
        """
    assert on(driver, code) == "ordered\n"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_failure_on_one_device_leaves_the_others(driver):
    code = """
        import torch
        torch.zeros(3, device="gapless:1").index_fill_(0, torch.tensor([9], device="gapless:1"), 1)
        x = torch.ones(3, device="gapless:0") + 1
        assert x.tolist() == [2.0] * 3
        try:
            torch.accelerator.synchronize(1)
        except RuntimeError as error:
            print("index_fill_" in str(error) and "gapless:1" in str(error))
        print((torch.ones(2, device="gapless:1") + 1).tolist())
        """
    assert on(driver, code) == "True\n[2.0, 2.0]\n"
