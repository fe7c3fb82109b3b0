"""Generate conversations: questions and answers of several kinds, made of facts and figures that are computed."""

import json
import random
from collections.abc import Callable, Iterator

from training.generate.world import World

Turns = list[tuple[str, str]]  # questions with their answers

_COUNTRIES = """
France:Paris:French:euro
Germany:Berlin:German:euro
Spain:Madrid:Spanish:euro
Italy:Rome:Italian:euro
Portugal:Lisbon:Portuguese:euro
Japan:Tokyo:Japanese:yen
Brazil:Brasília:Portuguese:real
Kenya:Nairobi:Swahili or English:shilling
Egypt:Cairo:Arabic:pound
India:New Delhi:Hindi, English or one of many other languages:rupee
Canada:Ottawa:English or French:dollar
Norway:Oslo:Norwegian:krone
Poland:Warsaw:Polish:zloty
Mexico:Mexico City:Spanish:peso
Vietnam:Hanoi:Vietnamese:dong
"""
_RECIPES = {
    "lentil soup": ("red lentils", "onion", "carrot", "cumin", "vegetable stock", "lemon juice"),
    "pancakes": ("flour", "milk", "eggs", "a pinch of salt", "butter"),
    "tomato salad": ("ripe tomatoes", "red onion", "olive oil", "vinegar", "basil", "salt"),
    "rice pudding": ("short-grain rice", "milk", "sugar", "cinnamon", "vanilla"),
}
_WORDS = {
    "recursion": "a function that calls itself on a smaller part of the problem until the problem is trivial",
    "a hash table": "an array in which the place of an entry is computed from its key, so that looking it up takes "
    "about the same time however many entries there are",
    "compound interest": "interest that is paid on the interest of earlier periods as well as on the sum itself",
    "photosynthesis": "the process by which plants turn light, water and carbon dioxide into sugar and oxygen",
    "inertia": "the tendency of a body to stay at rest, or to keep moving, until a force acts on it",
    "a checksum": "a short number computed from data, by which a change of the data is noticed",
    "supply and demand": "the way in which a price moves until as much is offered as is wanted",
    "a tide": "the rise and fall of the sea, which the pull of the moon and the sun brings about twice a day",
    "an index of a database": "a sorted copy of some columns, by which rows are found without reading the whole table",
    "entropy": "a measure of how uncertain an outcome is: the average number of yes-or-no questions that it takes",
}
_FUNCTIONS = {
    "counts the vowels in a text": "def vowels(text: str) -> int:\n    return sum(letter in 'aeiou' for letter in text.lower())",
    "returns the largest of three numbers": "def largest(a, b, c):\n    return max(a, b, c)",
    "checks whether a word is a palindrome": "def is_palindrome(word: str) -> bool:\n    letters = word.lower()\n"
    "    return letters == letters[::-1]",
    "removes duplicates from a list and keeps its order": "def unique(items):\n    return list(dict.fromkeys(items))",
    "merges two sorted lists": "def merged(a, b):\n    out, i, j = [], 0, 0\n    while i < len(a) and j < len(b):\n"
    "        if a[i] <= b[j]:\n            out.append(a[i])\n            i += 1\n        else:\n            out.append(b[j])\n"
    "            j += 1\n    return out + a[i:] + b[j:]",
    "reads a CSV file and sums one column": "import csv\n\ndef total(path, column):\n    with open(path, newline='') as file:\n"
    "        return sum(float(row[column]) for row in csv.DictReader(file))",
    "computes the greatest common divisor": "def gcd(a: int, b: int) -> int:\n    while b:\n        a, b = b, a % b\n    return a",
}


def conversations(seed: int) -> Iterator[Turns]:
    """Yield conversations without end, each of one kind."""
    kinds: tuple[Callable[[random.Random, World], Turns], ...] = (
        *(_shopping, _travel, _units, _explained, _programmed, _mail, _table, _as_json, _capital, _cooked, _ordered),
    )
    number = 0
    while True:
        world = World(seed * 10_007 + number)
        yield kinds[number % len(kinds)](world.random, world)
        number += 1


def _shopping(rng: random.Random, world: World) -> Turns:
    name, item, other = world.person().split()[0], world.noun(), world.noun()
    count, price, more, rate = rng.randint(2, 12), rng.randint(2, 40), rng.randint(1, 9), rng.randint(3, 30)
    total = count * price + more * rate
    paid = total + rng.randint(1, 50)
    first = (
        f"{name} buys {count} {item}s at {price} euros each and {more} {other}s at {rate} euros each. "
        "How much does that cost?",
        f"The {item}s cost {count} x {price} = {count * price} euros. The {other}s cost {more} x {rate} = {more * rate} "
        f"euros. Together that is {count * price} + {more * rate} = {total} euros.",
    )
    return [
        first,
        (f"And how much change does {name} get from {paid} euros?", f"{paid} - {total} = {paid - total} euros."),
    ]


def _travel(rng: random.Random, world: World) -> Turns:
    speed, hours = rng.randint(4, 30) * 5, rng.randint(2, 9)
    stop = rng.randint(1, 3) * 15
    minutes = hours * 60 + stop
    return [
        (
            f"A train goes {speed} km an hour for {hours} hours and stops for {stop} minutes on the way. How far does it "
            "go, and how long does the whole journey take?",
            f"It covers {speed} x {hours} = {speed * hours} km. The journey takes {hours} hours and {stop} minutes, which "
            f"is {minutes} minutes. The average speed, with the stop, is {speed * hours / minutes * 60:.1f} km an hour.",
        )
    ]


def _units(rng: random.Random, world: World) -> Turns:
    miles, pounds, degrees = rng.randint(2, 400), rng.randint(2, 300), rng.randint(-20, 110)
    return [
        (f"Convert {miles} miles to kilometres.", f"{miles} miles x 1.609344 = {miles * 1.609344:.2f} kilometres."),
        (f"And {pounds} pounds to kilograms?", f"{pounds} pounds x 0.45359237 = {pounds * 0.45359237:.2f} kilograms."),
        (
            f"What is {degrees} °F in Celsius?",
            f"({degrees} - 32) x 5 / 9 = {(degrees - 32) * 5 / 9:.1f} °C.",
        ),
    ]


def _explained(rng: random.Random, world: World) -> Turns:
    word = rng.choice(list(_WORDS))
    asked = rng.choice(("What is {}?", "Explain {} in one sentence.", "Can you tell me what {} means?", "Define {}."))
    return [
        (asked.format(word), f"{word[0].upper()}{word[1:]} is {_WORDS[word]}."),
        (
            "Thanks. Why does that matter?",
            f"Because whoever works with a {world.noun()} or a {world.noun()} meets it sooner or later: it explains why "
            f"some {world.noun()}s {world.verb()} well and others do not.",
        ),
    ]


def _programmed(rng: random.Random, world: World) -> Turns:
    task = rng.choice(list(_FUNCTIONS))
    return [(f"Write a Python function that {task}.", f"```python\n{_FUNCTIONS[task]}\n```")]


def _mail(rng: random.Random, world: World) -> Turns:
    name, thing, day = world.person(), world.noun(), rng.choice(("Monday", "Tuesday", "Thursday", "Friday"))
    return [
        (
            f"Write a short e-mail to {name} to move our meeting about the {thing} to {day}.",
            f"Subject: Our meeting about the {thing}\n\nDear {name.split()[0]},\n\nI am afraid that I cannot make our "
            f"meeting about the {thing} as planned. Would {day} at {rng.randint(9, 16)}:00 suit you instead? If not, please "
            f"name a time that does.\n\nKind regards,\n{world.person()}",
        ),
        ("Make it less formal.", f"Hi {name.split()[0]}, can we talk about the {thing} on {day} instead? Thanks!"),
    ]


def _table(rng: random.Random, world: World) -> Turns:
    rows = [(world.noun(), rng.randint(1, 90), rng.randint(1, 500) / 10) for _ in range(rng.randint(3, 6))]
    lines = "\n".join(f"| {name} | {count} | {price:.1f} |" for name, count, price in rows)
    best = max(rows, key=lambda row: row[1] * row[2])
    return [
        (
            f"Which row has the largest value?\n\n| item | count | price |\n|---|--:|--:|\n{lines}",
            f"The value is count times price. It is largest for {best[0]}: {best[1]} x {best[2]:.1f} = "
            f"{best[1] * best[2]:.1f}.",
        )
    ]


def _as_json(rng: random.Random, world: World) -> Turns:
    name, mail, number = world.person(), f"{world.user()}@{world.domain}", rng.randint(18, 80)
    answer = json.dumps({"name": name, "age": number, "email": mail}, indent=2)
    return [
        (
            f'Extract name, age and e-mail as JSON: "{name}, who turned {number} this year, can be reached at {mail}."',
            f"```json\n{answer}\n```",
        )
    ]


def _capital(rng: random.Random, world: World) -> Turns:
    country, capital, language, money = rng.choice(_COUNTRIES.strip().splitlines()).split(":")
    return [
        (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
        (
            "Which language do they speak there, and what do they pay with?",
            f"Most people speak {language}. The currency is the {money}.",
        ),
    ]


def _cooked(rng: random.Random, world: World) -> Turns:
    dish = rng.choice(list(_RECIPES))
    steps = "\n".join(f"{number}. Add the {part}." for number, part in enumerate(_RECIPES[dish], 1))
    return [
        (f"What do I need for {dish}?", "You need " + ", ".join(_RECIPES[dish][:-1]) + f" and {_RECIPES[dish][-1]}."),
        (
            "In which order?",
            f"{steps}\n{len(_RECIPES[dish]) + 1}. Cook it for {rng.randint(10, 40)} minutes and taste it.",
        ),
    ]


def _ordered(rng: random.Random, world: World) -> Turns:
    words = list(dict.fromkeys(world.noun() for _ in range(rng.randint(5, 9))))
    numbers = [rng.randint(1, 999) for _ in range(rng.randint(5, 9))]
    return [
        (f"Sort these words: {', '.join(words)}", ", ".join(sorted(words))),
        (
            f"Now these numbers, largest first, and give their sum: {', '.join(map(str, numbers))}",
            f"{', '.join(map(str, sorted(numbers, reverse=True)))}. Their sum is {sum(numbers)}.",
        ),
    ]
