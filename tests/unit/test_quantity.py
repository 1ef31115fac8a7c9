"""Kubernetes quantities: the grammar, the rounding, the canonical form and what is refused."""

import re
import time
from fractions import Fraction

import pytest

from schemas.quantity import LARGEST, QuantityError, format_bytes, format_milli, parse, parse_bytes, parse_milli


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("-0", 0),
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("007", 7),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("5.Ki", 5120),
        ("-.5k", -500),
        ("100n", Fraction(1, 10**7)),
        ("5u", Fraction(5, 10**6)),
        ("0.1m", Fraction(1, 10**4)),
        ("1k", 10**3),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 2**10),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1E-3", Fraction(1, 1000)),
        ("1.5e1", 15),
        ("1e003", 1000),
        ("0e999", 0),
        ("0.3Gi", Fraction(3 * 2**30, 10)),
        (str(LARGEST), LARGEST),
        (f"-{LARGEST}", -LARGEST),
    ],
)
def test_reads_every_form_exactly(text: str, amount: Fraction | int) -> None:
    assert parse(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        " 1",
        "1 Gi",
        "1\n",
        "+",
        "-",
        ".",
        "+.",
        "--1",
        "1.2.3",
        "1,5",
        "1_000",
        "1ki",
        "1K",
        "1KI",
        "1mi",
        "1ni",
        "1g",
        "16GB",
        "1Gib",
        "1e",
        "1e+",
        "1e1.5",
        "1e3k",
        "1kM",
        "0x10",
        "NaN",
        "inf",
        "Gi",
        "e3",
        "\u0661",
        "\uff11",
        "\u00b2",
        "1\u00b5",
        "1" * 101,
    ],
)
def test_refuses_what_is_no_quantity(text: str) -> None:
    with pytest.raises(
        QuantityError, match=r"^vram-request: .* is not a Kubernetes quantity: use a number with one of n"
    ):
        parse_bytes(text, field="vram-request")


def test_says_field_value_and_fix() -> None:
    with pytest.raises(QuantityError) as refused:
        parse_bytes("16GB", field="vram-request")
    assert str(refused.value) == (
        "vram-request: '16GB' is not a Kubernetes quantity: use a number with one of n, u, m, k, M, G, T, P, E, "
        "Ki … Ei or an exponent, such as 16Gi"
    )
    assert isinstance(refused.value, ValueError)


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(QuantityError) as refused:
        parse("x" * 10_000_000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1E+" + "9" * 90, "0e1000"])
def test_an_absurd_exponent_is_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(QuantityError, match=re.escape(f"tflops: '{text[:40]}")) as refused:
        parse_milli(text, field="tflops")
    assert time.perf_counter() - start < 0.1
    assert "exponent of more than 3 digits" in str(refused.value)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775808", "8Ei", "10E", "1e19", "1e999"])
def test_refuses_more_than_kubernetes_can_hold(text: str) -> None:
    with pytest.raises(QuantityError, match=rf"memory: '{text}' is more than .*: use at most 9223372036854775807"):
        parse_bytes(text, field="memory")


def test_refuses_thousandths_beyond_the_limit() -> None:
    assert parse_milli("9223372036854775", field="cpu") == 9223372036854775000
    with pytest.raises(QuantityError, match=r"cpu: '10P' is too much .*: use at most 9223372036854775$"):
        parse_milli("10P", field="cpu")


@pytest.mark.parametrize("read", [parse_milli, parse_bytes])
def test_a_request_is_never_negative(read: type[int]) -> None:
    with pytest.raises(QuantityError, match=r"^cpu: '-1n' is negative: use 0 or more$"):
        read("-1n", field="cpu")
    assert read("-0", field="cpu") == 0


@pytest.mark.parametrize(
    ("text", "milli", "amount"),
    [
        ("1", 1000, 1),
        ("1n", 1, 1),
        ("0.1m", 1, 1),
        ("1.0001", 1001, 2),
        ("1500m", 1500, 2),
        ("0.5Ki", 512000, 512),
        ("1e-999", 1, 1),
        ("0", 0, 0),
        ("-1.0001", -1001, -2),
    ],
)
def test_rounds_away_from_zero_as_kubernetes_does(text: str, milli: int, amount: int) -> None:
    assert parse_milli(text, field="f", signed=True) == milli
    assert parse_bytes(text, field="f", signed=True) == amount


@pytest.mark.parametrize(
    ("milli", "text"),
    [
        (0, "0"),
        (1, "1m"),
        (1500, "1500m"),
        (2000, "2"),
        (2_000_000, "2k"),
        (312_000, "312"),
        (-500, "-500m"),
        (10**18, "1P"),
    ],
)
def test_writes_thousandths_canonically(milli: int, text: str) -> None:
    assert format_milli(milli) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (4 * 2**30, "4Gi"),
        (2**30 + 2**20, "1025Mi"),
        (10**9, "1G"),
        (1001 * 10**6, "1001M"),
        (-(2**20), "-1Mi"),
        (7 * 2**60, "7Ei"),
        (9 * 10**18, "8789062500000000Ki"),
    ],
)
def test_writes_bytes_canonically(amount: int, text: str) -> None:
    assert format_bytes(amount) == text
