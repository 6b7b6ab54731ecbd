"""Bytes in chunks."""

from hypothesis import given
from hypothesis import strategies as st

from common.storage.chunks import ByteChunks


@given(st.lists(st.binary(max_size=5), max_size=6), st.integers(0, 30), st.integers(0, 30))
def test_slice_equals_that_of_the_joined_bytes(pieces: list[bytes], start: int, stop: int) -> None:
    data, chunks = b"".join(pieces), ByteChunks(pieces)
    assert (len(chunks), chunks.size_bytes, chunks.to_bytes(), b"".join(chunks.parts)) == (len(data),) * 2 + (data,) * 2
    assert chunks[start:stop] == data[start:stop]
    assert chunks[start:] == data[start:]
