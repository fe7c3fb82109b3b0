"""Commands and faults in any order, compared with a model of the files that must exist after each.

The model knows what a file holds, not how it is coded. A command that fails, is interrupted or meets a full disk leaves
everything unchanged. Without -f, a second writer's file is kept, and so is a source that has changed.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import squeeze
from squeeze.codecs.stream import container
from tests.faults.disk import Disk, Strike, broken_at, full_from, interrupted_at
from tests.makers.command import call

CODED = b"squeeze: "  # before the content of a file that is coded, in the model
NAMES = ("a", "b")
TEXTS = (b"", 60 * b"long ", b"other")
NO_FAULT: Strike = lambda call, kind: None  # noqa: E731
FAULTS = st.builds(lambda kind, n: kind(n), st.sampled_from([broken_at, full_from, interrupted_at]), st.integers(1, 7))
Files = dict[str, bytes]


def meaning(data: bytes) -> bytes:
    return CODED + squeeze.decompress(data) if data.startswith(container.MAGIC) else data


class FilesOnDisk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="squeeze-states-"))
        self.model: Files = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def found(self) -> Files:
        return {path.name: meaning(path.read_bytes()) for path in self.folder.iterdir()}

    @invariant()
    def the_disk_is_as_the_model_says(self) -> None:
        assert self.found() == self.model

    @rule(name=st.sampled_from(NAMES), text=st.sampled_from(TEXTS))
    def a_file_is_written(self, name: str, text: bytes) -> None:
        (self.folder / name).write_bytes(text)
        self.model[name] = text

    @rule(name=st.sampled_from([*NAMES, *(f"{name}.sqz" for name in NAMES)]))
    def a_file_is_deleted(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        self.model.pop(name, None)

    @rule(name=st.sampled_from(NAMES), back=st.booleans(), rm=st.booleans(), force=st.booleans())
    def a_command_runs(self, name: str, back: bool, rm: bool, force: bool) -> None:
        code, before, after = self.run(name, back, rm, force, NO_FAULT)
        assert code == (1 if after is None else 0)
        self.model = before if after is None else after

    @rule(name=st.sampled_from(NAMES), back=st.booleans(), rm=st.booleans(), force=st.booleans(), fault=FAULTS)
    def a_command_meets_a_fault(self, name: str, back: bool, rm: bool, force: bool, fault: Strike) -> None:
        source, target = _names(name, back)
        code, before, after = self.run(name, back, rm, force, fault)
        if code == 0:
            assert after is not None
            self.model = after
            return
        found = self.found()
        allowed = [before]
        if after is not None and (force or rm):  # the target is whole, and only what follows went wrong
            allowed.append({**before, target: after[target]})
        assert (found in allowed and source in found) or source not in before
        self.model = found

    @rule(name=st.sampled_from(NAMES), back=st.booleans(), rm=st.booleans(), force=st.booleans(), at=st.integers(1, 4))
    def another_writes_the_target_meanwhile(self, name: str, back: bool, rm: bool, force: bool, at: int) -> None:
        target = _names(name, back)[1]
        came = _when(at, lambda: (self.folder / target).write_bytes(b"theirs"))
        code, before, after = self.run(name, back, rm, force, came)
        found = self.found()
        if after is None:
            assert code == 1 and found in (before, {**before, target: b"theirs"})
        elif code == 0:  # it came after all was done, or was replaced
            assert found in (after, {**after, target: b"theirs"})
        else:
            assert not force and found == {**before, target: b"theirs"}
        self.model = found

    @rule(name=st.sampled_from(NAMES), back=st.booleans(), rm=st.booleans(), at=st.integers(1, 4))
    def the_source_changes_meanwhile(self, name: str, back: bool, rm: bool, at: int) -> None:
        source, target = _names(name, back)
        changed = _when(at, lambda: _replace(self.folder / source, b"newer"))
        code, before, after = self.run(name, back, rm, True, changed)
        found = self.found()
        if after is None:
            assert code == 1 and found in (before, {**before, source: b"newer"})
        elif found.get(source) == b"newer":
            assert code == 1 and found == {**before, source: b"newer", target: after[target]}
        else:
            assert code == 0 and found == after
        self.model = found

    def run(self, name: str, back: bool, rm: bool, force: bool, strike: Strike) -> tuple[int, Files, Files | None]:
        """Exit code; what was there; what should be there after it, or None where it has to fail."""
        source, target = _names(name, back)
        words = ["decompress"] if back else ["compress", "-1"]
        words += ["--rm"] * rm + ["-f"] * force
        before = dict(self.model)
        with Disk(self.folder, strike).installed():
            done = call(*words, self.folder / source)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert (done.exit_code, done.stderr.count("\n")) in ((0, 0), (1, 1))
        if source not in before or (target in before and not force):
            return done.exit_code, before, None
        if back and not before[source].startswith(CODED):
            return done.exit_code, before, None
        made = before[source].removeprefix(CODED) if back else CODED + before[source]
        after = {**before, target: made}
        if rm:
            del after[source]
        return done.exit_code, before, after


def _names(name: str, back: bool) -> tuple[str, str]:
    """Source and target."""
    return (f"{name}.sqz", name) if back else (name, f"{name}.sqz")


def _when(at: int, act: Callable[[], object]) -> Strike:
    """Not a fault, but something that happens before a call."""

    def strike(call: int, kind: str) -> None:
        if call == at:
            act()

    return strike


def _replace(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    other.rename(path)


def run(examples: int, steps: int) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=examples < 100,
        database=None,
    )
    run_state_machine_as_test(FilesOnDisk, settings=chosen)


def test_every_command_succeeds_or_leaves_files_unchanged() -> None:
    run(15, 15)


@pytest.mark.slow
def test_every_command_of_many_long_runs_succeeds_or_leaves_files_unchanged() -> None:
    run(100, 30)
