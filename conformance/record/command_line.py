"""The parser of every command's arguments: bad usage is one sentence and exit code 2."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from conformance.record.names import nearest


class Parser(argparse.ArgumentParser):
    """Parser that reports bad usage in one sentence, of a subcommand's arguments too. A flag has no abbreviations: a
    later version may add a flag that begins with the same letters."""

    def __init__(self, *names: Any, **options: Any) -> None:
        super().__init__(*names, **{"allow_abbrev": False, **options})

    def takes(self, name: str) -> bool:
        """Whether the command has this flag."""
        return name in self._option_string_actions

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with code 2."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        if unknown and unknown[1].startswith("-"):
            word = unknown[1].partition("=")[0]
            message = f"there is no flag {word}{nearest(word, self._flags()) or '; --help lists the flags'}"
        elif unknown:
            message = f"no argument {unknown[1]!r} is expected"
            message += f"; write --target {unknown[1]}" if self.takes("--target") else "; --help lists the arguments"
        elif choice:
            known = choice[2].replace("'", "").split(", ")
            of = "" if self._choices() else f"{message.partition(': invalid choice')[0].removeprefix('argument ')}: "
            message = f"{of}there is no {choice[1]!r}{nearest(choice[1], known) or '; choose from ' + ', '.join(known)}"
        elif "arguments are required: " in message:
            missing = message.partition("required: ")[2]
            message = f"{missing} is missing: "
            message += f"choose from {', '.join(self._choices())}" if self._choices() else "--help lists the arguments"
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")

    def _choices(self) -> dict[str, Parser]:
        """Return the parsers of the subcommands by name."""
        choices = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(choices[0]) if choices else {}

    def _flags(self) -> list[str]:
        """Return the long flags of the command and of its subcommands."""
        mine = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        return [*mine, *(name for choice in self._choices().values() for name in choice._flags())]
