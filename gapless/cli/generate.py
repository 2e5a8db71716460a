"""``gapless generate``: one prompt, one answer, streamed as it comes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gapless.models.load import LoadedModel
    from gapless.pipeline.batch_loop import StepResult


def generate(
    model: Annotated[
        Path, typer.Option(help="A folder with config.json, *.safetensors and a tokenizer.")
    ],
    prompt: Annotated[str, typer.Option(help="What to answer or to continue.")],
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "--tokens", help="Stop after so many tokens."),
    ] = 256,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[
        str, typer.Option(help="auto, cpu, or an accelerator such as gapless.")
    ] = "auto",
    double_buffer: Annotated[
        bool,
        typer.Option(
            "--double-buffer/--sequential",
            help="Submit a step before the last one's token is read, or after.",
        ),
    ] = True,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Use the model's chat template or not; by default, where it has one.",
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Positions for prompt and answer together.")
    ] = None,
) -> None:
    """Generate text with a model and stream it to the terminal."""
    from gapless.cli.status import stderr_console, working
    from gapless.errors import UsageError
    from gapless.pipeline.device_choice import choose_device

    # All that can be refused without the model library, which takes seconds to load.
    for option, value in (("--max-new-tokens", max_new_tokens), ("--context", context)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is {value}; it must be at least 1")
    chosen = choose_device(device)

    from gapless.models.load import load_model
    from gapless.pipeline.batch_loop import DOUBLE_BUFFERED, SEQUENTIAL, BatchLoop
    from gapless.pipeline.context_plan import plan_context
    from gapless.pipeline.decode_step import DecodeStep
    from gapless.pipeline.step_program import prepare

    console = stderr_console()
    with working(console, f"loading {model}"):
        loaded = load_model(model, chosen, dtype)
        tokens = encode(loaded, prompt, chat)
        plan = plan_context(loaded.model.config, [tokens], max_new_tokens, context)
        program = prepare(DecodeStep(loaded.model, 1, plan.context))
    console.print(
        f"{chosen}, {loaded.dtype.name} ({loaded.dtype.why}), {len(tokens)} prompt tokens",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    program.prefill([tokens])
    loop = BatchLoop(program, DOUBLE_BUFFERED if double_buffer else SEQUENTIAL)
    results = loop.run(plan.max_new_tokens, loaded.stop_tokens)
    try:
        count = print_stream(results, loaded.tokenizer, loaded.stop_tokens)
    finally:
        results.close()  # at Ctrl-C too: the steps in flight end before the process does
    if plan.max_new_tokens < max_new_tokens and count == plan.max_new_tokens:
        console.print(
            f"stopped after {count} tokens: the context of {plan.context} positions is full",
            style="dim",
        )


def encode(loaded: LoadedModel, prompt: str, chat: bool | None) -> list[int]:
    """The prompt's token ids, in the model's chat template if ``chat`` or if it has one.

    Raises:
        ModelError: a chat was asked for and the model has no template.
    """
    from gapless.models.errors import ModelError

    tokenizer = loaded.tokenizer
    template = getattr(tokenizer, "chat_template", None)
    if chat is None:
        chat = template is not None
    if not chat:
        return list(tokenizer(prompt)["input_ids"])
    if template is None:
        raise ModelError("the model has no chat template; use --no-chat")
    messages = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def print_stream(results: Any, tokenizer: Any, stop_tokens: tuple[int, ...]) -> int:
    """Print the first row's text as it comes; returns the number of tokens.

    What was printed stays when the stream is interrupted; the line is ended in any case.
    """
    printer = StreamPrinter(tokenizer, stop_tokens)
    try:
        for result in results:
            printer(result)
    finally:
        printer.finish()
    return printer.count


class StreamPrinter:
    """Prints the first row's text to standard output, token by token."""

    def __init__(self, tokenizer: Any, stop_tokens: tuple[int, ...]) -> None:
        from gapless.pipeline.text_stream import TextStream

        self._stream = TextStream(tokenizer)
        self._stops = frozenset(stop_tokens)
        self.count = 0

    def __call__(self, result: StepResult) -> None:
        """Print what this step adds."""
        token = result.tokens[0]
        if token is None:
            return
        self.count += 1
        if token not in self._stops:
            self._write(self._stream.push(token))

    def finish(self) -> None:
        """Print what is left, and end the line."""
        self._write(self._stream.finish() + "\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
