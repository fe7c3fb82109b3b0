"""Plans of shards: existing ones stay, and missing ones become what they would have been in one run."""

import random
from pathlib import Path

import pytest

from squeeze.codecs.shards.plan import Sources, Template, plan
from squeeze.codecs.shards.reading import Source
from squeeze.system.storage import path_of

TARGETS = Template(Path("part-{}.tar.sqz"))
SIZE = 20480


class Made:
    """Shards by their numbers, as runs before left them, and files that they had to leave out."""

    def __init__(self, shards, failed=()):
        self.number = {name: number for number, names in shards.items() for name in names}
        self.targets, self.failed = {TARGETS.path(number) for number in shards}, set(failed)

    def shard_of(self, source):
        return self.number.get(source.name)

    def has_failed(self, source):
        return source.name in self.failed

    def is_there(self, target):
        return target in self.targets


def sources(names, seed=0):
    chance = random.Random(seed)
    sizes = [chance.choice([0, 100, 3000, 9000, 30_000]) for _ in names]
    return [Source(Path("root", name), name, size, "s") for name, size in zip(names, sizes, strict=True)]


def planned(listing, earlier=None):
    shards = plan(listing, TARGETS, SIZE, earlier)
    return {int(one.target.name.split(".")[0][5:]): [source.name for source in one.sources] for one in shards}


NAMES = [f"{number:03d}.{kind}" for number in range(60) for kind in ("json", "txt")]


@pytest.mark.parametrize("seed", range(20))
def test_whichever_shards_are_there_the_others_become_the_same(seed):
    listing = sources(NAMES, seed)
    whole = planned(listing)
    assert sorted(whole) == list(range(len(whole))) and len(whole) > 10
    assert [name for number in sorted(whole) for name in whole[number]] == NAMES
    chance = random.Random(seed)
    there = {number: names for number, names in whole.items() if chance.random() < 0.5}
    assert planned(listing, Made(there)) == {number: names for number, names in whole.items() if number not in there}


def test_what_shards_had_to_leave_out_and_new_files_in_them_go_together_at_the_end():
    listing = [Source(Path(name), name, 3000) for name in map(str, range(100, 140))]
    whole = planned(listing)
    out = [whole[number][place] for number, place in ((0, 0), (0, 2), (1, 1), (4, 3))]
    there = {number: [name for name in names if name not in out] for number, names in whole.items() if number != 2}
    assert planned(listing, Made(there, failed=out[:1])) == {2: whole[2], len(whole): out}


def test_new_files_between_two_shards_are_one_of_their_own():
    listing = [Source(Path(name), name, 3000) for name in map(str, range(100, 140))]
    whole = planned(listing)
    end = whole[0][-1]
    new = Source(Path(f"{end}a"), f"{end}a", 5)
    longer = sorted([*listing, new], key=lambda source: source.name)
    assert planned(longer, Made(whole)) == {len(whole): [f"{end}a"]}


def test_a_shard_that_is_gone_is_made_again_by_its_number():
    listing = sources(NAMES)
    whole = planned(listing)
    there = {number: names for number, names in whole.items() if number != 3}
    assert planned(listing, Made(there)) == {3: whole[3]}
    assert planned(listing, Made(whole)) == {}


@pytest.mark.parametrize("folder", ["root", "s3://bucket/root"])
def test_sources_are_held_in_few_bytes(folder):
    root, kept = path_of(folder), Sources()
    listing = [
        Source(root / f"a/{number:06d}.txt", f"a/{number:06d}.txt", number, f"{number}-x") for number in range(2000)
    ]
    for source in listing:
        kept.append(source)
    assert len(kept) == 2000 and list(kept) == listing == list(kept)
    assert sum(map(len, kept._blocks)) < 30 * 2000
    if "://" in folder:
        assert next(iter(kept)).path.lstat().st_size == 0  # without a request
