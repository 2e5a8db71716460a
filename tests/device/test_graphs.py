import gc

import pytest
import torch


@pytest.fixture(autouse=True, params=["torch.accelerator", "torch.gapless"])
def _graph_class(request, monkeypatch):
    """Both classes have to do the same; the tests name the one of ``torch.accelerator``."""
    if request.param == "torch.gapless":
        monkeypatch.setattr(torch.accelerator, "Graph", torch.gapless.Graph)


def test_replay_runs_the_captured_work_again():
    source = torch.zeros(4, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        doubled = source * 2
        source += 1
    assert source.tolist() == [0] * 4  # capture executes nothing
    for step in range(5):
        graph.replay()
        assert doubled.tolist() == [2.0 * step] * 4
    assert source.tolist() == [5] * 4


def test_many_replays_in_flight():
    counter = torch.zeros(1, dtype=torch.long, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        for _ in range(10):
            counter += 1
    for _ in range(500):
        graph.replay()
    assert counter.item() == 5000


def test_replay_on_another_stream():
    counter = torch.zeros(1, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        counter += 1
    torch.accelerator.synchronize()
    stream = torch.Stream("gapless")
    with stream:
        graph.replay()
    stream.synchronize()
    assert counter.item() == 1


def test_memory_of_a_graph_is_its_own():
    source = torch.ones(1000, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        between = source * 2
        out = between + 1
        del between  # free inside the capture, not outside
    others = [torch.zeros(1000, device="gapless") for _ in range(20)]
    graph.replay()
    assert out.sum().item() == 3000
    assert all(other.sum().item() == 0 for other in others)


def test_a_graph_keeps_what_it_reads():
    weight = torch.full((1000,), 3.0, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        out = weight + 1
    del weight
    gc.collect()
    junk = [torch.zeros(1000, device="gapless") for _ in range(8)]
    graph.replay()
    assert out.sum().item() == 4000
    del junk


def test_graphs_share_a_pool():
    x = torch.ones(100, device="gapless")
    first = torch.accelerator.Graph()
    with first:
        a = x + 1
    second = torch.accelerator.Graph(pool=first.pool())
    with second:
        b = a * 2
    assert first.pool() == second.pool()
    first.replay()
    second.replay()
    assert b.sum().item() == 400


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(),
        lambda t: t.cpu(),
        lambda t: t.nonzero(),
        lambda t: torch.accelerator.synchronize(),
    ],
)
def test_waiting_in_a_capture_is_an_error_and_leaves_the_stream_usable(wait):
    tensor = torch.ones(3, device="gapless")
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="cannot be captured in a graph"), graph:
        wait(tensor)
    assert (tensor + 1).sum().item() == 6


def test_nested_capture_and_early_replay_are_refused():
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="holds no capture"):
        graph.replay()
    tensor = torch.zeros(1, device="gapless")
    inner = torch.accelerator.Graph()
    with torch.accelerator.Graph():
        tensor += 1
        with pytest.raises(RuntimeError, match="already being captured"):
            inner.capture_begin()
    assert tensor.item() == 0


def test_reset_then_capture_again():
    tensor = torch.zeros(1, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        tensor += 1
    graph.replay()
    graph.reset()
    with graph:
        tensor += 10
    graph.replay()
    assert tensor.item() == 11


def test_random_numbers_differ_per_replay_and_repeat_with_the_seed():
    graph = torch.accelerator.Graph()
    with graph:
        numbers = torch.rand(4, device="gapless")

    def draw() -> list[list[float]]:
        torch.manual_seed(7)
        out = []
        for _ in range(3):
            graph.replay()
            out.append(numbers.tolist())
        return out

    first = draw()
    assert first[0] != first[1] != first[2]
    assert draw() == first


def test_a_failure_in_a_replay_names_the_operation_inside():
    table = torch.zeros(3, device="gapless")
    index = torch.tensor([1], device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        table[index]
    graph.replay()
    torch.accelerator.synchronize()
    index.fill_(9)
    graph.replay()
    with pytest.raises(torch.AcceleratorError, match=r"aten::index.*in a graph replay.*index 9"):
        torch.accelerator.synchronize()
    index.fill_(0)
    graph.replay()
    torch.accelerator.synchronize()


def test_a_bound_replay_records_its_event():
    counter = torch.zeros(1, device="gapless")
    graph = torch.gapless.Graph()
    with graph:
        counter += 1
    event = torch.Event("gapless")
    replay = graph.bind_replay(event)
    for _ in range(3):
        replay()
    event.synchronize()
    assert counter.item() == 3
    del graph
    replay()  # keeps the graph alive
    assert counter.item() == 4
    with pytest.raises(TypeError, match=r"torch\.Event"):
        torch.gapless.Graph().bind_replay(None)


def test_timed_events_of_a_capture_are_reached_at_each_replay():
    block = torch.full((300, 300), 1e-3, device="gapless")
    start = torch.Event("gapless", enable_timing=True)
    end = torch.Event("gapless", enable_timing=True)
    graph = torch.accelerator.Graph()
    with torch.Stream("gapless"), graph:
        start.record()
        block @ block
        end.record()
    with pytest.raises(RuntimeError, match="synchronize them first"):
        start.elapsed_time(end)
    graph.replay()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) >= 0
