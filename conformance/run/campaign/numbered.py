"""The programs of a campaign by their numbers: what a source gives, and all that a campaign asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from conformance.program.model import Program
from conformance.program.steps.op import Json
from conformance.run.campaign.drawing_counts import Tally


class NumberedPrograms(Protocol):
    """Programs with the numbers 0, 1, 2, ..., such as drawn ones or those of a list.

    Workers receive this object and make a program again from its number alone, so it can be pickled and holds no
    programs."""

    @property
    def stem(self) -> str:
        """The name of the campaign's files in --reports."""

    @property
    def noun(self) -> str:
        """What its programs are called, such as "drawn programs"."""

    @property
    def module(self) -> str:
        """The module of the command."""

    @property
    def endless(self) -> bool:
        """Whether every number is a program. Then another one replaces a program that the target leaves out, and those
        that ran are counted. Otherwise all programs run before the first finding is shrunk."""

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each axis of coverage (`program_stats.AXES`), so that a report shows cells without a program;
        empty if there is no coverage to count."""

    def program(self, seed: int, number: int, spec: str, tally: Tally) -> Program:
        """Return a program, made for the target `spec`, which is loaded. Counts what was drawn in `tally`."""

    def identity(self) -> dict[str, Json]:
        """Return what `--resume` must not change."""

    def words(self, spec: str) -> list[str]:
        """Return the options of the command that make the same programs for a target, without its seed."""

    def environment(self) -> dict[str, str]:
        """Return what a report says about how the programs were made."""
