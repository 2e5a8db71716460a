"""However a pipeline ends, nothing is left un-waited, held, or silently lost."""

import _thread
import gc
import warnings

import pytest
import torch

from gapless.pipeline import Pipeline, PipelineWarning, StepError
from tests.pipeline.conftest import _devices

IS_GAPLESS = getattr(torch.accelerator.current_accelerator(), "type", "") == "gapless"
on_gapless = pytest.mark.skipif(not IS_GAPLESS, reason="uses failures and gates of the device")


class Trouble(Exception):
    pass


class Watched:
    """A step and its inputs, which tell whether all that was submitted has run."""

    def __init__(self, device):
        self.device = device
        self.weight = torch.full((200, 200), 1e-3, device=device)
        self.events = []
        self.are_inputs_closed = False

    def inputs(self):
        try:
            while True:
                yield torch.ones(200, 200)
        finally:
            self.are_inputs_closed = True

    def __call__(self, x):
        for _ in range(10):
            x = x @ self.weight
        self.submit_event()
        return x

    def submit_event(self):
        if self.device.type != "cpu":
            self.events.append(torch.Event(self.device))
            self.events[-1].record()

    @property
    def has_run(self):
        return all(event.query() for event in self.events)


@pytest.fixture
def watched(device):
    return Watched(device)


def end_by_break(watched, depth):
    with Pipeline(watched, depth, device=watched.device) as pipeline:
        for _ in pipeline.map(watched.inputs()):
            break
        return pipeline, pipeline.in_flight


def end_by_an_exception(watched, depth):
    def consume():
        with Pipeline(watched, depth, device=watched.device) as pipeline:
            made.append(pipeline)
            for _ in pipeline.map(watched.inputs()):
                raise Trouble

    made = []
    with pytest.raises(Trouble):
        consume()
    return made[0], made[0].in_flight


def end_by_closing_the_iterator(watched, depth):
    with Pipeline(watched, depth, device=watched.device) as pipeline:
        with pipeline.map(watched.inputs()) as results:
            next(results)
        assert list(results) == []
        return pipeline, pipeline.in_flight


def end_by_closing_the_pipeline(watched, depth):
    pipeline = Pipeline(watched, depth, device=watched.device)
    results = pipeline.map(watched.inputs())
    next(results)
    pipeline.close()
    pipeline.close()
    assert list(results) == []
    return pipeline, pipeline.in_flight


WAYS = [
    end_by_break,
    end_by_an_exception,
    end_by_closing_the_iterator,
    end_by_closing_the_pipeline,
]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_an_early_end_waits_for_all_that_was_submitted(watched, way, depth):
    pipeline, left = way(watched, depth)
    assert left == 0
    assert watched.has_run
    assert watched.are_inputs_closed
    statistics = pipeline.statistics
    assert (statistics.submitted_steps, statistics.read_steps) == (depth, 1)
    assert (statistics.dropped_steps, statistics.failed_steps) == (depth - 1, 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_early_end_leaves_no_memory_behind(watched, way):
    if watched.device.type == "cpu":
        pytest.skip("the CPU's memory is not counted")
    way(watched, 4)  # makes what is made once
    gc.collect()
    before = torch.accelerator.memory_allocated()
    gc.disable()
    try:
        way(watched, 4)
        assert torch.accelerator.memory_allocated() == before
    finally:
        gc.enable()


def test_after_a_break_the_pipeline_goes_on(watched):
    with Pipeline(watched, 3, device=watched.device) as pipeline:
        for _ in range(3):
            for _ in pipeline.map(watched.inputs()):
                break
            assert pipeline.submit(torch.ones(200, 200)) % 4 == 3
            pipeline.result()


def test_inputs_that_are_no_generator_are_not_closed(device, tmp_path):
    path = tmp_path / "lines"
    path.write_text("1\n2\n3\n")
    with path.open() as lines, Pipeline(lambda x: x, device=device, prepare=int) as pipeline:
        for first in pipeline.map(lines):
            assert first == 1
            break
        assert not lines.closed


@pytest.mark.parametrize("stage", ["prepare", "submit", "schedule"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_raised_at_once_and_all_is_waited_for(watched, stage, kind):
    def maybe(now, value):
        if now == stage and value == 2:
            raise kind

    def inputs():
        for value in range(5):
            maybe("schedule", value)
            yield value

    def prepare(value):
        maybe("prepare", value)
        return torch.ones(200, 200), value

    def step(prepared):
        result = watched(prepared[0])
        maybe("submit", prepared[1])
        return result

    pipeline = Pipeline(step, 3, device=watched.device, prepare=prepare)

    def consume():
        with pipeline:
            list(pipeline.map(inputs()))

    with pytest.raises(kind):
        consume()
    assert pipeline.in_flight == 0
    assert watched.has_run
    assert pipeline.statistics.submitted_steps == 2


@pytest.mark.parametrize("name", _devices())
def test_a_step_that_was_interrupted_leaves_no_trace(name):
    fates = iter(["interrupt", "good", "interrupt", "good"])

    def step(x):
        y = x + 1
        if next(fates) == "interrupt":
            raise KeyboardInterrupt
        return y

    with Pipeline(step, 2, device=name) as pipeline:
        for value in range(2):
            with pytest.raises(KeyboardInterrupt):
                pipeline.submit(torch.tensor(100))
            assert pipeline.submit(torch.tensor(value)) == value
        assert [pipeline.result().item(), pipeline.result().item()] == [1, 2]


class InterruptingGate:
    """A gate that, when the device comes to it, interrupts the host, which waits."""

    def __init__(self, gate):
        self.gate = gate

    def wait(self, timeout_s):
        _thread.interrupt_main()
        return self.gate.wait(timeout_s)

    def set(self):
        self.gate.set()


@on_gapless
def test_a_wait_that_was_interrupted_can_be_taken_up_again():
    import threading

    from tests.random import gate

    event = threading.Event()
    gate.hold(0, 0)  # makes the gate's place in the stream
    gate.release(0)
    torch.accelerator.synchronize()
    gate._gates[1] = InterruptingGate(event)
    with Pipeline(lambda x: x + 1, 2, device="gapless") as pipeline:
        try:
            cell = torch.empty(1, device="gapless")
            pipeline.submit(torch.tensor(1))
            assert pipeline.result().item() == 2
            # Python may see the interrupt anywhere from here on, and at the latest in the wait.
            with pytest.raises(KeyboardInterrupt):
                interrupted(pipeline, cell)
        finally:
            event.set()
        assert pipeline.in_flight in (0, 1)
        if pipeline.in_flight:
            assert pipeline.result().item() == 6
    gate.forget_all()


def interrupted(pipeline, cell):
    torch.ops.gapless_tests.wait_at_gate(cell, 1)
    pipeline.submit(torch.tensor(5))
    pipeline.result()


@on_gapless
@pytest.mark.parametrize("how", ["close", "exit", "break"])
def test_a_failure_that_nobody_will_read_is_warned_of(how):
    def step(x):
        return torch.zeros(3, device="gapless")[x]

    inputs = torch.tensor([[0], [7], [1]])

    def run():
        with Pipeline(step, 3, device="gapless") as pipeline:
            if how == "break":
                for _ in pipeline.map(inputs):
                    break
                return
            results = pipeline.map(inputs)
            next(results)
            if how == "close":
                results.close()

    with pytest.warns(PipelineWarning, match=r"1 had failed on the device. input 1 failed on"):
        run()


@on_gapless
def test_after_an_exception_only_that_is_told():
    def step(x):
        return torch.zeros(3, device="gapless")[x]

    def run():
        with Pipeline(step, 3, device="gapless") as pipeline:
            for x in ([7], [1], [8]):
                pipeline.submit(torch.tensor(x))
            pipeline.result()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StepError, match="input 0 failed on the device"):
            run()
    torch.accelerator.synchronize()  # finds nothing: all was waited for


def test_a_pipeline_that_is_forgotten_is_closed_with_a_warning(watched):
    pipeline = Pipeline(watched, 2, device=watched.device)
    pipeline.submit(torch.ones(200, 200))
    with pytest.warns(
        ResourceWarning, match=r"1 unread step\(s\) was not closed; use it in a with"
    ):
        del pipeline
    assert watched.has_run


def test_an_iterator_outlives_the_name_of_its_pipeline(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = Pipeline(lambda x: x + 1, device=device).map(torch.arange(5))
        assert [result.item() for result in results] == [1, 2, 3, 4, 5]


def test_a_closed_pipeline_says_so(device):
    pipeline = Pipeline(lambda x: x, device=device)
    pipeline.close()
    for call in (lambda: pipeline.submit(1), pipeline.result, lambda: pipeline.map([1])):
        with pytest.raises(RuntimeError, match=r"on a closed pipeline; make a new one"):
            call()
    with pytest.raises(RuntimeError, match="a closed pipeline cannot be entered"), pipeline:
        pass


def test_one_use_at_a_time(device):
    with Pipeline(lambda x: x, device=device) as pipeline:
        results = pipeline.map([1, 2, 3])
        for call in (lambda: pipeline.submit(1), pipeline.result, lambda: pipeline.map([1])):
            with pytest.raises(RuntimeError, match=r"while map\(\) is under way; read its results"):
                call()
        assert list(results) == [1, 2, 3]
        pipeline.submit(4)
        with pytest.raises(RuntimeError, match=r"1 submitted step\(s\) were not read; read them"):
            pipeline.map([1])
        assert pipeline.result() == 4


WRONG = [
    ({"depth": 0}, ValueError, r"the depth must be at least 1, got 0; 2 is double-buffered"),
    ({"depth": -3}, ValueError, r"the depth must be at least 1, got -3"),
    ({"depth": 2.0}, TypeError, r"the depth must be a whole number of steps, got 2\.0"),
    ({"depth": True}, TypeError, r"got True, which is of type bool"),
    ({"depth": "2"}, TypeError, r"got '2', which is of type str"),
    ({"function": 3}, TypeError, r"the step must be a function of one input, got int"),
    ({"prepare": 3}, TypeError, r"prepare must be a function of one input, or None, got int"),
    ({"device": 0}, TypeError, r"the device must be a torch.device or a name, got int"),
    ({"device": "nonsense"}, Exception, r"there is no device 'nonsense', only .*gapless doctor"),
    ({"device": "meta"}, Exception, r"there is no device 'meta', only"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), WRONG)
def test_wrong_arguments_are_named_with_the_limit_and_the_remedy(arguments, kind, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match=text):
            Pipeline(**{"function": abs, **arguments})


def test_inputs_that_cannot_be_iterated_over_are_refused(device):
    with Pipeline(abs, device=device) as pipeline:
        with pytest.raises(TypeError, match=r"must be iterable, got int; pass a single .* submit"):
            pipeline.map(3)
        assert list(pipeline.map([-3])) == [3]
