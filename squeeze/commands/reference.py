"""Tables of options in Markdown for the docs; `python -m squeeze.commands.reference` prints all of them."""

from collections.abc import Iterable
from typing import Any

from squeeze.commands.declared import both_ways, default_of, kind_of
from squeeze.operations import MethodOption, Operation
from squeeze.options import Option, Reference, options_of
from squeeze.recipes.options import EXPERTS, FACTORIZE, PACK, PRUNE, QUANTIZE, Common, Recovering

__all__ = ["OPERATIONS", "operation_table", "options_table"]

OPERATIONS: tuple[Operation[Any], ...] = (QUANTIZE, PRUNE, FACTORIZE, EXPERTS, PACK)
_COLUMNS = ("option", "on the command line", "type", "default", "bounds", "what it is")


def options_table(method: Reference) -> str:
    """Return the table of a method, or of any other dataclass of options."""
    return _table([_COLUMNS[:1] + _COLUMNS[2:], *(row[:1] + row[2:] for row in _rows(options_of(method)))])


def operation_table(operation: Operation[Any]) -> str:
    """Return the table of a command. An option that not all methods have begins with the names of those that have
    it."""
    return _table([_COLUMNS, *(_row(one, len(operation.methods)) for one in operation.options().values())])


def _rows(options: Iterable[Option]) -> Iterable[tuple[str, ...]]:
    return (_row(MethodOption(one), 0) for one in options)


def _row(method_option: MethodOption, methods: int) -> tuple[str, ...]:
    option, names = method_option.option, ", ".join(method_option.defaults)
    text = option.help if not names or len(method_option.defaults) == methods else f"{names}: {option.help}"
    return (
        f"`{option.name}`",
        f"`{both_ways(option)}`",
        kind_of(option),
        default_of(option, method_option.defaults),
        option.bounds,
        text,
    )


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
    return head + "|---" * (head.count(" | ") + 1) + "|\n" + "".join(body)


def _print() -> None:
    for operation in OPERATIONS:
        print(f"## {operation.name}\n\n{operation_table(operation)}")
    print(f"## recover\n\n{options_table(Recovering)}")
    print(f"## prune, quantize, factorize and recover\n\n{options_table(Common)}")


if __name__ == "__main__":
    _print()
