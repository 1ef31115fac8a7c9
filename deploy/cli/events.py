"""``gpubus events``: what is said on the bus, decoded, as it is said or from history."""

import base64
import sys
from collections import deque
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError
from deploy.cli.output import clean, instant
from deploy.cli.when import instant_of

if TYPE_CHECKING:
    from deploy.cli.history import Entry, Lane


def events(
    subject: Annotated[str, typer.Argument(help="Subject on the bus; * is one word, > the rest.")] = "gpubus.>",
    *,
    everything: Annotated[bool, typer.Option("--all", help="Begin with all that is stored.")] = False,
    last: Annotated[
        int | None, typer.Option("--last", "-n", metavar="N", min=1, max=1_000_000, help="Begin with the last N.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="Begin at a stream sequence, a time, an age such as 15m, `all` or `now`."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", metavar="N", min=1, help="Stop after N events.")] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Wait for more; without, print what is stored and exit."),
    ] = True,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Show what is said on the bus, one event per line: time, subject, type, summary.

    By default only what is new. With --json every line is the event as it was published, a CloudEvent. Reading takes
    nothing away: commands stay in their queue, but one that is done within a fifth of a second may not be seen.

    \b
    Examples:
      gpubus events                                   follow everything
      gpubus events 'gpubus.decision.>' --last 20     decisions, the last 20 and new ones
      gpubus events 'gpubus.decision.ml.>' --since 1h --no-follow
      gpubus events 'gpubus.ledger.node.>' --all --no-follow --json
    """
    _check_subject(subject)
    if sum((everything, last is not None, since is not None)) > 1:
        raise InputError("--all, --last and --since each say where to begin: keep one of them")
    if everything or (last is None and since is None and not follow):
        since = "all"
    run(_events(subject, _Start(last, since), count, follow=follow, as_json=as_json, nats=nats, store=store))


class _Start:
    """Where to begin, checked before anything is connected."""

    def __init__(self, last: int | None, since: str | None) -> None:
        self.last = last
        self.sequence: int | None = None
        self.time: datetime | None = None
        self.everything = since == "all"
        if since is None or since in ("all", "now"):
            return
        if since.isascii() and since.isdigit():
            self.sequence = int(since)
        else:
            self.time = instant_of(since, "--since")
            self.everything = self.time.year == 1  # longer ago than there are dates

    async def place(self, lanes: list["Lane"]) -> None:
        """Move every lane to where it begins."""
        if self.sequence is not None and len({lane.stream for lane in lanes}) > 1:
            shown = ", ".join(dict.fromkeys(lane.stream for lane in lanes))
            raise InputError(
                f"--since {self.sequence} is a place in one stream, and the subject covers {shown}: narrow it"
            )
        for lane in lanes:
            if self.everything:
                lane.from_sequence(1)
            elif self.sequence is not None:
                lane.from_sequence(self.sequence)
            elif self.time is not None:
                await lane.from_time(self.time)
            elif self.last is not None:
                await lane.from_last(self.last)


def _check_subject(subject: str) -> None:
    tokens = subject.split(".")
    fits = all(tokens) and not any(c.isspace() for c in subject) and ">" not in tokens[:-1]
    if not fits or any(len(t) > 1 and ("*" in t or ">" in t) for t in tokens):
        raise InputError(f"{subject!r} is no subject: write words joined by dots, such as 'gpubus.decision.ml.>'")


async def _events(
    subject: str,
    start: _Start,
    count: int | None,
    *,
    follow: bool,
    as_json: bool,
    nats: list[str] | None,
    store: Path | None,
) -> None:
    from deploy.cli.history import lanes, merged, sources, words

    if not sources(subject):
        known = ", ".join(words())
        raise InputError(f"nothing is stored under {subject!r}: it is gpubus.WORD.…, and WORD is one of {known}")
    async with open_bus(nats, store) as bus:
        opened = await lanes(bus, subject)
        await start.place(opened)
        printer = _Printer(count, as_json=as_json)
        if start.last is not None:
            # Each lane holds its own last N; those of all together are known only once they have been merged.
            newest = deque([entry async for entry in merged(opened, follow=False)], maxlen=start.last)
            if not all(map(printer.show, newest)):
                return
        if start.last is None or follow:
            async with aclosing(merged(opened, follow=follow)) as coming:
                async for entry in coming:
                    if not printer.show(entry):
                        return


class _Printer:
    """Prints entries until it has printed enough."""

    def __init__(self, count: int | None, *, as_json: bool) -> None:
        self._left = count
        self._line = json_line if as_json else text_line

    def show(self, entry: "Entry") -> bool:
        """Print one entry and return whether more are wanted."""
        sys.stdout.write(self._line(entry) + "\n")
        sys.stdout.flush()  # whoever reads from a pipe wants it now
        if self._left is not None:
            self._left -= 1
        return self._left != 0


def text_line(entry: "Entry") -> str:
    """Return an entry as one line for people."""
    from bus.codec import decode
    from bus.errors import UndecodableError
    from bus.subjects import names
    from deploy.cli.summary import summary

    try:
        shown = "/".join(names(entry.subject))
    except ValueError:
        shown = entry.subject
    kind, text = "deleted", ""
    if entry.payload:
        try:
            event = decode(entry.payload)
        except UndecodableError as error:
            kind, text = "undecodable", error.reason
        else:
            kind, text = event.type, summary(event.data)
    return clean(f"{instant(entry.stored_at)}  {shown}  {kind}  {text}".rstrip())


def json_line(entry: "Entry") -> str:
    """Return the event as it was published, on one line; what is no event is wrapped with its place and the reason."""
    import orjson

    from bus.codec import decode
    from bus.errors import UndecodableError

    wrapped: dict[str, object] = {"stream": entry.stream, "sequence": entry.seq, "subject": entry.subject}
    if not entry.payload:
        return orjson.dumps(wrapped | {"deleted": True}).decode()
    try:
        decode(entry.payload)
        if b"\n" not in entry.payload:
            return entry.payload.decode()
        return orjson.dumps(orjson.loads(entry.payload)).decode()
    except (UndecodableError, orjson.JSONDecodeError) as error:
        payload = base64.b64encode(entry.payload).decode()
        return orjson.dumps(wrapped | {"undecodable": str(error), "payload_base64": payload}).decode()
