from hypothesis import given
from hypothesis import strategies as st

from gapless.pipeline.text_stream import TextStream


class Bytes:
    """A tokenizer whose tokens are bytes, so that most characters take several."""

    def decode(self, tokens, skip_special_tokens):
        assert skip_special_tokens
        return bytes(tokens).decode("utf-8", errors="replace")


class Spaced:
    """A tokenizer that puts spaces between words and none before the first."""

    def decode(self, tokens, skip_special_tokens):
        return " ".join(f"w{token}" for token in tokens)


@given(st.text())
def test_the_pieces_make_the_text(text):
    stream = TextStream(Bytes())
    pieces = [stream.push(token) for token in text.encode()]
    assert "".join(pieces) + stream.finish() == text


def test_a_character_appears_when_it_is_whole():
    stream = TextStream(Bytes())
    pieces = [stream.push(token) for token in "a€b".encode()]
    assert pieces == ["a", "", "", "€", "b"]


def test_half_a_character_at_the_end_is_shown_as_such():
    stream = TextStream(Bytes())
    assert stream.push("€".encode()[0]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_spaces_between_tokens_are_kept():
    stream = TextStream(Spaced())
    assert [stream.push(token) for token in (1, 2, 3)] == ["w1", " w2", " w3"]
