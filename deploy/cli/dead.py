"""``gpubus dead``: look at messages that could not be handled, give them another try, or drop them."""

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError, NotFoundError
from deploy.cli.output import clean, instant, make_console, make_table, print_json, show_fields

if TYPE_CHECKING:
    from schemas.deadletter import DeadLetter
    from schemas.event import Event

app = typer.Typer(
    help="""Look at messages that could not be handled, give them another try, or drop them.

    \b
    Examples:
      gpubus dead list
      gpubus dead show WORK/812
      gpubus dead retry WORK/812
      gpubus dead drop STATE/97
    """,
    rich_markup_mode=None,
)

LetterArgument = Annotated[
    str, typer.Argument(metavar="STREAM/SEQ", help="The letter, as `gpubus dead list` names it.")
]

_NAME: Final = re.compile(r"([A-Za-z0-9_-]+)/([0-9]{1,19})")


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Teach where nothing was asked."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_command(*, as_json: JsonOption = False, nats: NatsOption = None, store: StoreOption = None) -> None:
    """List the dead letters, oldest first.

    \b
    Example:
      gpubus dead list --json | jq -r '.[].reason' | sort | uniq -c
    """
    found = run(_list(nats, store))
    if as_json:
        print_json([_as_json(event) for event in found])
        return
    console = make_console()
    if not found:
        console.print("no dead letters")
        return
    columns = ("letter", "buried", "given up by", "deliveries>", "subject", "reason")
    console.print(make_table(console, columns, [_row(event) for event in found]))


async def _list(nats: list[str] | None, store: Path | None) -> list["Event[DeadLetter]"]:
    from bus.deadletter import list_letters

    async with open_bus(nats, store) as bus:
        return [event async for event in list_letters(bus)]


def _row(event: "Event[DeadLetter]") -> list[object]:
    letter = event.data
    where = f"{letter.stream}/{letter.sequence}"
    return [where, instant(event.time), letter.consumer, letter.deliveries, _decoded(letter.subject), letter.reason]


@app.command("show")
def show_command(
    letter: LetterArgument, *, as_json: JsonOption = False, nats: NatsOption = None, store: StoreOption = None
) -> None:
    """Show one dead letter: why it was given up, its headers and its body.

    \b
    Example:
      gpubus dead show WORK/812
    """
    event = run(_get(*_parse(letter), nats, store))
    if as_json:
        print_json(_as_json(event))
        return
    found = event.data
    console = make_console()
    console.print(clean(f"{found.stream}/{found.sequence}"), style="bold")
    fields: list[tuple[str, object]] = [
        ("reason", found.reason),
        ("given up by", f"{found.consumer} after {found.deliveries} deliveries, {instant(event.time)}"),
        ("subject", f"{found.subject} ({_decoded(found.subject)})"),
        ("published", instant(found.published_at)),
        *((f"header {clean(name)}", value) for name, value in found.headers.items()),
    ]
    show_fields(console, fields)
    text = _text(found.payload)
    size = f"{len(found.payload)} bytes" + ("" if text is not None else ", in hexadecimal as it is not UTF-8")
    console.print(f"\nPayload, {size}", style="bold")
    if text is None:
        console.print(found.payload.hex(" "))
    else:
        console.print("\n".join(map(clean, text.splitlines())))


async def _get(stream: str, sequence: int, nats: list[str] | None, store: Path | None) -> "Event[DeadLetter]":
    from bus.deadletter import NoSuchLetterError, get_event

    async with open_bus(nats, store) as bus:
        try:
            return await get_event(bus, stream, sequence)
        except NoSuchLetterError as error:
            raise NotFoundError(str(error)) from error


@app.command("retry")
def retry_command(
    letter: Annotated[str | None, typer.Argument(metavar="STREAM/SEQ", help="The letter to retry.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Retry every letter.")] = False,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Publish the original message again where it was, and drop the letter.

    Only commands and reports can be retried: a STATE or LEDGER message published again would replace what is newer.

    \b
    Examples:
      gpubus dead retry WORK/812
      gpubus dead retry --all
    """
    if everything == (letter is not None):
        raise InputError("say what to retry: one letter, such as `gpubus dead retry WORK/812`, or --all")
    results = run(_retry(_parse(letter) if letter is not None else None, nats, store))
    if as_json:
        print_json(results)
    else:
        for result in results:
            print(clean(f"{result['letter']}: {result['error'] or 'published again on ' + result['subject']}"))
        if not results:
            print("no dead letters")
    if any(result["error"] for result in results):
        raise typer.Exit(1)


async def _retry(one: tuple[str, int] | None, nats: list[str] | None, store: Path | None) -> list[dict[str, Any]]:
    from bus.deadletter import NoSuchLetterError, NotRetryableError, list_letters, retry_letter

    results: list[dict[str, Any]] = []
    async with open_bus(nats, store) as bus:
        # Listed before the first is retried: a retried message may die again at once and would be met a second time.
        wanted = [one] if one else [(event.data.stream, event.data.sequence) async for event in list_letters(bus)]
        for stream, sequence in wanted:
            subject, failure = "", ""
            try:
                subject = (await retry_letter(bus, stream, sequence)).subject
            except (NoSuchLetterError, NotRetryableError) as error:
                if one:
                    raise NotFoundError(str(error)) from error
                failure = str(error)
            results.append({"letter": f"{stream}/{sequence}", "subject": subject, "error": failure or None})
    return results


@app.command("drop")
def drop_command(letter: LetterArgument, *, nats: NatsOption = None, store: StoreOption = None) -> None:
    """Drop one dead letter for good, after its cause has been dealt with.

    \b
    Example:
      gpubus dead drop STATE/97
    """
    dropped = run(_drop(*_parse(letter), nats, store))
    print(clean(f"{dropped.stream}/{dropped.sequence}: dropped"))


async def _drop(stream: str, sequence: int, nats: list[str] | None, store: Path | None) -> "DeadLetter":
    from bus.deadletter import NoSuchLetterError, drop_letter

    async with open_bus(nats, store) as bus:
        try:
            return await drop_letter(bus, stream, sequence)
        except NoSuchLetterError as error:
            raise NotFoundError(str(error)) from error


def _parse(letter: str) -> tuple[str, int]:
    found = _NAME.fullmatch(letter)
    if found is None:
        raise InputError(
            f"{letter!r} is no dead letter: write STREAM/SEQ, such as WORK/812; `gpubus dead list` shows them"
        )
    return found[1], int(found[2])


def _decoded(subject: str) -> str:
    from bus.subjects import names

    try:
        return "/".join(names(subject))
    except ValueError:
        return subject


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _as_json(event: "Event[DeadLetter]") -> dict[str, Any]:
    import msgspec

    letter = event.data
    fields: dict[str, Any] = msgspec.to_builtins(letter)
    del fields["payload"]
    encoded = base64.b64encode(letter.payload).decode()
    return {"buried_at": event.time, **fields, "payload": _text(letter.payload), "payload_base64": encoded}
