"""The dominant colour."""

from __future__ import annotations

from pipeline.steps import palette


def test_the_most_frequent_kind_of_colour_wins_and_its_shades_are_averaged() -> None:
    pixels = [(200, 10, 10, 255)] * 3 + [(210, 10, 10, 255)] * 3 + [(0, 0, 250, 255)] * 5
    assert palette.dominant(bytes(value for pixel in pixels for value in pixel)) == "#cd0a0a"


def test_pixels_that_can_hardly_be_seen_do_not_count() -> None:
    assert palette.dominant(bytes([255, 0, 0, 127] * 9 + [0, 255, 0, 128])) == "#00ff00"
    assert palette.dominant(bytes([255, 0, 0, 0] * 9)) is None
