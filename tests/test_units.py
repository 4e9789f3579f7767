"""Quantity strings mean what they say or are refused, and the simulated clock counts whole picoseconds."""

from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipesim.units import format_quantity, parse_quantity, to_picoseconds, to_seconds, type_examples

UNITS = sorted(type_examples)
units = st.sampled_from(UNITS)
values = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)

DECIMAL = {"p": -12, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


@given(values, units)
@example(0.0, "s")
@example(5e-324, "s")
@example(1.7976931348623157e308, "B")
@example(467.8e12, "FLOP/s")
def test_what_is_written_reads_back_as_the_same_number(value: float, unit: str) -> None:
    assert parse_quantity(format_quantity(value, unit), unit) == value


@given(values, units)
def test_what_is_written_carries_its_unit(value: float, unit: str) -> None:
    assert format_quantity(value, unit).endswith(unit)


@given(st.integers(0, 10**6), st.sampled_from(sorted(DECIMAL)), units)
def test_decimal_prefixes_are_powers_of_ten(count: int, prefix: str, unit: str) -> None:
    exact = Fraction(count) * Fraction(10) ** DECIMAL[prefix]
    assert parse_quantity(f"{count} {prefix}{unit}", unit) == float(exact)


@given(st.integers(0, 10**6), st.sampled_from(sorted(BINARY)), st.sampled_from(["B", "B/s"]))
def test_binary_prefixes_are_powers_of_two(count: int, prefix: str, unit: str) -> None:
    assert parse_quantity(f"{count} {prefix}{unit}", unit) == count * 2 ** BINARY[prefix]


def test_a_gibibyte_is_not_a_gigabyte() -> None:
    assert parse_quantity("96 GiB", "B") - parse_quantity("96 GB", "B") == 96 * (2**30 - 10**9)
    assert parse_quantity("97887 MiB", "B") / parse_quantity("1 GiB", "B") == pytest.approx(95.59, abs=0.005)


@pytest.mark.parametrize("text", ["5 us", "5us", "5 µs", "5 μs", "0.005 ms", "5e-6 s", "5000 ns"])
def test_five_microseconds_can_be_written_as_people_write_them(text: str) -> None:
    assert parse_quantity(text, "s") == 5e-6


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers(), max_size=2)), units)
def test_a_bare_number_is_refused(bare: object, unit: str) -> None:
    with pytest.raises(ValueError, match=r"without a unit; .* is wanted") as refused:
        parse_quantity(bare, unit)
    assert repr(bare) in str(refused.value)
    assert type_examples[unit] in str(refused.value)


@given(st.integers(0, 10**12), units)
def test_a_bare_number_in_quotes_is_refused(bare: int, unit: str) -> None:
    with pytest.raises(ValueError, match=f'"{bare}" without a unit; .* is wanted'):
        parse_quantity(str(bare), unit)


@pytest.mark.parametrize(
    ("text", "unit"), [("64 Gb/s", "B/s"), ("1 Gib/s", "B/s"), ("8 b", "B"), ("96 Gib", "B"), ("96 Gb", "B")]
)
def test_bits_are_no_bytes(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=r"counts bits, 8 to a byte") as refused:
        parse_quantity(text, unit)
    assert text in str(refused.value)


@given(st.integers(0, 1000), st.sampled_from(["", "k", "M", "G", "m", "u"]), units, units)
def test_the_unit_of_another_quantity_is_refused(count: int, prefix: str, given_unit: str, wanted: str) -> None:
    assume(given_unit != wanted)
    with pytest.raises(ValueError, match="is wanted") as refused:
        parse_quantity(f"{count} {prefix}{given_unit}", wanted)
    assert f"{count} {prefix}{given_unit}" in str(refused.value)
    assert type_examples[wanted] in str(refused.value)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("5 minutes", "s"),
        ("5 sec", "s"),
        ("5 m", "s"),
        ("5 S", "s"),
        ("64 GBps", "B/s"),
        ("64 GB/S", "B/s"),
        ("64 GT/s", "B/s"),
        ("96 GiBytes", "B"),
        ("467 TFLOPS", "FLOP/s"),
        ("467 TFLOP", "FLOP/s"),
        ("50 %", "s"),
        ("10 foo/s", "B/s"),
    ],
)
def test_a_unit_that_is_almost_right_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="is wanted") as refused:
        parse_quantity(text, unit)
    assert text in str(refused.value)


@pytest.mark.parametrize("text", ["", " ", "s", "five us", "GB/s", "5 5 us", "5 k s", "1..2 s", "0x10 s", "us 5"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is wanted"):
        parse_quantity(text, "s")


@given(values, units)
def test_a_negative_quantity_is_refused(value: float, unit: str) -> None:
    assume(value > 0)
    with pytest.raises(ValueError, match="is not finite and at least zero"):
        parse_quantity(f"-{value!r} {unit}", unit)


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e999"])
@pytest.mark.parametrize("unit", UNITS)
def test_what_is_not_finite_is_refused(number: str, unit: str) -> None:
    with pytest.raises(ValueError, match=r"is not finite|is no quantity"):
        parse_quantity(f"{number} {unit}", unit)


@given(st.text(max_size=20), units)
def test_any_text_is_a_number_of_at_least_zero_or_refused_with_what_is_wanted(text: str, unit: str) -> None:
    try:
        assert 0.0 <= parse_quantity(text, unit) < float("inf")
    except ValueError as refused:
        assert type_examples[unit] in str(refused)


@given(st.integers(0, 2**51))
def test_the_clock_counts_whole_picoseconds_and_loses_none_on_the_way_to_seconds_and_back(ticks: int) -> None:
    back = to_picoseconds(to_seconds(ticks))
    assert isinstance(back, int)
    assert back == ticks


@given(st.floats(0.0, 1.0))
def test_a_duration_becomes_the_nearest_picosecond(seconds: float) -> None:
    off = Fraction(to_picoseconds(seconds)) - Fraction(seconds) * 10**12
    assert abs(off) <= Fraction(1, 2) + Fraction(1, 1000)
