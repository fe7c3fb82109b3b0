"""Help: commands and options in groups, short lines, and defaults."""

import re

import click
import pytest

from squeeze import cli
from tests.makers.command import params, run

MOST_WORDS = 14


def sections(text: str) -> dict[str, list[str]]:
    """Return the first words of the entries of a help page, by the title of their section."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][^ ].*:", line):
            found[line[:-1]] = []
        elif found and re.match(r"  \S", line):
            found[list(found)[-1]].append(line.split()[0].rstrip(","))
    return found


def test_commands_are_in_four_groups():
    found = sections(run("--help").stdout)
    assert list(found) == ["Options", *cli.SECTIONS]
    assert {title: found[title] for title in cli.SECTIONS} == {t: list(names) for t, names in cli.SECTIONS.items()}


def test_help_of_a_command_has_two_spellings():
    assert run("help", "compress").stdout == run("compress", "--help").stdout
    assert run("help").stdout == run("--help").stdout


def test_options_that_all_commands_share_come_first():
    found = sections(run("compress", "--help").stdout)
    assert found["Options"][:7] == ["-o", "-c", "--output-dir", "-f", "-k", "--rm", "-r"]
    assert found["Options"][-1] == "-h" and list(found)[:2] == ["Options", "Compression"]
    assert set(found["Ray cluster"]) == {"--cluster", "--cluster-wait", "--manifest"}


def test_options_of_a_method_are_under_its_name():
    found = sections(run("quantize", "--help").stdout)
    assert found["Method awq"] == ["--strengths", "--sweep"]
    assert "--bits" in found["Methods awq, gptq, rtn"] and "--dynamic" in found["Method gptq"]
    assert {"--calibration", "--seed"} <= set(found["Calibration and modules"])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_says_in_a_few_words_what_it_is(name: str):
    for option in params(name):
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts:
            assert option.help, option.name
            text = option.help.split("; default:")[0]
            text = re.sub(r" \([^()]* only\)$", "", text)
            assert len(text.split()) <= MOST_WORDS, (option.name, text)
            assert option.help[0].isupper() or option.help.startswith("lm-eval"), option.help
            assert option.help[-1] not in ".,;:" and not option.help.startswith("Of "), option.help


@pytest.mark.parametrize("line", [line for _, line in cli.COMMANDS.values()])
def test_a_command_is_one_short_line(line: str):
    assert len(line.split()) <= MOST_WORDS and len(line) <= 66 and line.endswith(".")


def test_a_default_comes_before_the_condition():
    text = " ".join(run("quantize", "--help").stdout.split())
    assert "--damping X Damping, as a share of the Hessian's mean diagonal; default: gptq 0.1, trellis 0.01" in text
    text = " ".join(run("prune", "--help").stdout.split())
    assert "Inputs per scale, -1 for a whole row; default: 128 (--bits only)" in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_come_before_explanations(name: str):
    paragraphs = run(name, "--help").stdout.split("\n\n")
    assert paragraphs[2].lstrip().startswith(f"Example: squeeze {name}")
