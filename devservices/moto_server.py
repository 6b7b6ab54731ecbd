"""``python -m devservices.moto_server``: moto's server, with conditional writes that are correct under concurrency.

moto checks whether an object exists and then writes it; another request can write between the two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_WRITES = ("_key_response_put", "_key_response_post")
_lock = threading.Lock()


def _one_at_a_time(handle: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handle)
    def locked(*arguments: Any) -> Any:  # noqa: ANN401 - moto's
        with _lock:
            return handle(*arguments)

    return locked


if __name__ == "__main__":
    for name in _WRITES:
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    main()
