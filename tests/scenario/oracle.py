# SPDX-License-Identifier: Apache-2.0
"""The byte oracle: object bytes that identify themselves.

Every object is a row of 32-byte cells, four little-endian 64-bit words each:

    word 0   hash of the object's name ("bucket/key")
    word 1   version number
    word 2   cell number, that is offset / 32
    word 3   a mix of the other three

So any slice shows its object, version and offset, and can be made or judged without keeping the
object anywhere. Both directions run at several hundred MB/s or more.

"""

import functools
import hashlib

import numpy as np

CELL = 32
_PIECE_CELLS = 1 << 15  # 1 MiB: fits the second-level cache
_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_S1 = np.uint64(29)


@functools.lru_cache(maxsize=65536)
def name_hash(name):
    return int.from_bytes(
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little"
    )


def _mix(key_hash, version, cells):
    seed = np.uint64((key_hash * 0xD6E8FEB86659FD93 + version * 0xA0761D6478BD642F) % (1 << 64))
    with np.errstate(over="ignore"):
        word = cells * _K1
        word ^= seed
        word ^= word >> _S1
        word *= _K2
    return word


def _cells(name, version, first, count):
    """Makes COUNT whole cells from cell number FIRST as an array of shape (count, 4)."""
    ret = np.empty((count, 4), dtype="<u8")
    key_hash = name_hash(name)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    ret[:, 0] = key_hash
    ret[:, 1] = version
    ret[:, 2] = numbers
    ret[:, 3] = _mix(key_hash, version, numbers)
    return ret


def oracle_pieces(name, version, start, length):
    """Yields the bytes [start, start+length) of one version in pieces of about 1 MiB."""
    end = start + length
    while start < end:
        first = start // CELL
        stop = min(end, (first + _PIECE_CELLS) * CELL)
        last = (stop + CELL - 1) // CELL
        piece = _cells(name, version, first, last - first).reshape(-1).view(np.uint8)
        yield memoryview(piece)[start - first * CELL : stop - first * CELL]
        start = stop


def oracle_bytes(name, version, start, length):
    """Returns the bytes [start, start+length) of one version."""
    return b"".join(oracle_pieces(name, version, start, length))


def oracle_judge(name, data, start, version=None):
    """Checks that DATA is the bytes from START of one version of NAME, and returns that version.

    With VERSION it must be that one. Raises AssertionError that describes the first wrong byte.
    """
    view = memoryview(data).cast("B") if not isinstance(data, memoryview) else data
    if len(view) == 0:
        return version
    if version is None:
        version = _read_version(name, view, start)
    at = 0
    while at < len(view):
        offset = start + at
        first = offset // CELL
        skew = offset - first * CELL
        take = min(len(view) - at, _PIECE_CELLS * CELL - skew)
        got = np.frombuffer(view[at : at + take], dtype=np.uint8)
        if skew == 0 and take % CELL == 0:
            _judge_whole(name, version, first, got, offset)
        else:
            last = (offset + take + CELL - 1) // CELL
            want = _cells(name, version, first, last - first).reshape(-1).view(np.uint8)
            want = want[skew : skew + take]
            if not np.array_equal(got, want):
                _complain(name, version, offset, got, want)
        at += take
    return version


def _judge_whole(name, version, first, got, offset):
    cells = got.view("<u8").reshape(-1, 4)
    count = len(cells)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    key_hash = name_hash(name)
    if (
        (cells[:, 0] == np.uint64(key_hash)).all()
        and (cells[:, 1] == np.uint64(version)).all()
        and (cells[:, 2] == numbers).all()
        and (cells[:, 3] == _mix(key_hash, version, numbers)).all()
    ):
        return
    _complain(
        name, version, offset, got, _cells(name, version, first, count).reshape(-1).view(np.uint8)
    )


def _read_version(name, view, start):
    """Finds the version that the first few bytes claim. If there are too few, it tries small
    numbers in turn."""
    skip = -start % CELL
    if len(view) >= skip + CELL:
        return int(np.frombuffer(view[skip : skip + CELL], dtype="<u8")[1])
    for version in range(1, 4096):
        if oracle_bytes(name, version, start, len(view)) == bytes(view):
            return version
    raise AssertionError(f"{name}: {len(view)} bytes at {start} belong to no version 1..4095")


def _complain(name, version, offset, got, want):
    wrong = np.nonzero(got != want)[0]
    at = offset + int(wrong[0])
    cell = (at // CELL) * CELL - offset
    story = "a torn cell"
    if 0 <= cell <= len(got) - CELL:
        words = got[cell : cell + CELL].tobytes()
        word = [int.from_bytes(words[i : i + 8], "little") for i in (0, 8, 16, 24)]
        same_key = word[0] == name_hash(name)
        story = (
            f"the cell there says key {'right' if same_key else 'OTHER'}, version {word[1]}, "
            f"offset {word[2] * CELL}"
        )
    raise AssertionError(
        f"WRONG BYTE: {name} version {version}: {len(wrong)} wrong bytes, first at "
        f"offset {at}; {story}"
    )
