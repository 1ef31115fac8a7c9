"""Reason codes, the filters behind them and their table in the docs agree."""

from pathlib import Path

from consumers.allocator.engine.rules import STAGE_CODES, STAGES
from schemas.reasons import CODES, REASONS, markdown

DOCS = Path(__file__).parents[2] / "schemas" / "REASONS.md"


def test_the_table_in_the_docs_is_what_the_code_says() -> None:
    assert DOCS.read_text() == markdown(), "write schemas.reasons.markdown() to schemas/REASONS.md"


def test_codes_are_unique_and_each_says_what_it_means_and_what_helps() -> None:
    assert len(CODES) == len(REASONS)
    for reason in REASONS:
        assert reason.meaning.endswith(".")
        assert reason.help.endswith(".")


def test_filters_run_in_the_order_of_the_table() -> None:
    places = {reason.code: place for place, reason in enumerate(REASONS)}
    assert [places[code] for code in STAGE_CODES.values()] == sorted(places[code] for code in STAGE_CODES.values())
    assert list(STAGE_CODES) == sorted(STAGE_CODES, reverse=True)
    assert max(STAGE_CODES) < STAGES
