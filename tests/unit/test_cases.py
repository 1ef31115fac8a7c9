"""The list of upstream's cases names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LISTING = (TESTS / "CASES.md").read_text()
ROW = re.compile(r"^\| (?P<what>.*) \| (?P<where>.*) \|$", re.MULTILINE)
TEST = re.compile(r"`(?P<file>[a-z_/]+\.py)(?:::(?P<name>\w+))?`")


def test_every_test_that_is_named_exists() -> None:
    named = [(found["file"], found["name"]) for found in TEST.finditer(LISTING)]
    assert len(named) > 40
    for file, name in named:
        text = (TESTS / file).read_text()
        assert name is None or f"def {name}(" in text, f"{file} has no {name}"


def test_every_case_of_hami_that_has_a_test_is_named_there() -> None:
    cases = {
        case: where["file"]
        for row in ROW.finditer(LISTING.partition("## TensorFusion")[0])
        for where in [*TEST.finditer(row["where"])][:1]
        for case in re.findall(r"\b(?!BUG-03)[A-Z]+-\d\d\b", row["what"])
    }
    assert len(cases) == 48
    for case, file in cases.items():
        assert case in (TESTS / file).read_text().upper(), f"{file} does not name {case}"
