"""Generate logs of all kinds in turn, as documents of many sizes."""

from collections.abc import Callable, Iterator
from itertools import count

from training.generate import build_logs, service_logs, system_logs
from training.generate.world import World

FORMATS: dict[str, Callable[[World], Iterator[str]]] = {
    "syslog": system_logs.syslog,
    "sshd": system_logs.sshd,
    "postfix": system_logs.postfix,
    "kernel": system_logs.kernel,
    "journal": system_logs.journal,
    "firewall": system_logs.firewall,
    "cron": system_logs.cron,
    "access": service_logs.access,
    "apache-error": service_logs.apache_error,
    "json-lines": service_logs.json_lines,
    "java": service_logs.java,
    "python": service_logs.python,
    "storage": service_logs.storage,
    "logfmt": service_logs.logfmt,
    "containers": service_logs.containers,
    "database": service_logs.database,
    "git-log": build_logs.git_log,
    "diff": build_logs.diff,
    "pytest": build_logs.pytest,
    "compiler": build_logs.compiler,
    "integration": build_logs.integration,
}


def documents(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (format, document) without end. Sizes are 1 KB to 200 KB, uniform in their logarithm."""
    for number in count():
        for place, (name, lines) in enumerate(FORMATS.items()):
            world = World(seed * 1_000_003 + number * len(FORMATS) + place)
            yield name, filled(lines(world), int(1000 * 200 ** world.random.random()))


def filled(lines: Iterator[str], size: int) -> bytes:
    """Join lines up to a size in bytes."""
    taken, total = [], 0
    while total < size:
        taken.append(next(lines))
        total += len(taken[-1]) + 1
    return ("\n".join(taken) + "\n").encode()
