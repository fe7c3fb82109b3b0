"""Generate logs of development: git histories and patches, test runs, compilers, package installers, CI."""

from collections.abc import Iterator
from datetime import timedelta

from training.generate.service_logs import python_trace
from training.generate.world import World, tenses


def git_log(world: World) -> Iterator[str]:
    people = [(name := world.person(), f"{name.lower().replace(' ', '.')}@{world.domain}") for _ in range(6)]
    while True:
        name, mail = world.some(people)
        world.clock -= timedelta(seconds=world.random.expovariate(1 / 40_000))
        yield f"commit {world.hexes(40)}"
        if world.random.random() < 0.15:
            yield f"Merge: {world.hexes(9)} {world.hexes(9)}"
        yield f"Author: {name} <{mail}>"
        yield f"Date:   {world.clock:%a %b} {world.clock.day} {world.clock:%H:%M:%S %Y} +0{world.random.randrange(3)}00"
        yield ""
        prefix = world.some(("", "fix: ", "feat: ", "docs: ", "chore(deps): ", "test: ", f"{world.noun()}: "))
        yield f"    {prefix}{subject(world)}{world.some(('', f' (#{world.number(9000)})'))}"
        if world.random.random() < 0.4:
            yield "    "
            yield f"    {subject(world).capitalize()}, since {world.some(world.messages).split(' {')[0].lower()} when the"
            yield f"    {world.noun()} is {world.some(('empty', 'closed', 'too large', 'not ready'))}. Fixes #{world.number(9000)}."
        yield ""


def subject(world: World) -> str:
    """Return the first line of a commit message."""
    return world.random.choice((
        f"{world.verb()} {world.noun()} {world.noun()} in {world.noun()}", f"bump {world.noun()}-{world.noun()} from {version(world)} to {version(world)}",
        f"do not {world.verb()} the {world.noun()} twice", f"{world.verb()} {world.noun()} before {tenses(world.verb())[1]} {world.noun()}s",
        f"add {world.noun()} {world.noun()} option to {world.verb()}", f"remove unused {world.noun()} {world.noun()}",
    ))  # fmt: skip


def version(world: World) -> str:
    return f"{world.number(9)}.{world.number(30)}.{world.number(20)}"


def diff(world: World) -> Iterator[str]:
    while True:
        path = f"{world.noun()}/{world.noun()}_{world.noun()}.{world.some(('py', 'js', 'go', 'c'))}"
        yield f"diff --git a/{path} b/{path}"
        yield f"index {world.hexes(9)}..{world.hexes(9)} 100644"
        yield f"--- a/{path}"
        yield f"+++ b/{path}"
        line = world.number(200)
        for _ in range(world.random.randint(1, 4)):
            old, new = world.random.randint(6, 12), world.random.randint(6, 14)
            yield f"@@ -{line},{old} +{line + 1},{new} @@ {world.some(('def', 'func', 'function'))} {world.verb()}_{world.noun()}({world.noun()}):"
            line += 20 + world.number(80)
            for _ in range(world.random.randint(6, 14)):
                mark, name = world.some((" ", " ", "+", "-")), world.noun()
                yield f"{mark}{'    ' * world.random.randint(1, 3)}{world.some((f'{name} = {world.verb()}({world.noun()})', f'if not {name}:', f'return {name}', f'{name}.{world.verb()}()', f'# {world.verb()} the {name}', f'for {name} in {name}s:'))}"


def pytest(world: World) -> Iterator[str]:
    files = [
        f"tests/test_{world.noun()}{world.some(('', '_' + world.noun()))}.py"
        for _ in range(world.random.randint(3, 30))
    ]
    while True:
        count = world.number(3000)
        yield "=" * 29 + " test session starts " + "=" * 30
        yield f"platform linux -- Python 3.{world.random.randrange(9, 15)}.{world.number(12)}, pytest-{version(world)}, pluggy-1.{world.number(6)}.0"
        yield f"rootdir: /home/{world.some(world.users)}/{world.noun()}"
        yield f"collected {count} items"
        yield ""
        for number, file in enumerate(files, 1):
            dots = "".join(world.some("......sFx") for _ in range(world.number(50)))
            yield f"{file} {dots}".ljust(72) + f"[{100 * number // len(files):3}%]"
        failed = [f"{world.some(files)}::test_{world.verb()}_{world.noun()}" for _ in range(world.number(6))]
        yield ""
        yield "=" * 35 + " FAILURES " + "=" * 35
        for name in failed:
            yield f" {name.rpartition(':')[2]} ".center(80, "_")
            yield from python_trace(world, [file[:-3].replace("/", ".") for file in files[:3]])
            yield f"E       assert {world.number(90)} == {world.number(90)}"
            yield f"{name.partition(':')[0]}:{world.number(500)}: AssertionError"
        for name in failed:
            yield f"FAILED {name} - assert {world.number(90)} == {world.number(90)}"
        yield f" {len(failed)} failed, {count} passed in {world.random.expovariate(0.05):.2f}s ".center(80, "=")


def compiler(world: World) -> Iterator[str]:
    folders, total, done = [world.noun() for _ in range(7)], world.random.randint(40, 900), 0
    while True:
        done = done % total + 1
        file = f"src/{world.some(folders)}/{world.noun()}_{world.noun()}.{world.some(('c', 'cpp', 'cc'))}"
        yield f"[{100 * done // total:3}%] Building CXX object CMakeFiles/{folders[0]}.dir/{file}.o"
        if world.random.random() < 0.12:
            line, column, name = world.number(900), world.number(60), world.noun()
            yield f"{file}: In function '{world.some(('int', 'void', 'static bool'))} {world.verb()}_{name}({world.noun()}*)':"
            yield f"{file}:{line}:{column}: warning: {world.some((f'unused variable {name!r} [-Wunused-variable]', 'comparison of integer expressions of different signedness [-Wsign-compare]', f'{name!r} may be used uninitialized [-Wmaybe-uninitialized]'))}"
            yield f"{line:5} |     int {name} = {world.verb()}({world.noun()});"
            yield f"      |{' ' * min(column, 30)}^{'~' * len(name)}"


def integration(world: World) -> Iterator[str]:
    while True:

        def line(text: str) -> str:
            return f"{world.tick():%Y-%m-%dT%H:%M:%S.%f}{world.random.randrange(10)}Z {text}"

        yield line(
            f"##[group]Run {world.some(('actions/checkout@v4', 'actions/setup-node@v4', 'npm ci', 'make test', 'cargo build --release'))}"
        )
        for _ in range(world.random.randint(2, 15)):
            yield line(world.some((
                f"  {world.noun()}: {world.some(('true', 'false', world.noun()))}", f"npm warn deprecated {world.noun()}-{world.noun()}@{version(world)}: no longer supported",
                f"   Compiling {world.noun()}-{world.noun()} v{version(world)}", f"Downloading {world.noun()}_{world.noun()}-{version(world)}-py3-none-any.whl ({world.number(900)} kB)",
                f"#{world.number(30)} {world.random.random() * 60:.2f} {world.message()}", f"ok  \t{world.domain}/{world.noun()}/{world.noun()}\t{world.random.expovariate(1):.3f}s",
                f"PASS src/{world.noun()}/{world.noun()}.test.ts ({world.random.random() * 9:.3f} s)", f"Step {world.number(20)}/20 : RUN {world.verb()} {world.noun()}",
            )))  # fmt: skip
        yield line("##[endgroup]")
        if world.random.random() < 0.2:
            yield line(f"##[error]Process completed with exit code {world.some((1, 2, 137))}.")
