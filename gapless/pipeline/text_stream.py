"""Text as its tokens arrive: only whole characters, and no word twice."""

from __future__ import annotations

from typing import Any

_INCOMPLETE = "\ufffd"  # what a tokenizer gives for the first bytes of a longer character


class TextStream:
    """Turns one row's tokens into pieces of text that can be printed as they come.

    A token may hold part of a character, and a tokenizer may put a space before a token or not
    depending on the one before it. So the tokens since the last whole piece are decoded together
    with the piece before them, and only what that adds is handed out.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._known_from = 0  # the piece already handed out begins here
        self._known_to = 0  # and ends here

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is not whole."""
        self._tokens.append(token)
        text, known = self._decoded()
        if len(text) <= len(known) or text.endswith(_INCOMPLETE):
            return ""
        self._known_from, self._known_to = self._known_to, len(self._tokens)
        return text[len(known) :]

    def finish(self) -> str:
        """What is left when no more tokens come, whole or not."""
        text, known = self._decoded()
        self._known_from = self._known_to = len(self._tokens)
        return text[len(known) :]

    def _decoded(self) -> tuple[str, str]:
        recent = self._tokens[self._known_from :]
        known = recent[: self._known_to - self._known_from]
        decode = self._tokenizer.decode
        return (
            decode(recent, skip_special_tokens=True),
            decode(known, skip_special_tokens=True),
        )
