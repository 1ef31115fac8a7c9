"""The template subset against the real Go implementation, and what it refuses."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from consumers.alerter.template import Template, TemplateRunError, TemplateSyntaxError

try:
    from helm_python import Chart
except ImportError:
    Chart = None

ROW = {"text": "GPU-1", "wide": "é°中😀\t", "empty": "", "count": 7, "zero": 0, "part": 91.25, "yes": True, "no": False}


def go(templates: list[str], row: dict) -> list[str]:
    """Render with Go: Helm's engine, which differs only in that it prints nothing for ``<no value>``."""
    pairs = " ".join(f'"{name}" {_literal(value)}' for name, value in row.items())
    with tempfile.TemporaryDirectory() as path:
        root = Path(path)
        (root / "templates").mkdir()
        (root / "Chart.yaml").write_text("apiVersion: v2\nname: c\nversion: 0.0.1\n")
        body = "".join(f'{{{{ define "t{n}" }}}}{text}{{{{ end }}}}' for n, text in enumerate(templates)) + "\n".join(
            f'{{{{ include "t{n}" (dict {pairs}) | toJson }}}}' for n in range(len(templates))
        )
        (root / "templates" / "t.txt").write_text(body)
        with Chart.load(root) as chart:
            rendered = chart.render(values={}, name="r")
    (text,) = rendered.values() if isinstance(rendered, dict) else rendered
    return [json.loads(line) for line in text.strip().splitlines()]


def _literal(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"(int64 {value})"
    return f"(float64 {value!r})" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: every try is a rendering by Helm, and the index of the difference names the template."""

needs_go = pytest.mark.skipif(Chart is None, reason="helm-python-sdk has no wheel for this platform")

VALUE = st.sampled_from(
    [f".{name}" for name in ROW] + ["$.part", "1", "-3", "0x1F", "1.5", "1e3", '"a b"', "`raw`", "true"]
)
TEXT = st.sampled_from([".text", ".empty", '"b"', '"GPU-1"'])
INTEGER = st.sampled_from([".count", ".zero", "7", "-1"])
REAL = st.sampled_from([".part", "91.25", "0.5"])
FORMAT = st.builds(
    lambda flags, width, precision, verb: f"%{flags}{width}{precision}{verb}",
    st.sampled_from(["", "-", "+", "0", " "]),
    st.sampled_from(["", "3", "12"]),
    st.sampled_from(["", ".0", ".3"]),
    st.sampled_from(list("vdsqfFeEgGt")),
)
COMPARE = st.one_of(
    *(
        st.builds(lambda f, a, b: f"({f} {a} {b})", st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), kind, kind)
        for kind in (TEXT, INTEGER, REAL)
    )
)
CONDITION = st.recursive(
    st.one_of(VALUE, COMPARE),
    lambda inner: st.one_of(
        st.builds(lambda a: f"(not {a})", inner),
        st.builds(lambda f, a, b: f"({f} {a} {b})", st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=4,
)
PRINT = st.one_of(
    CONDITION.map("{{{{ {} }}}}".format),
    st.builds(lambda fmt, value: f'{{{{ printf "{fmt}" {value} }}}}', FORMAT, VALUE),
    st.builds(lambda fmt, value: f'{{{{- {value} | printf "<{fmt}>" -}}}}', FORMAT, VALUE),
    st.builds(lambda a, b, c: f"{{{{ print {a} {b} {c} }}}}", VALUE, VALUE, VALUE),
    TEXT.map("{{{{ len {} }}}}".format),
    st.sampled_from([" x ", "\n y", "°C", "{{/* note */}}", "{{- /* note */ -}}"]),
)
TEMPLATE = st.recursive(
    PRINT,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.builds(lambda c, a, b: f"{{{{ if {c} }}}}{a}{{{{ else }}}}{b}{{{{ end }}}}", CONDITION, inner, inner),
        st.builds(
            lambda c, a, d, b: f"{{{{ if {c} }}}}{a}{{{{ else if {d} }}}}{b}{{{{ end }}}}",
            CONDITION,
            inner,
            CONDITION,
            inner,
        ),
        st.builds(lambda c, a: f"{{{{ with {c} }}}}<{{{{ . }}}}>{{{{ else }}}}{a}{{{{ end }}}}", VALUE, inner),
        st.builds(lambda a: f"{{{{ range .missing }}}}.{{{{ else }}}}{a}{{{{ end }}}}", inner),
    ),
    max_leaves=5,
)


@needs_go
@settings(max_examples=20, deadline=None, phases=QUICK)
@given(templates=st.lists(TEMPLATE, min_size=20, max_size=20))
def test_what_is_accepted_prints_what_go_prints(templates: list[str]) -> None:
    assert [Template(text).render(ROW) for text in templates] == go(templates, ROW)


@needs_go
@settings(max_examples=8, deadline=None, phases=QUICK)
@given(
    reals=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=40, max_size=40),
    integers=st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=10, max_size=10),
)
def test_numbers_print_as_go_prints_them(reals: list[float], integers: list[int]) -> None:
    row = {f"n{i}": value for i, value in enumerate([*reals, *integers])}
    templates = [
        f'{{{{ .{name} }}}} {{{{ printf "%v %8.2f %g %.3g %e" .{name} .{name} .{name} .{name} .{name} }}}}'
        for name in row
    ]
    assert [Template(text).render(row) for text in templates] == go(templates, row)


def test_missing_columns_and_null_print_as_go_prints_them() -> None:
    assert Template("{{ .a }} {{ .b }} {{ print .a }} {{ eq .a .b }}").render({"a": None}) == (
        "<no value> <no value> <nil> true"
    )


def test_range_counts_up_to_an_integer() -> None:
    assert Template("{{ range .n }}{{ . }}{{ $.s }} {{ else }}none{{ end }}").render({"n": 3, "s": "x"}) == "0x 1x 2x "


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a\n b {{ .x", "line 2, column 9", "action is not closed"),
        ("{{ template `x` }}", "line 1, column 4", "template is not supported"),
        ("{{ $x := 1 }}", "line 1, column 4", "variable $x is not supported"),
        ("{{ .x.y }}", "line 1, column 6", "columns have no fields"),
        ("{{ upper .x }}", "line 1, column 4", "function 'upper' is not supported"),
        ("{{ if .x }}", "line 1, column 4", "if has no end"),
        ("{{ end }}", "line 1, column 4", "end without if"),
        ("{{ if .x }}{{ else }}{{ else }}{{ end }}", "line 1, column 25", "a second else"),
        ('{{ printf "%U" .x }}', "line 1, column 4", "printf verb '%U' is not supported"),
        ("{{ printf .x }}", "line 1, column 4", "constant format"),
        ("{{ with .x }}{{ .y }}{{ end }}", "line 1, column 17", "write $.y"),
        ("{{ .a .b }}", "line 1, column 4", ".a is no function"),
        ("{{ eq .a }}", "line 1, column 4", "eq takes at least 2"),
        ("{{ }}", "line 1, column 4", "a value is missing"),
        ('{{ "x }}', "line 1, column 4", "text constant is not closed"),
        ("{{ .a ; }}", "line 1, column 7", "unexpected character ';'"),
    ],
)
def test_anything_else_is_refused_with_its_place_and_the_reason(text: str, place: str, reason: str) -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        Template(text)
    assert place in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{" + "(" * 5000,
        "{{ if .x }}" * 500,
        "{{ if .x }}" + "{{ else if .x }}" * 500,
        "{{ .x | len }}" + "x" * 30_000,
        "{{ .x" + " | len" * 40,
    ],
)
def test_endless_templates_are_refused(text: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=r"nested more than 30 deep|at most 20000 characters"):
        Template(text + "}}")


def test_names_that_a_query_cannot_know_are_refused() -> None:
    with pytest.raises(TemplateSyntaxError, match="treshold is not known here: there are Conditions, Threshold"):
        Template("x > {{ .treshold }}", known=("Threshold", "Conditions"))


@pytest.mark.parametrize(
    "text", ["{{ lt .part 1 }}", "{{ eq .text 1 }}", "{{ lt .missing 1 }}", "{{ range .text }}{{ end }}"]
)
def test_where_go_fails_at_run_time_so_do_we(text: str) -> None:
    with pytest.raises(TemplateRunError):
        Template(text).render(ROW)
