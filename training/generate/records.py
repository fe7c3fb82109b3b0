"""Generate tables as CSV and records as JSON: invented columns, dependent values, several layouts."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

from training.generate.world import World

Field = Callable[[World, int], Any]


def tables(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (layout, CSV document) without end."""
    for number in count():
        world = World(seed * 1_000_003 + number)
        columns = _columns(world)
        separator = world.some((",", ",", ";", "\t"))
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator=world.some(("\n", "\r\n")),
                            quoting=world.some((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)))  # fmt: skip
        writer.writerow(columns)
        size, row = int(1000 * 200 ** world.random.random()), 0
        while text.tell() < size:
            row += 1
            world.tick()
            writer.writerow([field(world, row) for field in columns.values()])
        yield "tsv" if separator == "\t" else "csv", text.getvalue().encode()


def records(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (layout, JSON document) without end: event lines, API answers, GeoJSON, settings, package locks."""
    makers: dict[str, Callable[[World, int], str]] = {
        "events": _events, "answer": _answer, "geojson": _geojson, "settings": _settings, "lock": _lock,
    }  # fmt: skip
    for number in count():
        for place, (name, maker) in enumerate(makers.items()):
            world = World(seed * 1_000_003 + number * len(makers) + place)
            yield name, (maker(world, int(1000 * 100 ** world.random.random())) + "\n").encode()


def _columns(world: World) -> dict[str, Field]:
    nouns = [world.noun() for _ in range(6)]
    scale = 10 ** world.random.uniform(0, 5)
    places = [
        f"{world.noun().capitalize()}{world.random.choice(('ville', 'ton', ' City', 'burg', 'ford'))}"
        for _ in range(30)
    ]
    decimals, start = world.random.randrange(5), world.number(90_000)
    walk = [scale]

    def step(world: World, row: int) -> float:
        walk[0] *= 1 + world.random.gauss(0, 0.01)
        return round(walk[0], decimals)

    optional: list[tuple[str, Field]] = [
        (world.some(("date", "Date", "day")), lambda world, row: f"{world.clock:%Y-%m-%d}"),
        (world.some(("timestamp", "time")), lambda world, row: f"{world.clock:%Y-%m-%dT%H:%M:%SZ}"),
        (world.some(("name", "customer", "player")), lambda world, row: world.person()),
        (world.some(("city", "location", "station")), lambda world, row: world.some(places)),
        (world.some(("status", "state")), lambda world, row: world.some(("active", "pending", "closed", "failed"))),
        ("email", lambda world, row: f"{world.some(world.users)}@{world.domain}"),
        (f"{nouns[0]}_count", lambda world, row: world.number(5000)),
        (f"{nouns[1]}_rate", lambda world, row: f"{world.random.random():.{decimals + 1}f}"),
        (f"{nouns[2]}_price", step),
        (f"{nouns[3]}", lambda world, row: round(world.random.gauss(scale, scale / 9), decimals)),
        ("latitude", lambda world, row: round(world.random.uniform(-60, 70), 6)),
        ("description", lambda world, row: world.message()),
        (world.some(("uuid", "key")), lambda world, row: world.uuid()),
        (f"is_{nouns[4]}", lambda world, row: world.some(("True", "False", ""))),
    ]
    chosen = sorted(world.random.sample(range(len(optional)), world.random.randint(3, 10)))
    return {"id": lambda world, row: start + row, **dict(optional[place] for place in chosen)}


def _person(world: World, number: int) -> dict[str, Any]:
    name = world.person()
    created = world.tick() - timedelta(days=world.number(900))
    record: dict[str, Any] = {
        "id": number, "name": name, "username": name.lower().replace(" ", "_"), "email": f"{name.split()[0].lower()}@{world.domain}",
        "url": f"https://{world.domain}{world.path()}", "created_at": f"{created:%Y-%m-%dT%H:%M:%SZ}", "verified": world.random.random() < 0.3,
        "followers": world.number(90_000), "score": round(world.random.random(), 4), "bio": world.message() if world.random.random() < 0.5 else None,
        "tags": [world.noun() for _ in range(world.random.randrange(5))], "address": {"city": world.noun().capitalize(), "zip": f"{world.number(99_999):05}"},
    }  # fmt: skip
    return {key: value for key, value in record.items() if _has(world, key)}


def _has(world: World, key: str) -> bool:
    """Return True if a document's records have a key; the answer is the same throughout the document."""
    return (len(key) * 7 + ord(key[0]) * 13 + len(world.domain)) % 5 > 0


def _events(world: World, size: int) -> str:
    names = [f"{world.noun()}_{world.verb()}" for _ in range(8)]
    lines: list[str] = []
    while sum(map(len, lines[-1:])) * len(lines) < size and len(lines) < 2000:
        event = {"event": world.some(names), "time": int(world.tick().timestamp() * 1000), "user_id": world.hexes(12), "properties": {
            "path": world.path(), "ip": world.some(world.addresses), world.noun(): world.number(500), "version": f"{world.number(9)}.{world.number(20)}.0"}}  # fmt: skip
        lines.append(json.dumps(event, separators=(",", ":")))
    return "\n".join(lines)


def _answer(world: World, size: int) -> str:
    start = world.number(9e6)
    items = [_person(world, start + number) for number in range(1, max(2, size // 350))]
    total = len(items) * world.random.randint(1, 9)
    whole = {
        "data": items,
        "meta": {"total": total, "page": 1, "per_page": len(items)},
        "links": {"next": f"https://{world.domain}{world.path()}"},
    }
    indent = world.some((None, 2, 4))
    return json.dumps(
        whole if world.random.random() < 0.7 else items, indent=indent, separators=None if indent else (",", ":")
    )


def _geojson(world: World, size: int) -> str:
    features = []
    for number in range(max(1, size // 700)):
        x, y, ring = world.random.uniform(-170, 170), world.random.uniform(-60, 70), []
        for _ in range(world.random.randint(5, 40)):
            x, y = x + world.random.gauss(0, 0.05), y + world.random.gauss(0, 0.05)
            ring.append([round(x, 6), round(y, 6)])
        properties = {
            "name": f"{world.noun().capitalize()} {world.noun()}",
            "id": number,
            "area": round(world.random.expovariate(0.01), 2),
            "type": world.noun(),
        }
        features.append(
            {
                "type": "Feature",
                "properties": properties,
                "geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]},
            }
        )
    return json.dumps({"type": "FeatureCollection", "features": features}, indent=world.some((None, None, 2)))


def _settings(world: World, size: int) -> str:
    def group(depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in range(world.random.randint(2, 7)):
            name = world.some(
                (
                    world.noun(),
                    f"{world.noun()}{world.noun().capitalize()}",
                    f"{world.noun()}_{world.noun()}",
                    f"max-{world.noun()}",
                )
            )
            made[name] = group(depth - 1) if depth and world.random.random() < 0.4 else world.some(
                (True, world.number(5000), world.noun(), False, world.file(), None, [world.noun() for _ in range(3)], world.random.random()))  # fmt: skip
        return made

    return json.dumps(
        {world.noun(): group(3) for _ in range(max(1, size // 600))}, indent=world.some(("  ", "  ", "    ", "\t"))
    )


def _lock(world: World, size: int) -> str:
    packages: dict[str, Any] = {"": {"name": world.noun(), "version": "1.0.0"}}
    for _ in range(max(1, size // 380)):
        name, version = (
            f"{world.some(('', '@' + world.noun() + '/'))}{world.noun()}-{world.noun()}",
            f"{world.number(9)}.{world.number(20)}.{world.number(9)}",
        )
        packages[f"node_modules/{name}"] = {
            "version": version, "resolved": f"https://registry.npmjs.org/{name}/-/{name.rpartition('/')[2]}-{version}.tgz",
            "integrity": "sha512-" + world.hexes(86) + "==", "dev": True, "license": world.some(("MIT", "ISC", "Apache-2.0")),
            "dependencies": {f"{world.noun()}-{world.noun()}": f"^{world.number(9)}.{world.number(20)}.0" for _ in range(world.random.randrange(4))},
            "engines": {"node": f">={world.some((18, 20, 14, 22))}"},
        }  # fmt: skip
    return json.dumps(
        {"name": world.noun(), "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": packages},
        indent=2,
    )
