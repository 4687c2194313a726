"""Decompression of the bodies of a batch, which producing clients compressed."""

import pyarrow as pa

from firetrail.errors import FormatError
from firetrail.format.compression import inflated
from firetrail.format.layout import COMPRESSED

BATCH_INFLATED_MAX = (1 << 31) - 1
"""Maximum size of an Arrow array of bodies in bytes."""


def inflate(bodies: pa.Array, flags: memoryview, places: memoryview, *, lenient: bool) -> pa.Array:
    """Decompress the compressed ones of ``bodies``.

    ``flags`` and ``places`` are the sys flags and physical offsets of the same rows. A body that
    cannot be decompressed raises FormatError with the physical offset, or is null if ``lenient``.
    """
    compressed = [row for row in range(len(bodies)) if flags[row] & COMPRESSED]
    if not compressed:
        return bodies
    values: list[bytes | None] = bodies.to_pylist()
    for row in compressed:
        raw = values[row]
        assert raw is not None
        try:
            values[row] = inflated(raw, flags[row])
        except FormatError as error:
            if not lenient:
                remedy = "read with decompress=false, or with mode=permissive to get null"
                raise FormatError(error.field, places[row], f"{error.detail}; {remedy}") from error
            values[row] = None
    if sum(len(value) for value in values if value) > BATCH_INFLATED_MAX:
        raise FormatError(
            "compressed bodies",
            places[0],
            f"have more than {BATCH_INFLATED_MAX} bytes together; read with decompress=false",
        )
    return pa.array(values, pa.binary())
