"""ThumbHash against values of its author's own program (JavaScript, version 0.1.1)."""

from __future__ import annotations

import base64

import pytest

from pipeline.steps import thumbhash

RED, GREEN, BLUE, WHITE = b"\xdc\x28\x28\xff", b"\x28\xb4\x3c\xff", b"\x28\x3c\xc8\xff", b"\xff\xff\xff\xff"
CLEAR = b"\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("width", "height", "rgba", "expected"),
    [
        (1, 1, RED, "d96a33b75808f708888788708f7088f80888808008088800"),
        (2, 3, RED + RED + BLUE + WHITE + GREEN + GREEN, "9f183e652e760988886789868869780775897ff888"),
        (3, 2, RED + CLEAR + BLUE + CLEAR + GREEN + CLEAR, "d807824b9288f8087f86875fd5d7ff8c7878898b886808"),
        (2, 2, CLEAR * 4, "00088205000000000000000000000000000000000000000000"),
    ],
)
def test_a_small_picture_gives_the_hash_of_the_reference(width: int, height: int, rgba: bytes, expected: str) -> None:
    assert thumbhash.encode(width, height, rgba).hex() == expected
    assert base64.b64decode(thumbhash.encode_base64(width, height, rgba)).hex() == expected


def test_a_large_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        thumbhash.encode(101, 1, RED * 101)
