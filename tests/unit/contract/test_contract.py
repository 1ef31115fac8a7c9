"""The contract is what its standard allows, and what was ever said by it is understood for ever."""

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bus import codec
from schemas.registry import EVENT_TYPES
from tests.golden.examples import lines, written

ROOT = Path(__file__).parent.parent.parent.parent
SCHEMA = ROOT / "tests/assets/asyncapi-3.0.0.schema.json.gz"


def test_the_committed_document_is_what_the_official_schema_of_asyncapi_allows() -> None:
    official = jsonschema.Draft7Validator(json.loads(gzip.decompress(SCHEMA.read_bytes())))
    document = json.loads((ROOT / "deploy/contract/asyncapi.json").read_text())
    assert not [error.message for error in official.iter_errors(document)]
    wrong = copy.deepcopy(document)
    wrong["operations"]["receiveNode"]["action"] = "shout"
    assert not official.is_valid(wrong)


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield everything in a JSON value by its place."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from parts(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            yield from parts(entry, f"{path}[{place}]")
    else:
        yield path, value


@pytest.mark.parametrize("event", lines(), ids=lambda event: event["type"])
def test_what_earlier_versions_said_decodes_and_nothing_of_it_is_lost(event: dict[str, Any]) -> None:
    decoded = codec.decode(json.dumps(event).encode())
    again = dict(parts(json.loads(codec.encode(decoded))))
    lost = {path: value for path, value in parts(event) if again.get(path) != value}
    assert not lost, f"{event['type']} has lost what earlier versions say in it"


def test_every_type_is_recorded_as_this_version_writes_it() -> None:
    recorded = lines()
    missing = [name for name in EVENT_TYPES if written(name) not in recorded]
    assert not missing, f"{', '.join(missing)}: run python -m tests.golden.examples, which adds and never changes"
