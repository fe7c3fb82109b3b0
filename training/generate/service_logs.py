"""Generate logs of servers and applications: web servers, JSON lines, Java and Python traces, storage, containers."""

import json
from collections.abc import Iterator

from training.generate.world import REASONS, World

LEVELS = ("INFO", "DEBUG", "WARN", "ERROR", "TRACE")


def access(world: World) -> Iterator[str]:
    timed, site = world.random.random() < 0.3, f"https://{world.domain}"
    while True:
        path, status = world.path(), world.some((200, 304, 404, 301, 302, 500, 403, 206, 499, 502))
        method = world.some(("GET", "POST", "HEAD", "PUT", "DELETE"))
        referrer = world.some(("-", site + "/", site + world.path(), "https://www.google.com/"))
        size = 0 if status in (304, 499) else world.number(60_000)
        user = world.some(("-", "-", "-", *world.users))
        line = (f'{world.some(world.addresses)} - {user} [{world.tick():%d/%b/%Y:%H:%M:%S +0000}] "{method} {path} HTTP/{world.some(("1.1", "2.0", "1.0"))}" '
                f'{status} {size} "{referrer}" "{world.some(world.agents)}"')  # fmt: skip
        yield f"{line} {world.random.expovariate(9):.3f}" if timed else line


def apache_error(world: World) -> Iterator[str]:
    while True:
        module, level = (
            world.some(("core", "php7", "proxy", "ssl", "authz_core", "mpm_event")),
            world.some(("error", "notice", "warn", "info")),
        )
        yield (f"[{world.tick():%a %b %d %H:%M:%S.%f %Y}] [{module}:{level}] [pid {world.number(30_000)}:tid {world.random.getrandbits(44)}] "
               f"[client {world.some(world.addresses)}:{world.random.randrange(1024, 65535)}] AH{world.number(9999):05}: {world.message()}, referer: https://{world.domain}{world.path()}")  # fmt: skip


def json_lines(world: World) -> Iterator[str]:
    names = world.random.sample(
        ("trace_id", "span_id", "user", "duration_ms", "status", "path", "host", "caller", "attempt", "region"), 5
    )
    clock, text = world.some((("ts", "msg"), ("time", "message"), ("timestamp", "message"), ("@timestamp", "event")))
    compact = (",", ":") if world.random.random() < 0.6 else (", ", ": ")
    while True:
        values = {
            "trace_id": world.hexes(32), "span_id": world.hexes(16), "user": world.some(world.users),
            "duration_ms": round(world.random.expovariate(0.02), world.random.randrange(4)), "status": world.some((200, 201, 404, 500)),
            "path": world.path(), "host": world.some(world.hosts), "caller": f"{world.noun()}/{world.noun()}.go:{world.number(900)}",
            "attempt": world.number(5), "region": world.some(("eu-west-1", "us-east-1", "ap-south-1")),
        }  # fmt: skip
        record: dict[str, object] = {
            "level": world.some(LEVELS).lower(),
            clock: f"{world.tick():%Y-%m-%dT%H:%M:%S.%fZ}",
            "service": world.some(world.services),
        }
        record[text] = world.message()
        record |= {name: values[name] for name in names if world.random.random() < 0.93}
        yield json.dumps(record, separators=compact)


def java(world: World) -> Iterator[str]:
    package = f"{world.some(('com', 'org', 'io'))}.{world.noun()}.{world.noun()}"
    classes = [f"{package}.{world.noun()}.{world.noun().capitalize()}{world.noun().capitalize()}" for _ in range(14)]
    threads = [
        "main",
        *(
            f"{world.some(('http-nio-8080-exec', 'pool-1-thread', 'scheduling', 'kafka-consumer'))}-{n}"
            for n in range(1, 9)
        ),
    ]
    while True:
        level = world.some(LEVELS)
        yield f"{world.tick():%Y-%m-%d %H:%M:%S},{world.clock.microsecond // 1000:03} {level:5} [{world.some(threads)}] {world.some(classes)} - {world.message()}"
        if level == "ERROR" and world.random.random() < 0.6:
            yield from _java_trace(world, classes)


def _java_trace(world: World, classes: list[str]) -> Iterator[str]:
    known = (
        "java.lang.NullPointerException",
        "java.lang.IllegalStateException",
        "java.io.IOException",
        "java.util.concurrent.TimeoutException",
        "java.sql.SQLException",
    )
    for cause in range(world.random.choice((1, 1, 2, 3))):
        start = "Caused by: " if cause else ""
        yield f"{start}{world.some((*known, world.some(classes) + 'Exception'))}: {world.message()}"
        for _ in range(world.random.randint(3, 18)):
            class_ = world.some(
                (
                    *classes,
                    "java.base/java.lang.Thread",
                    "java.base/java.util.concurrent.ThreadPoolExecutor",
                    "org.springframework.web.servlet.DispatcherServlet",
                )
            )
            method = world.verb() + world.some(("", world.noun().capitalize()))
            yield f"\tat {class_}.{method}({class_.rpartition('.')[2]}.java:{world.number(1500)})"
        if cause:
            yield f"\t... {world.number(60)} more"


def python(world: World) -> Iterator[str]:
    modules = [f"{world.noun()}.{world.noun()}" for _ in range(7)]
    style = world.random.randrange(3)
    while True:
        level, module = world.some(("INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")), world.some(modules)
        stamp = f"{world.tick():%Y-%m-%d %H:%M:%S},{world.clock.microsecond // 1000:03}"
        yield (
            f"{stamp} - {module} - {level} - {world.message()}",
            f"{level}:{module}:{world.message()}",
            f"[{stamp}] {level} in {module}: {world.message()}",
        )[style]
        if level in ("ERROR", "CRITICAL") and world.random.random() < 0.7:
            yield from python_trace(world, modules)


def python_trace(world: World, modules: list[str]) -> Iterator[str]:
    """Yield the lines of one traceback."""
    root = world.some(("/app", "/usr/lib/python3.12/site-packages", "/home/" + world.some(world.users) + "/src"))
    yield "Traceback (most recent call last):"
    for _ in range(world.random.randint(2, 9)):
        function, value = f"{world.verb()}_{world.noun()}", world.noun()
        yield f'  File "{root}/{world.some(modules).replace(".", "/")}.py", line {world.number(900)}, in {function}'
        call = f"self.{world.noun()}.{world.verb()}({value}, {world.noun()}={value}.{world.noun()})"
        yield f"    {world.some((f'return {call}', f'{value} = {call}', f'raise {world.noun().capitalize()}Error({value})', call))}"
        if world.random.random() < 0.3:
            yield "           " + "^" * world.random.randint(6, 30)
    error = world.some(
        (
            "KeyError",
            "ValueError",
            "TypeError",
            "AttributeError",
            "ConnectionError",
            "TimeoutError",
            "RuntimeError",
            "FileNotFoundError",
        )
    )
    text = (
        f"'{world.noun()}'"
        if error == "KeyError"
        else f"{world.random.choice(REASONS)}: {world.some(world.messages).split(' {')[0]}"
    )
    yield f"{error}: {text}"


def storage(world: World) -> Iterator[str]:
    blocks = [str(world.random.getrandbits(62)) for _ in range(30)]
    while True:
        block, a, b = world.some(blocks), world.some(world.addresses), world.some(world.addresses)
        part = f"{world.noun().capitalize()}${world.noun().capitalize()}{world.noun().capitalize()}"
        text = world.some((
            f"Receiving chunk blk_{block} src: /{a}:{world.random.randrange(32768, 65535)} dest: /{b}:50010",
            f"Replicator {world.random.randrange(3)} for chunk blk_{block} finished",
            f"BLOCK* space.addStored: map updated: {a}:50010 added blk_{block} size {world.some((67108864, world.number(6e7)))}",
            f"Received chunk blk_{block} of size 67108864 from /{a}",
            f"Verified blk_{block}, removing {world.file()}",
        ))  # fmt: skip
        yield f"{world.tick():%y%m%d %H%M%S} {world.number(40_000)} {world.some(('INFO', 'WARN'))} store.{part}: {text}"
        if world.random.random() < 0.2:
            blocks[world.random.randrange(30)] = str(world.random.getrandbits(62))


def logfmt(world: World) -> Iterator[str]:
    names = [world.noun() for _ in range(6)]
    while True:
        fields = [f"{name}={world.some((world.number(9999), world.hexes(8), world.some(world.users), f'{world.random.random():.4f}', 'true'))}"
                  for name in names if world.random.random() < 0.8]  # fmt: skip
        yield f'time={world.tick():%Y-%m-%dT%H:%M:%SZ} level={world.some(LEVELS).lower()} component={world.some(world.services)} msg="{world.message()}" {" ".join(fields)}'


def containers(world: World) -> Iterator[str]:
    pods = [f"{service}-{world.hexes(9)}-{world.hexes(5)}" for service in world.services]
    while True:
        pod = world.some(pods)
        letter, line = world.some("IIIWE"), world.number(2000)
        yield world.some((
            f"{letter}{world.tick():%m%d %H:%M:%S.%f} {world.number(40_000):7} {world.noun()}_{world.noun()}.go:{line}] \"{world.message()}\" pod=\"{world.noun()}/{pod}\" containerID=\"{world.hexes(64)}\"",
            f"{world.clock:%Y-%m-%dT%H:%M:%S.%f}000Z stdout F {world.message()}",
            f"Normal   {world.some(('Scheduled', 'Pulled', 'Created', 'Started', 'Killing'))}  {world.number(59)}m  kubelet  Container image \"registry.{world.domain}/{world.some(world.services)}:v{world.number(9)}.{world.number(20)}\" already present on machine",
            f"Warning  {world.some(('BackOff', 'Unhealthy', 'FailedMount'))}  {world.number(59)}s (x{world.number(90)} over {world.number(50)}h)  kubelet  Back-off restarting failed container {world.some(world.services)} in pod {pod}",
        ))  # fmt: skip


def database(world: World) -> Iterator[str]:
    tables = [world.noun() + "s" for _ in range(6)]
    while True:
        table, pid, column = world.some(tables), world.number(30_000), world.noun()
        stamp = f"{world.tick():%Y-%m-%d %H:%M:%S}.{world.clock.microsecond // 1000:03} UTC [{pid}] {world.some(world.users)}@{world.noun()}"
        yield world.some((
            f"{stamp} LOG:  duration: {world.random.expovariate(0.01):.3f} ms  statement: SELECT id, {column}, created_at FROM {table} WHERE {column} = {world.number(9e5)} ORDER BY id DESC LIMIT {world.number(100)}",
            f"{stamp} LOG:  checkpoint complete: wrote {world.number(9000)} buffers ({world.random.random() * 9:.1f}%); write={world.random.random() * 30:.3f} s, sync=0.00{world.random.randrange(9)} s",
            f"{stamp} ERROR:  duplicate key value violates unique constraint \"{table}_{column}_key\"\n{stamp} DETAIL:  Key ({column})=({world.number(9e5)}) already exists.",
            f"{stamp} STATEMENT:  INSERT INTO {table} ({column}, {world.noun()}, updated_at) VALUES ($1, $2, now()) RETURNING id",
        ))  # fmt: skip
