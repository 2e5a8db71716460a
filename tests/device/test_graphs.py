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


def test_an_empty_graph_replays():
    graph = torch.accelerator.Graph()
    with graph:
        pass
    for _ in range(3):
        graph.replay()
    torch.accelerator.synchronize()


def test_a_graph_is_destroyed_while_its_replays_are_queued():
    counter = torch.zeros(200, 200, device="gapless")
    graph = torch.accelerator.Graph()
    with graph:
        between = counter @ counter
        counter += 1
        between += 1
    for _ in range(50):
        graph.replay()
    del graph, between
    junk = [torch.full((200, 200), -1.0, device="gapless") for _ in range(4)]
    assert counter.eq(50).all().item()
    assert all(tensor.eq(-1).all().item() for tensor in junk)


def test_graphs_of_one_pool_replay_in_order_on_any_stream():
    x = torch.ones(1000, device="gapless")
    graphs, outputs, pool = [], [], None
    for factor in range(2, 6):
        graph = torch.accelerator.Graph(pool=pool)
        with graph:
            temporary = x * factor
            outputs.append(temporary + 1)
            del temporary
        pool = graph.pool()
        graphs.append(graph)
    assert len({graph.pool() for graph in graphs}) == 1
    streams = [torch.Stream("gapless") for _ in graphs]
    for step in range(5):
        x.fill_(step)
        before = torch.accelerator.current_stream()
        for graph, stream in zip(graphs, streams, strict=True):
            stream.wait_stream(before)
            with stream:
                graph.replay()
            before = stream
        torch.accelerator.current_stream().wait_stream(before)
        assert [output[-1].item() for output in outputs] == [step * f + 1 for f in range(2, 6)]


def test_a_shared_pool_outlives_the_graph_that_made_it():
    x = torch.ones(1000, device="gapless")
    first = torch.accelerator.Graph()
    with first:
        a = x + 1
    second = torch.accelerator.Graph(pool=first.pool())
    with second:
        b = a * 2
    first.replay()
    del first
    torch.gapless.empty_cache()
    second.replay()
    assert b.sum().item() == 4000
    del a, second
    assert b.sum().item() == 4000


def test_an_unknown_pool_is_refused():
    graph = torch.accelerator.Graph(pool=(987654, 0))
    with pytest.raises(RuntimeError, match="memory pool 987654 does not exist"), graph:
        pass
    assert torch.ones(3, device="gapless").sum().item() == 3


def test_an_exception_ends_the_capture_and_gives_its_memory_back():
    torch.gapless.empty_cache()
    x = torch.zeros(1 << 20, device="gapless")
    torch.accelerator.synchronize()
    before = torch.gapless.memory_reserved()
    graph = torch.accelerator.Graph()
    kept = []

    def body() -> None:
        x.add_(1)
        kept.append(x * 2)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"), graph:
        body()
    with pytest.raises(RuntimeError, match=r"last one failed: an exception of type ValueError"):
        graph.replay()
    assert x.sum().item() == 0  # nothing of it ran
    kept.clear()
    torch.gapless.empty_cache()
    assert torch.gapless.memory_reserved() == before
    with graph:  # it can be used again
        x += 1
    graph.replay()
    assert x.sum().item() == 1 << 20


def test_an_exception_that_is_handled_inside_does_not_end_the_capture():
    x = torch.zeros(3, device="gapless")
    graph = torch.accelerator.Graph()
    try:
        raise KeyError
    except KeyError:
        with graph:
            x += 1
            with pytest.raises(RuntimeError, match="cannot be captured"):
                x.sum().item()
            x += 1
    graph.replay()
    assert x.tolist() == [2] * 3


def test_replay_draws_what_eager_draws_from_the_same_state():
    graph = torch.accelerator.Graph()
    with graph:
        first = torch.rand(4, device="gapless")
        second = torch.rand(4, device="gapless")
    for seed in (1, 2):
        torch.gapless.manual_seed(seed)
        torch.rand(1, device="gapless")
        state = torch.gapless.get_rng_state()
        graph.replay()
        replayed = [first.tolist(), second.tolist(), torch.rand(4, device="gapless").tolist()]
        torch.gapless.set_rng_state(state)
        eager = [torch.rand(4, device="gapless").tolist() for _ in range(3)]
        assert replayed == eager


def test_streams_fork_and_join_inside_a_capture():
    x = torch.zeros(1000, device="gapless")
    side, graph = torch.Stream("gapless"), torch.accelerator.Graph()
    with graph:
        main = torch.accelerator.current_stream()
        x += 1
        side.wait_stream(main)
        with side:
            left = x * 2
        right = x * 3
        main.wait_stream(side)
        total = left + right
    assert x.sum().item() == 0
    for step in range(1, 4):
        graph.replay()
        assert total.tolist() == [5.0 * step] * 1000
    with side:  # which is free again
        assert (x + 1).sum().item() == 4000


def test_a_join_through_a_third_stream_counts():
    x = torch.zeros(3, device="gapless")
    second, third = torch.Stream("gapless"), torch.Stream("gapless")
    graph = torch.accelerator.Graph()
    with graph:
        main = torch.accelerator.current_stream()
        second.wait_stream(main)
        with second:
            x += 1
        third.wait_stream(second)
        main.wait_stream(third)
    graph.replay()
    assert x.tolist() == [1] * 3


def fork_without_join(main, side, x):
    side.wait_stream(main)
    with side:
        x += 1


def fork_and_join_too_early(main, side, x):
    side.wait_stream(main)
    main.wait_stream(side)
    with side:
        x += 1


@pytest.mark.parametrize("body", [fork_without_join, fork_and_join_too_early])
def test_a_capture_that_ends_with_an_open_fork_is_refused(body):
    x = torch.zeros(3, device="gapless")
    side, graph = torch.Stream("gapless"), torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match=r"ended while stream \d+ .* still took part"), graph:
        body(torch.accelerator.current_stream(), side, x)
    with pytest.raises(RuntimeError, match="holds no capture, since the last one failed"):
        graph.replay()
    with side:
        x += 1
        assert x.tolist() == [1] * 3


def test_events_do_not_cross_the_border_of_a_capture():
    x = torch.zeros(3, device="gapless")
    side = torch.Stream("gapless")
    with side:
        outside = side.record_event()
    inside = torch.Event("gapless")
    graph, other = torch.accelerator.Graph(), torch.accelerator.Graph()
    with graph:
        x += 1
        with pytest.raises(RuntimeError, match="recorded outside the capture"):
            torch.accelerator.current_stream().wait_event(outside)
        inside.record()
        with pytest.raises(RuntimeError, match="recorded while a graph was captured"):
            inside.synchronize()
        with side:
            other.capture_begin()
            with pytest.raises(RuntimeError, match="the capture of another graph"):
                side.wait_event(inside)
            other.capture_end()
    with pytest.raises(RuntimeError, match="captured, which has ended"):
        side.wait_event(inside)
    graph.replay()
    assert x.tolist() == [1] * 3
