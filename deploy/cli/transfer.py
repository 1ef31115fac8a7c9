"""``gpubus export`` and ``gpubus import``: an incident as a file, and back on a bus of its own."""

import shutil
from pathlib import Path
from typing import Annotated, Final

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import InputError
from deploy.cli.when import cut_of, instant_of, nanoseconds_since_epoch, split_moment

REDACTED: Final = ".redacted"
"""Marks a store whose log has been redacted: what is chained by digests of the original cannot hold in it."""

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file, such as incident.log.gz.")]


def export_command(
    file: FileArgument,
    *,
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="First decisions: a time or an age. [default: all]")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="WHEN", help="Last: a time, an age or a sequence of the ledger.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace all text but words of our own and GPU models.")
    ] = False,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Write a slice of the log to a file that replays on any machine, without the cluster.

    It holds the decisions of that time and all that led to them. A redacted file replays just as well: names become numbers in
    their order, as ties are broken by it, and times and amounts stay. Digests are made anew and prove nothing of the original.

    \b
    Examples:
      gpubus export incident.log.gz --from 2h --to 1h --redact
      gpubus export everything.log.gz --store DIR
    """
    if file.exists():
        raise InputError(f"{file} exists: name a new file")
    redacted = redact or (store is not None and (store / REDACTED).exists())
    count = run(_export(file, since, until, redact=redact, redacted=redacted, nats=nats, store=store))
    if as_json:
        from deploy.cli.output import print_json

        print_json({"file": str(file), "records": count, "redacted": redacted})
    else:
        print(f"{count} messages in {file}, {file.stat().st_size / 2**20:.1f} MiB: `gpubus import {file} --store DIR`")


async def _export(
    file: Path,
    since: str | None,
    until: str | None,
    *,
    redact: bool,
    redacted: bool,
    nats: list[str] | None,
    store: Path | None,
) -> int:
    from deploy.replay import logfile
    from deploy.replay.transfer import collect, parts_of

    since_ns = nanoseconds_since_epoch(instant_of(since, "--from")) if since is not None else None
    async with open_bus(nats, store) as bus:
        cut = await cut_of(bus, *split_moment(until)) if until is not None else None
        if since_ns is not None and cut is not None and cut.time_ns is not None and since_ns > cut.time_ns:
            raise InputError(f"--from {since} is later than --to {until}: name the earlier moment with --from")
        entries = await collect(bus, since_ns, cut)
    if redact:
        from deploy.replay.redaction import redact as without_names

        entries = without_names(entries, parts_of(entries))
    try:
        logfile.write(file, entries, redacted=redacted)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None
    return len(entries)


def import_command(
    file: FileArgument,
    *,
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="A new directory for a bus of its own.")],
    as_json: JsonOption = False,
) -> None:
    """Put an exported slice of the log on a bus of its own, which every reading command can then ask.

    \b
    Example:
      gpubus import incident.log.gz --store incident
      gpubus replay --verify --store incident
    """
    if store.exists():
        raise InputError(f"--store {store} exists: name a new directory")
    count, redacted = run(_import(file, store))
    if as_json:
        from deploy.cli.output import print_json

        print_json({"store": str(store), "records": count, "redacted": redacted})
    else:
        print(f"{count} messages{', redacted' if redacted else ''}. Ask them: gpubus replay --verify --store {store}")


async def _import(file: Path, store: Path) -> tuple[int, bool]:
    from bus.connection import Bus
    from bus.streams import StreamLimits, ensure_streams
    from deploy.local.server import LocalBus
    from deploy.replay import logfile
    from deploy.replay.transfer import put_back

    try:
        header, entries = logfile.read(file)
    except (logfile.LogFileError, OSError) as error:
        raise InputError(str(error)) from None
    # A part of a log would answer as if it were the whole: it gets its name when it is complete.
    part = store.with_name(store.name + ".part")
    if part.exists():
        raise InputError(
            f"{part} is left by an import that was killed, or another import is at work: remove it if none is"
        )
    try:
        # What others were told and when they have to look again is no part of the past.
        async with LocalBus(part) as local, await Bus.connect(local.urls, name="gpubus-import") as bus:
            await ensure_streams(bus, StreamLimits(ledger_revisions=-1))
            count = await put_back(bus, entries)
        if header.redacted:
            (part / REDACTED).touch()
        part.rename(store)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, logfile.LogFileError | OSError):
            raise InputError(str(error)) from None
        raise
    return count, header.redacted
