"""One decode step of a language model, with all its state in device buffers.

Each step reads the last token of every row from a device buffer, runs the model, and writes the
next token into the same buffer. Nothing it reads comes from the host and nothing it does waits for
the host, so it can be recorded once as a graph and replayed, and step n+1 can be submitted before
the host has seen the token of step n.

Rows are padded on the right: row r's token at position p always sits in cache slot p, whatever the
other rows are, and every prompt is prefilled alone at its own length. A row of a batch therefore
attends over the same layout as the same prompt alone, and only the matrix products, which see more
rows, may round differently. Left padding would shift each row by another amount and so reorder the
sums of its attention too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gapless.errors import UsageError
from gapless.pipeline.context_plan import require_context
from gapless.pipeline.kv_cache import KVShape, RowKVCache
from gapless.pipeline.sampler import Sampler
from gapless.pipeline.sampling import GREEDY, Sampling

# Of a row's logits, ``[1, vocabulary]``, writes the next token, ``[1]``.
Choose = Callable[[int, torch.Tensor, torch.Tensor], None]


class DecodeStep:
    """A decode step over a transformers causal language model.

    A row is idle until ``prefill`` or ``join`` gives it a prompt, and again after ``leave``. An
    idle row goes through the motions in the first slot of its own cache.

    Args:
        model: a ``transformers`` causal LM in eval mode, on its device, with full attention in
            every layer.
        rows: the batch size; fixed, as every shape is.
        context: positions per row, prompt and answer together.
        samples: whether rows may ask for more than the likeliest token; takes 5 bytes per row and
            entry of the vocabulary on the device.

    Raises:
        UsageError: the context exceeds the model's, or the model's attention is not supported.
        torch.OutOfMemoryError: the KV cache does not fit on the device.
    """

    def __init__(self, model: Any, rows: int, context: int, samples: bool = False) -> None:
        config = model.config
        if rows < 1 or context < 1:
            raise UsageError(f"rows ({rows}) and context ({context}) must be at least 1")
        require_context(config, context)
        _require_full_attention(config)
        self.model = model
        self.rows = rows
        self.context = context
        self.device = torch.device(model.device)
        self.room = 0  # steps that fit into the context after the last prefill
        self._cache_argument = _cache_argument(model)
        dtype = model.dtype

        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        # Both views of each buffer are made once, so that a step dispatches no views of its own.
        self._token_column = buffer(rows, 1)
        self.tokens = self._token_column.view(rows)
        self._position_column = buffer(rows, 1)
        self.positions = self._position_column.view(rows)
        self._active = buffer(rows)  # 1 where the row has a sequence, which advances
        self._row_starts = torch.arange(0, rows * context, context, device=self.device)
        self._slots = buffer(rows)
        # First of the two that grow with the context, as it says what to do where it does not fit.
        self.cache = RowKVCache(KVShape.of(config, rows, context), self._slots, dtype, self.device)
        self._mask = buffer(rows, 1, 1, context, dtype=dtype)
        self._mask_line = self._mask.view(-1)
        self.sampler = Sampler(rows, config.vocab_size, self.device) if samples else None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run the prompts, one eager pass each, and sample every row's first token on the device.

        Afterwards ``tokens`` holds the first answer token of each row. Any earlier state is gone.

        Args:
            prompts: one list of token ids per row, each of 1 to ``context`` tokens.

        Raises:
            UsageError: wrong number of prompts, an empty prompt, or one longer than the context;
                raised before anything runs.
        """
        self._require_prompts(prompts)
        with torch.inference_mode():
            self._mask.fill_(float("-inf"))
            for row, prompt in enumerate(prompts):
                self._prefill_row(row, list(prompt), _argmax)
            lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64)
            self.positions.copy_(lengths)
            self._active.fill_(1)
        self.room = self.context - max(len(prompt) for prompt in prompts)

    def join(
        self,
        row: int,
        prompt: Sequence[int],
        sampling: Sampling = GREEDY,
        choose: Choose | None = None,
    ) -> None:
        """Begin a sequence in a row, behind what was submitted; the host does not wait.

        Runs the prompt and samples the answer's first token into ``tokens``; ``choose``, where
        given, does that instead of the sampler.

        Raises:
            UsageError: the prompt is empty or longer than the context, or ``sampling`` asks for
                more than the likeliest token and the step was made without ``samples``.
        """
        self._require_prompt(row, prompt)
        if choose is None and not sampling.is_argmax:
            if self.sampler is None:
                raise UsageError("the step was made for greedy decoding; make it with samples=True")
            choose = self.sampler.sample_row
        with torch.inference_mode():
            self._mask[row].fill_(float("-inf"))
            if self.sampler is not None:
                self.sampler.join(row, prompt, sampling)
            self._prefill_row(row, list(prompt), choose or _argmax)
            self.positions[row].fill_(len(prompt))
            self._active[row].fill_(1)

    def leave(self, row: int) -> None:
        """End the row's sequence, behind what was submitted; the host does not wait."""
        with torch.inference_mode():
            self.positions[row].zero_()
            self._active[row].zero_()

    def submit(self, samples: bool = False) -> None:
        """Submit one step; the host does not wait for it.

        Reads ``tokens`` and writes the next ones there. The caller keeps the number of steps since
        the prefill within ``room``: past it a row would write into the next row's cache, and only
        the device knows the positions.

        Args:
            samples: choose as the rows ask for, instead of the likeliest token for all of them. The
                tokens are the same where all rows ask for that; sorting the vocabulary takes
                longer.
        """
        with torch.inference_mode():
            logits = self.submit_model()
            if samples:
                assert self.sampler is not None, "made without samples"
                self.sampler.sample(logits[:, -1], self.tokens)
            else:
                torch.argmax(logits, dim=-1, out=self._token_column)

    def submit_model(self) -> torch.Tensor:
        """Submit a step without the choice of tokens: who calls this writes them to ``tokens``.

        Returns:
            logits, ``[rows, 1, vocabulary]`` on the device.
        """
        with torch.inference_mode():
            torch.add(self._row_starts, self.positions, out=self._slots)
            self._mask_line.index_fill_(0, self._slots, 0.0)
            output = self.model(
                input_ids=self._token_column,
                position_ids=self._position_column,
                attention_mask=self._mask,
                use_cache=True,
                **{self._cache_argument: self.cache},
            )
            self.positions.add_(self._active)
            logits: torch.Tensor = output.logits
            return logits

    def reset(self) -> None:
        """Put positions and tokens back to a state in which a step is harmless (for warm-up)."""
        with torch.inference_mode():
            self.positions.zero_()
            self._active.zero_()
            self.tokens.zero_()

    def _prefill_row(self, row: int, prompt: list[int], choose: Choose) -> None:
        input_ids = torch.tensor([prompt], dtype=torch.int64).to(self.device)
        position_ids = torch.arange(len(prompt), device=self.device).unsqueeze(0)
        self.cache.begin_prefill(row)
        try:
            # No mask: the row is alone and unpadded, so plain causal attention is right.
            output = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self.cache},
            )
        finally:
            self.cache.end_prefill()
        choose(row, output.logits[0], self._token_column[row])
        self._mask[row, :, :, : len(prompt)].zero_()

    def _require_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        if len(prompts) != self.rows:
            raise UsageError(f"{len(prompts)} prompts for a step of {self.rows} rows")
        for row, prompt in enumerate(prompts):
            self._require_prompt(row, prompt)

    def _require_prompt(self, row: int, prompt: Sequence[int]) -> None:
        if not prompt:
            raise UsageError(f"prompt {row} has no tokens; give it at least one")
        if len(prompt) > self.context:
            raise UsageError(
                f"prompt {row} has {len(prompt)} tokens and the context is {self.context}; "
                "shorten the prompt or raise the context (--context)"
            )


def _argmax(row: int, logits: torch.Tensor, token: torch.Tensor) -> None:
    del row
    torch.argmax(logits, dim=-1, out=token)


def _require_full_attention(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) and not hasattr(config, "layer_types"):
        kinds = {"sliding_attention"}
    if kinds != {"full_attention"}:
        raise UsageError(
            f"{config.model_type} has layers of type {', '.join(sorted(kinds))}; "
            "only full attention is supported: use a model that has it in every layer"
        )


def _cache_argument(model: Any) -> str:
    # transformers renamed the argument; both names are in the range of versions supported.
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
