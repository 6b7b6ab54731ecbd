"""Bytes in chunks."""

from hypothesis import given
from hypothesis import strategies as st

from common.storage.chunks import ByteChunks


@given(st.lists(st.binary(max_size=5), max_size=6), st.integers(0, 30), st.integers(0, 30))
def test_slice_equals_that_of_the_joined_bytes(pieces: list[bytes], start: int, stop: int) -> None:
    whole, found = b"".join(pieces), ByteChunks(pieces)
    assert (len(found), found.size_bytes, found.to_bytes(), b"".join(found.parts)) == (len(whole),) * 2 + (whole,) * 2
    assert found[start:stop] == whole[start:stop]
    assert found[start:] == whole[start:]
