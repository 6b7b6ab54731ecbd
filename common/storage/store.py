"""The object store over fsspec, and the proof that it can keep a chain.

Rules:

1. `FsspecStore.create` is atomic and exclusive. On a local disk fsspec's exclusive create is not atomic (a torn marker
   would be an empty one, which means something), so there a temporary file is written, synced and linked. In memory it
   checks first and then writes, and a listing fails when the objects change meanwhile: one thread at a time does these.
2. An exclusive create whose acknowledgement was lost is retried by the store's client into its own refusal. So a
   refusal counts only if the object holds other bytes than ours: markers carry their writer's unique file names.
3. Some stores accept conditional headers and ignore them. `prove_exclusive_create` detects that before any record is at
   stake.
4. `FsspecStore.upload` never replaces a file: its names are unique, so an existing object is from an earlier attempt of
   the same upload. So a policy may deny a writer all unconditional writes, which protects the files of others.
5. Stores of one bucket share a client: one of S3 takes 10 MB and 0.1 CPU-seconds, and there may be a thousand tables.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import os
import re
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast
from weakref import WeakValueDictionary

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from common.errors import ConfigError, StoreError, StoreRefusedError, UnsafeStoreError
from common.hints import did_you_mean
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore, StoredObject
from common.storage.bounded import most_bytes
from common.storage.listing import S3Listing, Upload, abort, is_s3, scan, scan_folders

if TYPE_CHECKING:
    from common.storage.chunks import ByteChunks

T = TypeVar("T")

PROBES = "probe"
WRITE_PROBE = "write-probe-"
"""The prefix of `prove_writable`'s object names."""
PART_BYTES = 5 * 2**20
"""The size of a part of an upload."""
_PARTS_AT_ONCE = 2
_RACERS = 4
_READ_AHEAD = 8
_IN_MEMORY = Lock()  # fsspec has one memory file system for the whole process
_CONNECTIONS = 256
"""Of an S3 client at once; 10 by default, but it serves all tables of a bucket, of which some may hang."""
_CLIENTS: WeakValueDictionary[tuple[int, str, str, str], AbstractFileSystem] = WeakValueDictionary()
"""By process (a fork makes its own), scheme, bucket and options."""
_NOT_ALLOWED, _NO_RANGE = (401, 403), 416
# Errors of botocore and of Azure's client, which raise them directly. Their modules may not be installed.
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "ClientAuthenticationError"})
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '?(\w+)")
_CLIENT_KWARGS = ("region_name", "api_version", "use_ssl", "verify", "endpoint_url", "aws_session_token", "config")
_CREDENTIAL_OPTIONS = ("key", "secret", "token")
_CREDENTIALS = "check the credentials in stage.storage_options, or in the environment, and their permissions"


class FsspecStore:
    """A `common.ports.ObjectStore` below one fsspec URL."""

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        """Raises ConfigError when fsspec does not support the store, or an option is not one of its own.

        Raises StoreError when the store's client cannot start.
        """
        self.url = url.rstrip("/")
        try:
            self._fs, self._root = _client(normalized(url), client_options(url, storage_options or {}, os.environ))
        except (ValueError, ImportError, TypeError) as error:
            msg = f"no store can be opened for {url}: {error}"
            raise ConfigError(msg, "see stage.url and stage.storage_options in docs/configuration.md") from error
        except OSError as error:  # some clients connect at once, or load a library of the system
            msg = f"no store can be opened for {url}: {(str(error).splitlines() or [type(error).__name__])[0]}"
            raise StoreError(msg, "check that the store responds, and that its client is configured") from error
        self._local = isinstance(self._fs, LocalFileSystem)
        self._in_turn = _IN_MEMORY if isinstance(self._fs, MemoryFileSystem) else nullcontext()
        # s3fs slices its input into parts; other clients need bytes, and split them themselves.
        self._takes_parts = "s3" in self._fs.protocol

    def list(self, prefix: str) -> Iterator[StoredObject]:
        full_prefix = self._full(prefix)
        if self._local and not os.path.lexists(full_prefix):
            return
        skip = len(self._root) + 1
        with self._errors("list", prefix):
            for full, info in self._found(full_prefix):
                # The temporary files of rule 1 are internal.
                if info["type"] == "file" and not (self._local and full.endswith(_TEMPORARY)):
                    yield StoredObject(full[skip:], int(cast("int", info["size"])), _modified_ms(info))

    def _found(self, full_prefix: str) -> Iterable[tuple[str, Mapping[str, object]]]:
        if "s3" in self._fs.protocol:
            return S3Listing(self._fs, full_prefix.rstrip("/")).items()
        if self._local:  # fsspec's `find` leaves out subfolders that cannot be read: as if there were no chain
            return sorted(scan_folders(self._fs, full_prefix), key=itemgetter(0))
        with self._in_turn:
            details: Mapping[str, Mapping[str, object]] = self._fs.find(full_prefix, withdirs=False, detail=True)
        return details.items()

    def scan(self, prefix: str) -> Iterator[StoredObject]:
        """Like `list`, a page or a folder at a time: for up to millions of objects."""
        skip = len(self._root) + 1
        with self._errors("list", prefix):
            for full, info in scan(self._fs, self._full(prefix.rstrip("/"))):
                yield StoredObject(full[skip:], int(cast("int", info["size"])), _modified_ms(info))

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """The unfinished multipart uploads below a folder; none where the store does not support them."""
        if not is_s3(self._fs):
            return
        skip = len(self._root) + 1
        with self._errors("list the uploads below", prefix):
            for full, upload_id, started in S3Listing(self._fs, self._full(prefix.rstrip("/"))).uploads():
                yield Upload(full[skip:], upload_id, int(started.timestamp() * 1000))

    def abort(self, upload: Upload) -> None:
        """Abort an upload without creating its object."""
        with self._errors("abort the upload of", upload.path):
            abort(self._fs, self._full(upload.path), upload.upload_id)

    def read(self, path: str) -> bytes | None:
        """The object's bytes, or None if it does not exist; at most the bytes allowed by common/storage/bounded.py."""
        with self._errors("read", path):
            try:
                return self._cat(path)
            except FileNotFoundError:
                return None

    def read_each(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="read") as pool:
            ahead: deque[Future[bytes | None]] = deque()
            for path in paths:
                ahead.append(pool.submit(self.read, path))
                if len(ahead) == _READ_AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _cat(self, path: str) -> bytes:
        full, most = self._full(path), most_bytes(path)
        if most is None:
            return cast("bytes", self._fs.cat_file(full))
        try:
            return cast("bytes", self._fs.cat_file(full, start=0, end=most))
        except FileNotFoundError:
            raise
        except Exception as error:
            # Stores refuse a range of an empty object, such as a marker that was made by hand.
            if not (isinstance(error, OSError) or _NO_RANGE in _statuses(error)) or int(self._fs.info(full)["size"]):
                raise
            return b""

    def open(self, path: str) -> BinaryIO:
        with self._errors("open", path):
            return cast("BinaryIO", self._fs.open(self._full(path), "rb"))

    def stat(self, path: str) -> StoredObject | None:
        with self._errors("look up", path):
            try:
                info = self._fs.info(self._full(path))
            except FileNotFoundError:
                return None
        if info["type"] != "file":
            return None
        return StoredObject(path, int(info["size"]), _modified_ms(info))

    def create(self, path: str, data: bytes) -> CreateOutcome:
        """Write the object only if the path is free (rules 1 and 2)."""
        with self._errors("create", path):
            try:
                if self._local:
                    _link_new(self._full(path), data)
                else:
                    with self._in_turn:
                        self._fs.pipe_file(self._full(path), data, mode="create")
                return Created()
            except OSError as error:
                if not _is_refusal(error):
                    raise
        with self._errors("read", path):
            return Created() if self._holds(path, data) else AlreadyExists()

    def write(self, path: str, data: bytes) -> None:
        with self._errors("write", path):
            if self._local:
                _replace(self._full(path), data)
            else:
                with self._in_turn:
                    self._fs.pipe_file(self._full(path), data)

    def upload(self, path: str, data: ByteChunks) -> None:
        """Write a new file, without a complete copy where the store accepts parts (rule 4)."""
        in_parts = self._takes_parts and data.size_bytes >= 2 * PART_BYTES
        parts = {"chunksize": PART_BYTES, "max_concurrency": _PARTS_AT_ONCE} if in_parts else {}
        with self._errors("write", path):
            try:
                if self._local:
                    _link_new(self._full(path), *data.parts)
                else:
                    with self._in_turn:
                        content = data if in_parts else data.to_bytes()
                        self._fs.pipe_file(self._full(path), content, mode="create", **parts)
            except OSError as error:
                if not _is_refusal(error):
                    raise

    def copy(self, path: str, to: str) -> None:
        """Make a second object of the same bytes: the store does it, or the disk."""
        with self._errors("copy", path):
            if self._local:
                _copy_new(self._full(path), self._full(to))
            else:
                with self._in_turn:
                    self._fs.cp_file(self._full(path), self._full(to))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._errors("delete", path):
                try:
                    with self._in_turn:
                        self._fs.rm_file(self._full(path))
                except FileNotFoundError:
                    continue

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return cast("bytes", self._fs.cat_file(self._full(path))) == data
        except FileNotFoundError:
            return False

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _errors(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise StoreRefusedError(f"may not {verb} {self.url}/{path}: {error}", _CREDENTIALS) from error
        except Exception as error:
            # fsspec's back ends raise any error of their SDK; all of them are the store's. S3's client is made with the
            # first request, and only then knows its options.
            if (wrong := _wrong_option(error, self._fs)) is not None:
                raise wrong from error
            msg = f"cannot {verb} {self.url}/{path}: {type(error).__name__}: {error}"
            kind = StoreRefusedError if _is_permanent(error) else StoreError
            raise kind(msg, _remedy(error)) from error


def _client(url: str, options: Mapping[str, object]) -> tuple[AbstractFileSystem, str]:
    """The client of a URL's bucket (rule 5), and the URL's path in it."""
    scheme, _, path = url.partition("://")
    shared = (os.getpid(), scheme, path.partition("/")[0], repr(options))
    client = _CLIENTS.get(shared)
    if client is not None:
        return client, str(client._strip_protocol(url)).rstrip("/")  # noqa: SLF001 - what url_to_fs does with it
    client, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    _CLIENTS[shared] = client
    return client, str(root).rstrip("/")


def stores_of(storage_options: Mapping[str, object]) -> Callable[[str], FsspecStore]:
    """Opens the store below a URL, once for each."""
    return cache(lambda url: FsspecStore(url, storage_options))


def prove_exclusive_create(store: ObjectStore) -> None:
    """Check that the store refuses a second exclusive create, in turn and in a race; raises UnsafeStoreError if not."""
    _with_one_retry(lambda: _prove_exclusive_create(store))


def _prove_exclusive_create(store: ObjectStore) -> None:
    path = f"{PROBES}/{uuid.uuid4().hex}"
    race = f"{path}-race"
    try:
        first = store.create(path, b"first")
        second = store.create(path, b"second")
        with ThreadPoolExecutor(_RACERS) as pool:
            racers = list(pool.map(lambda name: store.create(race, name), [b"%d" % n for n in range(_RACERS)]))
        won = sum(isinstance(outcome, Created) for outcome in racers)
    except StoreError:
        with suppress(StoreError):  # report the first failure
            store.delete([path, race])
        raise
    store.delete([path, race])
    if not isinstance(first, Created) or not isinstance(second, AlreadyExists) or won != 1:
        msg = f"the store at {store.url} lets two writers create the same object: it ignores conditional writes"
        raise UnsafeStoreError(
            msg, "use a store that honors If-None-Match on PUT (AWS S3, GCS, Azure, MinIO, versitygw, a local disk)"
        )


def store_time_ms(store: ObjectStore) -> int:
    """The store's own time in ms, from an object that was just written. Raises StoreError."""
    path = f"{PROBES}/{uuid.uuid4().hex}"
    try:
        store.write(path, b"")
        item = store.stat(path)
    finally:
        store.delete([path])
    if item is None:
        msg = f"an object that was just written to {store.url} is missing"
        raise StoreError(msg, "check the store; nothing is removed by age while its clock is unknown")
    return item.modified_ms


def prove_writable(store: ObjectStore) -> None:
    """Check that a data file can be created below a table's URL; raises StoreError where it cannot.

    A writer without permission to delete leaves an empty object, which the table's VACUUM removes.
    """
    path = _with_one_retry(lambda: _probed(store))
    with suppress(StoreRefusedError):
        store.delete([path])


def _probed(store: ObjectStore) -> str:
    path = f"{WRITE_PROBE}{uuid.uuid4().hex}"
    store.create(path, b"")
    return path


def _with_one_retry(probe: Callable[[], T]) -> T:
    """The result of a probe, tried twice. Raises StoreError.

    A gateway that keeps objects as files may fail once, while another process deletes the folder's last object.
    """
    try:
        return probe()
    except StoreError as error:
        if isinstance(error, StoreRefusedError | UnsafeStoreError):
            raise
    return probe()


def _remedy(error: Exception) -> str:
    """The remedy for an error that is not a refusal. To another region, S3 responds with 400, without a text."""
    if type(error).__name__ in _NO_CREDENTIALS:
        return _CREDENTIALS
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "free some space; the write is tried again, and nothing is lost meanwhile"
    if isinstance(error, FileNotFoundError) or _names_no_bucket(error):
        return "create the bucket or folder, or fix its name in the URL"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "use a shorter app_id, or shorter folder names in the URL"
    region = ", and the region" if isinstance(error, OSError) and error.errno == errno.EINVAL else ""
    return f"check that the store is available and that stage.storage_options lead to it{region}"


def _wrong_option(error: Exception, client: AbstractFileSystem) -> StoreRefusedError | None:
    unknown = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
    given = client.storage_options
    if unknown is not None:
        msg = f"stage.storage_options has {unknown[1]!r}, which the client of this store does not take"
        return StoreRefusedError(msg, _instead_of(unknown[1], client))
    no_text = [name for name in _CREDENTIAL_OPTIONS if not isinstance(given.get(name), str | None)]
    if no_text and isinstance(error, TypeError):
        return StoreRefusedError(f"stage.storage_options.{no_text[0]} is not text", "put it in quotes")
    if isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        msg = f"stage.storage_options: {error}"
        return StoreRefusedError(msg, "write endpoint_url as a URL, for example http://localhost:9000")
    return None


def _instead_of(name: str, client: AbstractFileSystem) -> str:
    """The remedy for an option that a client does not take, at the top or in client_kwargs."""
    at_the_top = inspect.signature(type(client).__init__).parameters.keys() - {"self", "kwargs"}
    known = {*at_the_top, *_CLIENT_KWARGS}
    nearest = difflib.get_close_matches(name, known, n=1)
    if name in client.storage_options and nearest and nearest[0] not in at_the_top:
        return f"write it as client_kwargs: {{{nearest[0]}: …}}"
    return did_you_mean(name, known, "remove it from stage.storage_options")


def _is_permanent(error: Exception) -> bool:
    """Whether an error is permanent: no such bucket, no credentials or refused ones, or a name that no disk takes."""
    if isinstance(error, FileNotFoundError | NotADirectoryError) or type(error).__name__ in _NO_CREDENTIALS:
        return True
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return True
    if _names_no_bucket(error):
        return True
    return any(status in _NOT_ALLOWED for status in _statuses(error))


def _names_no_bucket(error: Exception) -> bool:
    """Whether S3, or its client, refuses a bucket's name as one that no bucket can have."""
    response = getattr(error.__cause__, "response", None)
    refused = isinstance(response, dict) and response.get("Error", {}).get("Code") == "InvalidBucketName"
    return refused or "Invalid bucket name" in str(error)


def _statuses(error: Exception) -> tuple[object, object]:
    """The HTTP statuses in an error of Google's or Azure's client, which use different attribute names."""
    return getattr(error, "code", None), getattr(error, "status_code", None)


def _is_refusal(error: OSError) -> bool:
    """Whether an exclusive create failed because the object exists."""
    if isinstance(error, FileExistsError):
        return True
    # s3fs recognizes the refusal only of servers that name the failed condition; MinIO does not.
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "PreconditionFailed"


def client_options(url: str, storage_options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The options for fsspec; S3's have `_CONNECTIONS` and AWS_REGION, which Java's client reads by itself."""
    region, options = environ.get("AWS_REGION"), dict(storage_options)
    if not normalized(url).startswith("s3://"):
        return options
    client, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
    if isinstance(config, dict):
        options["config_kwargs"] = {"max_pool_connections": _CONNECTIONS, **config}
    is_given = any(isinstance(value, dict) and "region_name" in value for value in (client, config))
    if region and isinstance(client, dict) and not is_given:
        options["client_kwargs"] = {**client, "region_name": region}
    return options


def normalized(url: str) -> str:
    """The URL as fsspec spells it: Spark's ``s3a`` is fsspec's ``s3``."""
    for alias in ("s3a://", "s3n://"):
        if url.startswith(alias):
            return "s3://" + url.removeprefix(alias)
    return url


_TEMPORARY = ".kde-tmp"


def _link_new(full: str, *data: bytes) -> None:
    with _temporary(full, *data) as temporary:
        os.link(temporary, full)
    _sync_folder(full)


def _replace(full: str, *data: bytes) -> None:
    with _temporary(full, *data) as temporary:
        os.replace(temporary, full)
    _sync_folder(full)


def _copy_new(full: str, to: str) -> None:
    with _temporary(to) as temporary:
        shutil.copyfile(full, temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, to)
    _sync_folder(to)


@contextmanager
def _temporary(full: str, *data: bytes) -> Iterator[str]:
    """A temporary file with these bytes, next to its target. Always deleted, or a full disk would collect them."""
    os.makedirs(os.path.dirname(full), exist_ok=True)
    # The leading dot hides a file that a crash left behind from Spark and other readers of the folder.
    temporary = os.path.join(os.path.dirname(full), f".{uuid.uuid4().hex}{_TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(FileNotFoundError):  # it was moved to its target
            os.unlink(temporary)


def _sync_folder(full: str) -> None:
    handle = os.open(os.path.dirname(full), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _modified_ms(info: Mapping[str, object]) -> int:
    for key in ("LastModified", "mtime", "created", "last_modified", "updated"):
        value = info.get(key)
        if isinstance(value, datetime):
            return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
        if isinstance(value, (int, float)):
            return int(value * 1000)
    return 0
