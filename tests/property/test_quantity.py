"""Kubernetes quantities against a second opinion: Python's Decimal, and their own written form."""

from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.quantity import LARGEST, QuantityError, format_bytes, format_milli, parse, parse_bytes, parse_milli

EXACT = Context(prec=400)
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

amounts = st.integers(-LARGEST, LARGEST)
digits = st.text("0123456789", max_size=25)
numbers = (
    st.tuples(st.sampled_from(["", "+", "-"]), digits, st.sampled_from(["", "."]), digits)
    .map("".join)
    .filter(
        lambda text: any(letter.isdigit() for letter in text),
    )
)


def expect(text: str, amount: Decimal) -> None:
    if abs(amount) > LARGEST:
        with pytest.raises(QuantityError, match="more than Kubernetes can hold"):
            parse(text)
    else:
        assert parse(text) == Fraction(amount)


@given(number=numbers, suffix=st.sampled_from(sorted(DECIMAL)))
def test_decimal_suffixes_agree_with_decimal(number: str, suffix: str) -> None:
    expect(number + suffix, EXACT.scaleb(Decimal(number), DECIMAL[suffix]))


@given(number=numbers, suffix=st.sampled_from(sorted(BINARY)))
def test_binary_suffixes_agree_with_decimal(number: str, suffix: str) -> None:
    expect(number + suffix, EXACT.multiply(Decimal(number), Decimal(2 ** BINARY[suffix])))


@given(number=numbers, letter=st.sampled_from("eE"), sign=st.sampled_from(["", "+", "-"]), power=st.integers(0, 99))
def test_exponents_agree_with_decimal(number: str, letter: str, sign: str, power: int) -> None:
    text = f"{number}{letter}{sign}{power}"
    expect(text, Decimal(text))


@given(amounts)
def test_bytes_survive_being_written(amount: int) -> None:
    assert parse_bytes(format_bytes(amount), field="f", signed=True) == amount
    assert parse(format_bytes(amount)) == amount


@given(st.integers(0, 2**23), st.sampled_from([*BINARY.values(), 0]))
def test_round_numbers_of_bytes_survive_too(count: int, power: int) -> None:
    amount = min(count << power, LARGEST)
    assert parse_bytes(format_bytes(amount), field="f") == amount


@given(amounts)
def test_thousandths_survive_being_written(milli: int) -> None:
    assert parse_milli(format_milli(milli), field="f", signed=True) == milli
    assert parse(format_milli(milli)) == Fraction(milli, 1000)


@given(amounts)
def test_the_written_form_is_canonical(milli: int) -> None:
    text = format_milli(milli)
    number = text.rstrip("mkMGTPE")
    assert "." not in text
    assert milli == 0 or text.endswith("E") or int(number) % 1000 != 0


@given(number=numbers, suffix=st.sampled_from([*sorted(DECIMAL), *sorted(BINARY)]))
def test_rounding_is_up_and_by_less_than_one(number: str, suffix: str) -> None:
    text = number.lstrip("+-") + suffix
    try:
        milli = parse_milli(text, field="f")
    except QuantityError:
        return
    assert 0 <= milli - parse(text) * 1000 < 1


@given(st.text(max_size=120))
def test_any_text_is_either_a_quantity_or_a_quantity_error(text: str) -> None:
    try:
        amount = parse(text)
    except QuantityError:
        return
    assert abs(amount) <= LARGEST
