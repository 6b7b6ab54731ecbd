"""A store that calls a test's functions before and after its requests."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from common.ports import CreateOutcome, StoredObject
from common.storage.store import FsspecStore

Trap = Callable[[str, str], object]
"""Called with a request's name and path; an exception from it fails the request."""


class TrappedStore(FsspecStore):
    """Calls ``before`` and ``after`` each request, and counts requests by name."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
        *,
        before: Trap = lambda *_: None,
        after: Trap = lambda *_: None,
    ) -> None:
        super().__init__(url, storage_options)
        self.before, self.after = before, after
        self.counts: Counter[str] = Counter()

    def _begin(self, request: str, path: str) -> None:
        self.counts[request] += 1
        self.before(request, path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._begin("list", prefix)
        return super().list(prefix)

    def read(self, path: str) -> bytes | None:
        self._begin("read", path)
        data = super().read(path)
        self.after("read", path)
        return data

    def create(self, path: str, data: bytes) -> CreateOutcome:
        self._begin("create", path)
        outcome = super().create(path, data)
        self.after("create", path)
        return outcome

    def write(self, path: str, data: bytes) -> None:
        self._begin("write", path)
        super().write(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        paths = [*paths]
        self._begin("delete", " ".join(paths))
        super().delete(paths)
        self.after("delete", " ".join(paths))


def acting(request: str, act: Callable[[], object], *, below: str = "", times: int = 1) -> Trap:
    """Acts at the first such requests with paths that start with ``below``."""
    left = times

    def trap(name: str, path: str) -> None:
        nonlocal left
        if name == request and path.startswith(below) and left:
            left -= 1
            act()

    return trap


def failing(request: str, error: Exception, *, below: str = "", times: int = 1_000_000) -> Trap:
    def fail() -> None:
        raise error

    return acting(request, fail, below=below, times=times)
