"""Small JSON records to measure priors with: generated from a seed, or made of the paragraphs of a text."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

_SERVICES = {
    "checkout": ("/v2/carts/{id}/items", "/v2/orders/{id}", "/v2/orders"),
    "accounts": ("/v1/users/{id}", "/v1/users/{id}/sessions", "/v1/login"),
    "search": ("/v3/search?q={word}&page={page}", "/v3/suggest?q={word}"),
    "media": ("/img/{hex}.webp", "/video/{hex}/segments/{page}"),
}
_AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605",
    "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "okhttp/4.12.0",
    "python-requests/2.32.3",
)
_FIRST = ("Ada", "Boris", "Chen", "Dalia", "Emeka", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kavya", "Lena", "Mateo")
_LAST = ("Almeida", "Brandt", "Castillo", "Dubois", "Eriksen", "Fischer", "Gupta", "Haddad", "Ito", "Jansen", "Novak")
_CITIES = ("Berlin,DE", "Lyon,FR", "Porto,PT", "Osaka,JP", "Lagos,NG", "Austin,US", "Leeds,GB", "Pune,IN", "Gdansk,PL")
_WORDS = ("lamp", "desk", "chair", "green", "oak", "small", "round", "light", "cable", "holder", "stand", "frame")
_TROUBLES = (
    "upstream {service} timed out after {ms} ms, retry {page} of 3",
    "connection reset by peer while reading response header from {host}:8443",
    "rate limit exceeded for client {id}: {page} requests over quota",
    "validation failed: field '{word}' must not be empty",
)


def events(count: int, seed: int) -> list[bytes]:
    """Access-log events of a web shop, one JSON object each, with identifiers and times that nobody can predict."""
    chance = random.Random(seed)
    moment = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=chance.random() * 90)
    users = [(chance.randrange(10**6, 10**7), chance.choice(_FIRST), chance.choice(_LAST)) for _ in range(400)]
    out = []
    for _ in range(count):
        moment += timedelta(milliseconds=chance.expovariate(1 / 900))
        out.append(json.dumps(_event(chance, moment, users), separators=(",", ":")).encode())
    return out


def _event(chance: random.Random, moment: datetime, users: list[tuple[int, str, str]]) -> dict:
    service = chance.choices(list(_SERVICES), (4, 3, 6, 5))[0]
    number, first, last = chance.choice(users)
    city, country = chance.choice(_CITIES).split(",")
    host = f"{service}-{chance.choice('abc')}{chance.randrange(12):02d}.eu-west.example.net"
    milliseconds = round(chance.lognormvariate(3.5, 1.0), 2)
    values = {
        "id": chance.randrange(10**5, 10**7),
        "hex": f"{chance.getrandbits(64):016x}",
        "word": "+".join(chance.choices(_WORDS, k=chance.randint(1, 3))),
        "page": chance.randint(1, 9),
        "service": service,
        "host": host,
        "ms": chance.randrange(200, 5000),
    }
    status = chance.choices((200, 201, 204, 304, 400, 404, 429, 503), (70, 6, 4, 8, 4, 4, 2, 2))[0]
    event = {
        "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": "info" if status < 400 else "warn" if status < 500 else "error",
        "service": service,
        "host": host,
        "trace_id": f"{chance.getrandbits(64):016x}",
        "request": {
            "method": chance.choices(("GET", "POST", "PUT", "DELETE"), (8, 3, 1, 1))[0],
            "path": chance.choice(_SERVICES[service]).format(**values),
            "status": status,
            "duration_ms": milliseconds,
            "bytes": int(chance.lognormvariate(7.5, 1.4)),
        },
        "user": {"id": number, "name": f"{first} {last}", "email": f"{first}.{last}@example.com".lower()},
        "geo": {"city": city, "country": country},
        "user_agent": chance.choice(_AGENTS),
    }
    if status >= 400:
        event["message"] = chance.choice(_TROUBLES).format(**values)
    return event


def articles(text: Path, count: int) -> list[bytes]:
    """Paragraphs of a WikiText file as JSON objects with the heading above them, about 500 bytes each."""
    return [record for record, _ in zip(_paragraphs(text), range(count), strict=False)]


def _paragraphs(text: Path) -> Iterator[bytes]:
    headings = ["", ""]
    for line in map(str.strip, text.read_text(errors="replace").splitlines()):
        if line.startswith("= "):
            deep = line.startswith("= = ")
            headings[deep] = line.strip("= ")
        elif len(line) > 300:
            record = {"title": headings[0], "section": headings[1], "text": line[:420], "length": len(line)}
            yield json.dumps(record, ensure_ascii=False).encode()
