"""torch.profiler shows the device's streams, and which operation submitted each work."""

import itertools
import json

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def work() -> torch.Stream:
    second = torch.Stream("gapless")
    block = torch.randn(64, 64, device="gapless")
    with record_function("the product"):
        product = block @ block
    product.relu_()
    with second:
        torch.full((10,), 2.0, device="gapless")
    product.cpu()
    return second


def device_events(prof: profile) -> list:
    return [event for event in prof.events() if event.device_type == DeviceType.PrivateUse1]


def test_each_work_is_shown_once_with_its_launching_operation():
    work()
    with profile(activities=BOTH) as prof:
        work()
    names = [event.name for event in device_events(prof)]
    assert names.count("aten::mm.out") == 1
    assert names.count("aten::relu_") == 1
    assert names.count("copy device to host") == 1
    launching = {
        kernel.name: event.name
        for event in prof.events()
        if event.device_type == DeviceType.CPU
        for kernel in event.kernels
    }
    assert launching["aten::mm.out"] == "aten::mm"
    assert launching["aten::relu_"] == "aten::relu_"
    averages = {average.key: average for average in prof.key_averages()}
    assert averages["aten::relu_"].device_time_total > 0
    assert averages["the product"].device_time_total > 0
    assert averages["the product"].self_device_time_total == 0


def test_times_are_the_devices_own():
    with profile(activities=BOTH) as prof, record_function("the whole"):
        work()
        torch.accelerator.synchronize()
    (whole,) = (
        event
        for event in prof.events()
        if event.name == "the whole" and event.device_type == DeviceType.CPU
    )
    by_stream: dict[int, list] = {}
    for event in device_events(prof):
        if event.name == "the whole":
            continue  # the region as it lies on the device
        assert event.device_index == 0
        # Two clocks, compared to within their conversion.
        assert event.time_range.start >= whole.time_range.start - 100
        assert event.time_range.end <= whole.time_range.end + 100
        by_stream.setdefault(event.device_resource_id, []).append(event.time_range)
    assert len(by_stream) == 2
    for ranges in by_stream.values():
        ranges.sort(key=lambda one: one.start)
        for one, after in itertools.pairwise(ranges):
            assert one.end <= after.start + 0.001  # one thread per stream


def test_the_chrome_trace_has_a_track_per_stream_and_arrows(tmp_path):
    with profile(activities=BOTH) as prof:
        second = work()
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == 0
    }
    assert tracks[0] == "stream 0"
    assert tracks[second.stream_id] == f"stream {second.stream_id}"
    works = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    assert {event["tid"] for event in works} == {0, second.stream_id}
    (product,) = (event for event in works if event["name"] == "aten::mm.out")
    assert product["args"]["queued_ns"] >= 0
    assert product["args"]["work"] > 0
    starts = {event["id"] for event in events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    ends = {event["id"] for event in events if event.get("cat") == "ac2g" and event["ph"] == "f"}
    assert len(ends) == len(works)
    assert starts == ends


def test_a_graphs_replay_is_shown():
    graph = torch.accelerator.Graph()
    block = torch.ones(8, 8, device="gapless")
    with torch.Stream("gapless"), graph:
        block.mul_(2)
    with profile(activities=BOTH) as prof:
        graph.replay()
    assert [event.name for event in device_events(prof)] == ["graph replay"]


def test_a_schedule_and_a_second_profile():
    seen = []
    with profile(
        activities=BOTH,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda prof: seen.append(
            sum(event.name == "aten::mm.out" for event in device_events(prof))
        ),
    ) as prof:
        for _ in range(8):
            work()
            prof.step()
    assert seen == [2, 2]
    assert not torch.gapless.recorder.is_on()


def test_only_the_host_or_only_the_device():
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work()
    assert not device_events(prof)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        work()
    assert "aten::mm.out" in [event.name for event in device_events(prof)]


def test_the_recorder_in_use_is_not_disturbed(capfd):
    torch.gapless.recorder.start()
    torch.gapless.recorder.drain()
    with profile(activities=BOTH) as prof:
        work()
    assert "the device's recorder is in use" in capfd.readouterr().err
    torch.gapless.recorder.stop()
    assert not device_events(prof)
    assert "aten::mm.out" in torch.gapless.recorder.drain().names
