"""A server that finishes its requests takes no new ones, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

# By its import path; vLLM takes a middleware as one.
MIDDLEWARE = f"{__name__}.RefuseWhileDraining"
_RETRY_S = b"5"
# Reading is harmless, and whoever watches the server wants to go on watching.
_STILL_ANSWERED = ("GET", "HEAD", "OPTIONS")
_HEALTH = "/health"  # whoever asks for it sends requests here while it is well
_BODY = (
    b'{"error": {"message": "the server is stopping: it finishes the requests that it has and '
    b'takes no new ones", "type": "ServiceUnavailableError", "param": null, "code": 503}}'
)
_is_draining = False


def start_draining() -> None:
    """From here on new requests are refused."""
    global _is_draining
    _is_draining = True


class RefuseWhileDraining:
    """Answers 503 in the place of the engine, which would end each new request as aborted.

    Plain ASGI: what a request streams passes through untouched.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        is_request = scope["type"] == "http" and (
            scope["method"] not in _STILL_ANSWERED or scope["path"] == _HEALTH
        )
        if not (_is_draining and is_request):
            await self._app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(_BODY)).encode()),
            (b"retry-after", _RETRY_S),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": _BODY})
