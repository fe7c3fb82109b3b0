"""Conversion of what commands print with --json to what a page shows, with a function for each kind."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from squeeze.engine.report import settings_in_words
from squeeze.recipes.reports.page_data import Estimate, Matrix, Shown, parts_of, place
from squeeze.recipes.reports.quality import Record, accuracy_of, compared, estimates, evaluated, quality_of, scores

__all__ = ["KINDS", "Record", "kind_of"]


def kind_of(record: Record) -> str:
    """Return the key of KINDS that a record has, or an empty string if it is not a report."""
    return next((key for key in KINDS if key in record), "")


def _model(records: Sequence[Record]) -> list[Shown]:
    """Convert reports of quantize, prune, factorize, and of each pass of apply."""
    return [_pass(record, f"{number}. " if len(records) > 1 else "") for number, record in enumerate(records, 1)]


def _pass(record: Record, number: str) -> Shown:
    name, raw = f"{number}{Path(record['target']).name}", record["raw_bytes"]
    packed = record.get("packed")
    before, after = packed or (raw, record["stored_bytes"])
    bits = {layer["name"]: layer["bits"] for layer in record["layers"]}
    sizes = record.get("parts") or _of_layers(record)
    quality = record.get("after") or {}
    facts = list(settings_in_words(record["settings"]).items())
    row = {
        "run": name,
        "method": record["method"],
        "bytes": after,
        "share": _share(after, before),
        "bits": record["bits_per_weight"],
        "seconds": record["seconds"],
        **quality_of(quality),
        **accuracy_of(record),
    }
    return Shown(
        name=name,
        lead=f"{record['method']}, format {record['format']}: {before:,} bytes become {after:,}"
        f"{' in all files, packed' if packed else ''}{_percent(after, before)}, {record['bits_per_weight']:.3f} bits a "
        f"weight of {len(record['layers'])} matrices, {record['bits_per_parameter']:.3f} a parameter of the whole.",
        warnings=tuple(record["fallbacks"]),
        left=tuple(_by_reason(record["left"])),
        facts=(("source", record["source"]), *facts, ("time", f"{record['seconds']:.0f} s")),
        matrices=tuple(map(_layer, record["layers"])),
        parts=parts_of(sizes, bits),
        quality=(
            *estimates(record.get("before") or {}, "before"),
            *estimates(quality, "after"),
            *scores(record, "after", "before"),
        ),
        rows=(row,),
    )


def _of_layers(record: Record) -> dict[str, int]:
    """Return bytes by module, for reports that list no other modules."""
    sizes = {
        layer["name"]: round(layer["bits"] * layer["shape"][0] * layer["shape"][1] / 8) for layer in record["layers"]
    }
    rest = record["stored_bytes"] - sum(sizes.values())
    return sizes | ({"all else": rest} if rest > 0 else {})


def _layer(layer: Record) -> Matrix:
    number, matrix = place(layer["name"])
    rows, columns = layer["shape"]
    about = [
        ("method", layer["method"]),
        ("shape", f"{rows} x {columns}"),
        ("calibration tokens", f"{layer['tokens']:,}"),
    ]
    about += [("pattern", layer["pattern"])] if layer.get("pattern") else []
    values = {key: layer.get(key) for key in ("error", "bits", "sparsity", "rank", "seconds")}
    return Matrix(
        name=layer["name"],
        layer=number,
        matrix=matrix,
        about=tuple(about),
        values=values,
        notes=tuple(layer["notes"]),
        histogram=layer.get("histogram") or {},
    )


def _by_reason(left: dict[str, str]) -> Iterable[str]:
    for reason in dict.fromkeys(left.values()):
        names = [name for name, why in left.items() if why == reason]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"{', '.join(names[:4])}{more}: {reason}"


def _evaluated(records: Sequence[Record]) -> list[Shown]:
    """Convert results of eval."""
    return [evaluated(record) for record in records]


def _compared(records: Sequence[Record]) -> list[Shown]:
    """Convert results of compare."""
    return [compared(record) for record in records]


def _tensors(records: Sequence[Record]) -> list[Shown]:
    """Convert results of pack, unpack, verify and inspect."""
    return [_one_of_tensors(record) for record in records]


def _one_of_tensors(record: Record) -> Shown:
    tensors = record["tensors"]
    raw, coded = (sum(tensor[key] for tensor in tensors) for key in ("raw", "coded"))
    raw, coded = record.get("raw_size", raw), record.get("coded_size", coded)
    bits = {tensor["name"]: _bits(tensor) for tensor in tensors}
    name = Path(record.get("output") or record["input"]).name
    quantised = record.get("quantised") or {}
    verb = {"pack": "become", "unpack": "are restored from", "verify": "were verified in"}.get(
        str(record.get("command")), "take"
    )
    return Shown(
        name=name,
        lead=f"{raw:,} bytes {verb} {coded:,}{_percent(coded, raw)}, in {len(tensors):,} tensors.",
        warnings=tuple(f"{line}; left out" for line in record.get("left_out", ())),
        left=tuple(record.get("notes", ())),
        facts=tuple(settings_in_words(quantised).items()),
        matrices=tuple(map(_tensor, tensors)),
        parts=parts_of({tensor["name"]: tensor["coded"] for tensor in tensors}, bits),
        rows=({"run": name, "bytes": coded, "share": _share(coded, raw), "seconds": record.get("seconds")},),
    )


def _tensor(tensor: Record) -> Matrix:
    number, matrix = place(tensor["name"])
    gap = tensor.get("gap")
    fields = [(f"entropy of {name}", f"{bits:.3f} bits") for name, bits in tensor.get("fields", {}).items()]
    sizes = [("raw bytes", f"{tensor['raw']:,}"), ("coded bytes", f"{tensor['coded']:,}")]
    shape = "x".join(map(str, tensor["shape"]))
    return Matrix(
        name=tensor["name"],
        layer=number,
        matrix=matrix,
        about=(("coding", tensor["coding"]), ("type", tensor["dtype"]), ("shape", shape), *sizes, *fields),
        values={
            "bits": _bits(tensor),
            "share": _share(tensor["coded"], tensor["raw"]),
            "gap": None if gap is None else gap / 100,
        },
    )


def _bits(tensor: Record) -> float:
    values = 1
    for size in tensor["shape"]:
        values *= size
    return float(8 * tensor["coded"] / max(values, 1))


def _caches(records: Sequence[Record]) -> list[Shown]:
    """Convert results of kv-eval to one run with a row each."""
    rows, quality = [], []
    for record in records:
        cost, distance = record.get("cost") or {}, record["distance"]
        name = f"{record['policy']}, {record['context']:,} tokens" + (
            f", {record['way']}" if record["way"] != "one pass" else ""
        )
        intervals = distance.get("intervals") or {}
        if record["bits"]:
            bounds = [bound / 100 for bound in intervals.get("percent", ())]
            quality.append(Estimate("perplexity above full precision's", name, record["percent"] / 100, *bounds))
            quality.append(Estimate("KL, nats a token", name, distance["kl"], *intervals.get("kl", ())))
        rows.append(
            {
                "run": record["policy"],
                "method": record["way"],
                "context": record["context"],
                "bits": record["bits"],
                "perplexity": distance["perplexity"],
                "rise": record["percent"] / 100,
                "kl": distance["kl"],
                "cache": cost.get("bytes"),
                "peak": cost.get("peak"),
                "milliseconds": 1000 * cost["seconds"] if cost else None,
            }
        )
    lead = f"{len({record['policy'] for record in records})} policies at {_counted(records, 'context')}."
    return [Shown(name="KV cache policies", lead=lead, quality=tuple(quality), rows=tuple(rows))]


def _counted(records: Sequence[Record], key: str) -> str:
    values = sorted({record[key] for record in records})
    return f"context{'s' * (len(values) > 1)} of {', '.join(f'{value:,}' for value in values)} tokens"


def _files(records: Sequence[Record]) -> list[Shown]:
    """Convert results of bench to one run with a row each."""
    good = [record for record in records if not record.get("error")]
    bad = [f"{record['file']}: {record['tool']}: {record['error']}" for record in records if record.get("error")]
    rows = [_file_row(record, Path(record["file"]).name) for record in good]
    tools = {tool: list(group) for tool, group in groupby(sorted(good, key=_tool), _tool)}
    files = {record["file"] for record in records}
    if len(files) > 1:
        whole = [group for group in tools.values() if len(group) == len(files)]
        keys = ("raw_size", "coded_size", "compress_seconds", "decompress_seconds")
        sums = [{key: sum(one[key] for one in group) for key in keys} | {"tool": _tool(group[0])} for group in whole]
        rows = [*(_file_row(one, "all files") for one in sums), *rows]
    lead = f"{len(files)} file{'s' * (len(files) > 1)} through {len(tools)} tools, every round trip compared."
    return [Shown(name="files", lead=lead, warnings=tuple(bad), rows=tuple(rows))]


def _tool(record: Record) -> str:
    return str(record["tool"])


def _file_row(record: Record, name: str) -> Record:
    raw = record["raw_size"]
    rates = (raw / 1e6 / record[key] if record[key] else None for key in ("compress_seconds", "decompress_seconds"))
    row = {
        "tool": record["tool"],
        "file": name,
        "bytes": record["coded_size"],
        "share": _share(record["coded_size"], raw),
    }
    return row | dict(zip(("compressing", "decompressing"), rates, strict=True))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _percent(part: float, whole: float) -> str:
    return f" ({100 * part / whole:.1f} %)" if whole else ""


def _runs(records: Sequence[Record]) -> list[Shown]:
    return [_run(record) for record in records]


def _run(record: Record) -> Shown:
    raw, coded, seconds = record["raw_size"], record["coded_size"], record["seconds"]
    more = record["failed"] - len(record["failures"])
    warnings = [f"{name}: {error}" for name, error in record["failures"]]
    share = f" ({100 * coded / raw:.1f} %)" if raw else ""
    rows = [
        {"run": f"{count:,} files .{ending}", "bytes": size, "share": size / before if before else None}
        for ending, (count, before, size) in sorted(record["endings"].items(), key=lambda one: -one[1][2])
    ]
    facts = {
        "failed": f"{record['failed']:,}",
        "time": f"{seconds:.0f} s",
        "speed": f"{raw / 1e6 / seconds:.2f} MB/s raw" if seconds else "-",
        "processors": f"{record['processors']:g}",
        "calls": f"{record['calls']:,}",
        "calls whose worker was lost": f"{record['lost_calls']:,}",
    }
    return Shown(
        name=record["command"],
        lead=f"{record['files']:,} files: {raw:,} bytes raw, {coded:,} compressed{share}.",
        warnings=(*warnings, *([f"and {more:,} more"] if more > 0 else [])),
        facts=tuple(facts.items()),
        parts=parts_of({ending: size for ending, (_, _, size) in record["endings"].items()}, {}),
        rows=tuple(rows),
    )


KINDS: dict[str, Callable[[Sequence[Record]], list[Shown]]] = {  # by a key that only these records have
    "layers": _model,
    "tensors": _tensors,
    "generations": _compared,
    "policy": _caches,
    "tool": _files,
    "perplexity": _evaluated,
    "tasks": _evaluated,
    "endings": _runs,
}
