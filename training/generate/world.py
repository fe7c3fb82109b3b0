"""The invented world of a generated document: its hosts, people, services, words and clock."""

import random
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
FIRST, LAST, NOUNS, VERBS, ADJECTIVES = (
    _WORDS[name].split() for name in ("first", "last", "nouns", "verbs", "adjectives")
)
IRREGULAR = {
    verb: (past, present) for verb, past, present in (entry.split(":") for entry in _WORDS["irregular"].split())
}
REASONS, AGENTS = (_WORDS[name].strip().splitlines() for name in ("reasons", "agents"))


def tenses(verb: str) -> tuple[str, str]:
    """Return the past and the present participle of a verb."""
    stem = verb.removesuffix("e")
    return IRREGULAR.get(verb, (stem + "ed", stem + "ing"))


class World:
    """The fields of one document. Choices are skewed: early items of a list are frequent, as in real logs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = datetime(2014, 1, 1, tzinfo=UTC) + timedelta(seconds=self.random.randrange(12 * 365 * 86_400))
        self.pace = 10 ** self.random.uniform(-2.5, 1.7)  # seconds a line
        self.domain = f"{self.noun()}{self.random.choice(('', '-' + self.noun()))}.{self.some(['com', 'net', 'org', 'io', 'dev'])}"
        self.hosts = [self.host() for _ in range(self.random.randint(1, 9))]
        self.addresses = [self.address() for _ in range(self.random.randint(3, 60))]
        self.users = [self.user() for _ in range(self.random.randint(2, 15))]
        self.services = [self.service() for _ in range(self.random.randint(2, 9))]
        self.paths = [self.route() for _ in range(self.random.randint(4, 40))]
        self.agents = [self.agent() for _ in range(self.random.randint(2, 9))]
        self.messages = [self.template() for _ in range(self.random.randint(4, 24))]

    def tick(self) -> datetime:
        """Advance the clock by a random step and return it."""
        self.clock += timedelta(seconds=self.random.expovariate(1 / self.pace))
        return self.clock

    def some(self, items: Sequence[T]) -> T:
        """Choose an item, early ones more often."""
        return items[int(len(items) * self.random.random() ** 2.2)]

    def number(self, most: float) -> int:
        """Return a number up to `most`, uniform in its number of digits."""
        return int(most ** self.random.random())

    def noun(self) -> str:
        return self.random.choice(NOUNS)

    def verb(self) -> str:
        return self.random.choice(VERBS)

    def hexes(self, count: int) -> str:
        """Return `count` random hexadecimal digits."""
        return f"{self.random.getrandbits(4 * count):0{count}x}"

    def uuid(self) -> str:
        digits = self.hexes(32)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

    def address(self) -> str:
        """Return an IPv4 address, often of a private network."""
        draw = self.random.randrange
        private = (f"10.{draw(4)}.{draw(256)}.{draw(1, 255)}", f"192.168.{draw(3)}.{draw(1, 255)}")
        public = f"{draw(1, 223)}.{draw(256)}.{draw(256)}.{draw(1, 255)}"
        return self.random.choice((*private, public, public))

    def host(self) -> str:
        kind = self.some(("web", "db", "app", "node", "cache", "mail", "worker", "srv", "ip-10-0"))
        return f"{kind}{self.some(('-', ''))}{self.random.randint(1, 40):02}"

    def user(self) -> str:
        first, last = self.random.choice(FIRST), self.random.choice(LAST)
        return self.random.choice(
            (first, f"{first}.{last}", f"{first[0]}{last}", f"{last}{self.random.randrange(100)}")
        )

    def person(self) -> str:
        return f"{self.random.choice(FIRST).capitalize()} {self.random.choice(LAST).capitalize()}"

    def service(self) -> str:
        tail = self.some(("service", "api", "worker", "server", "manager", "controller", "proxy", "d", "agent"))
        return f"{self.noun()}-{tail}"

    def route(self) -> str:
        """Return the path of a request, with `{}` for an identifier."""
        parts = [self.noun() + self.some(("s", "")) for _ in range(self.random.randint(1, 3))]
        prefix = self.some(("/api/v1", "", "/v2", "/static", "/admin", "/wp-content", "/assets"))
        tail = self.some(("", "/{}", ".html", "/{}/edit", ".js", ".css", ".png", "?page={}", "?id={}&sort=asc", ".php"))
        return f"{prefix}/{'/'.join(parts)}{tail}"

    def path(self) -> str:
        """Return one of the document's routes with an identifier filled in."""
        return self.some(self.paths).replace("{}", str(self.number(100_000)))

    def agent(self) -> str:
        return self.random.choice(AGENTS).format(self.random.randint(10, 140))

    def file(self) -> str:
        folder = self.some(("/var/lib", "/usr/share", "/opt", "/home/" + self.some(self.users), "/srv", "/tmp", "/etc"))
        tail = self.some(("log", "json", "db", "conf", "tmp", "yaml", "dat", "gz"))
        return f"{folder}/{self.noun()}/{self.noun()}.{tail}"

    def template(self) -> str:
        """Return a program's message with the fields `{n}`, `{m}`, `{u}`, `{id}`, `{ms}`, `{f}`, `{ip}` and `{why}`."""
        verb, noun, other = self.verb(), self.noun(), self.noun()
        past, _ = tenses(verb)
        _, doing = tenses(self.verb())
        adjective = self.random.choice(ADJECTIVES)
        return self.random.choice((
            f"{verb.capitalize()} {noun} {{id}} in {{ms}} ms",
            f"{past.capitalize()} {{n}} {noun}s from {other}",
            f"Failed to {verb} {noun}: {{why}}",
            f"{noun.capitalize()} {{id}} is {adjective}, will {verb} {other}",
            f"{noun} {past} by user {{u}} from {{ip}}",
            f"Could not {verb} {{f}}: {{why}}",
            f"{adjective.capitalize()} {noun} found, {doing} {other} {{n}} of {{m}}",
            f"Starting {noun} {other} (pid={{n}}, {noun}={{id}})",
            f"{other}: {verb} {noun} took {{ms}}ms, {{n}} {self.noun()}s {past}",
            f"{noun.capitalize()}{other.capitalize()}.{verb}() called with {self.noun()}={{n}}",
            f"[{noun}] {verb} {adjective} {other} {{id}} size={{n}}",
            f"Connection to {{ip}}:{{n}} {past} ({{why}})",
        ))  # fmt: skip

    def message(self) -> str:
        """Return one of the document's messages with its fields filled in."""
        draw = self.random
        return self.some(self.messages).format(
            n=self.number(50_000), m=self.number(90_000), u=self.some(self.users), id=self.hexes(8), ms=self.number(9_000), f=self.file(),
            ip=self.some(self.addresses), why=draw.choice(REASONS),
        )  # fmt: skip
