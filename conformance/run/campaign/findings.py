"""The distinct findings of a campaign, each with its files: the program as JSON, and the script.

Defines `Findings`. Findings of equal signatures are joined when they come in, those of equal causes when they are
shrunk, so each distinct bug is one finding.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.declare import profile as profiles
from conformance.engine.loading import describe_target
from conformance.program.model import ProgramError
from conformance.program.script import script
from conformance.record.finding import severity_of
from conformance.record.result import Result, counted, write_atomic
from conformance.run.campaign.plan import Plan, Shard, again
from conformance.run.failing_program import FailingProgram

LONGEST_NAME = 90
"""Maximum length of a finding's file name, in characters. A longer name is cut and gets a digest."""


@dataclass
class Findings:
    """The distinct findings of the campaign `name`, in no order. A change is on disk after `save_unsaved`, except a new
    finding, which is written at once."""

    plan: Plan
    name: str
    known: list[FailingProgram] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """The versions of the target, which scripts state."""
    _unsaved: list[FailingProgram] = field(default_factory=list)
    _taken: list[Path] = field(default_factory=list)
    """Files to delete once the findings are on disk."""

    def __iter__(self) -> Iterator[FailingProgram]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def ranked(self) -> list[FailingProgram]:
        """The findings in report order: by severity of the property, then by number of programs."""

        def rank(finding: FailingProgram) -> tuple[int, int, int]:
            return severity_of(finding.property), -finding.count, min(finding.numbers)

        return sorted(self.known, key=rank)

    def distinct(self) -> list[FailingProgram]:
        """The findings in report order, with those of one cause joined, shrunk or not."""
        known: dict[str, FailingProgram] = {}
        for finding in self.ranked():
            title = finding.title()
            known[title] = known[title].joined(finding) if title in known else finding
        return list(known.values())

    def add(self, finding: FailingProgram, *later: FailingProgram) -> None:
        """Join a finding with that of its signature, or write it to disk if it is the first one. `later` are findings
        of this signature in later programs of the same shard. They are joined with it first: joining each one with a
        finding of thousands of programs copies thousands of numbers."""
        shard = Shard(self.plan, finding.number, 1, self.name)
        self._taken += [shard.path_of(one.number, one.part) for one in (finding, *later)]
        finding = finding.of_programs(*later) if later else finding
        alike = (known for known in self.known if known.layer == finding.layer)
        alike = (known for known in alike if finding.signature in known.every_signature and known.explains(finding))
        known = next(alike, None)
        joined = finding if known is None else known.also_in(finding)
        if known is None:
            self.known.append(finding)
            self.save(finding)
        else:
            self.substitute(known, joined)
            if joined.number != known.number:
                self._taken += [self.path(known), self.path(known, ".json")]
        if not any(waiting is joined for waiting in self._unsaved):
            self._unsaved.append(joined)

    def substitute(self, old: FailingProgram, *new: FailingProgram) -> None:
        """Replace a finding, also where it waits to be saved; by none if it is joined with another one."""
        for findings in (self.known, self._unsaved):
            findings[:] = [kept for finding in findings for kept in (new if finding is old else (finding,))]

    def split(self, old: FailingProgram, shrunk: FailingProgram) -> FailingProgram:
        """Replace a finding by its shrunk form, without the kept programs with the same error that this does not
        explain. They become findings of their own."""
        apart = [other for other in shrunk.others if not shrunk.explains(other)]
        # A program whose parts fail with one error may belong to both findings.
        staying = {shrunk.number, *(other.number for other in shrunk.others if shrunk.explains(other))}
        gone = {other.number for other in apart} - staying
        shrunk = replace(shrunk, numbers=shrunk.numbers - gone, masking=shrunk.masking - gone, others=())
        self.substitute(old, shrunk)
        for other in apart:
            self.add(other)
        return shrunk

    def of_cause(self, finding: FailingProgram) -> FailingProgram | None:
        """Another finding that is shrunk and has this one's cause, if there is one."""
        others = (known for known in self.known if known.shrunk and known is not finding)
        return next((known for known in others if known.cause() == finding.cause() != ""), None)

    def path(self, finding: FailingProgram, suffix: str = ".py") -> Path:
        """The file of a finding's script, or of its program with the suffix `.json`."""
        target = re.sub(r",(import|call)=[^,]*", "", profiles.identity(self.plan.target))
        of = (finding.cause() if finding.shrunk else "") or f"{finding.signature} program {finding.number}"
        slug = re.sub(r"[^a-z0-9_.]+", "-", f"{target} {of}".lower()).strip("-")
        if len(slug) > LONGEST_NAME:
            slug = f"{slug[:LONGEST_NAME]}-{hashlib.sha256(of.encode()).hexdigest()[:6]}"
        return self.plan.failures / f"{slug}{suffix}"

    def mark_scripts(self, results: Iterable[Result]) -> None:
        """Write into the files of the findings whether their scripts show their headlines."""
        for result in results:
            if isinstance(result.finding, FailingProgram):
                self.save(replace(result.finding, alone=result.alone))

    def save(self, finding: FailingProgram) -> None:
        target = self.plan.target
        own = {"campaign": self.name, "target": target, "identity": profiles.identity(target)}
        write_atomic(self.path(finding, ".json"), json.dumps({**finding.to_json(), **own}, indent=1))
        write_atomic(self.path(finding), self.script(finding))

    def again(self, finding: FailingProgram) -> str:
        """The command that runs the finding's program again."""
        return again(self.path(finding, ".json"))

    def script(self, finding: FailingProgram) -> str:
        """The finding's program as a standalone script."""
        versions = ", ".join(f"{name} {value}" for name, value in self.environment.items())
        notes = [
            f"{finding.kind} in {counted(finding.count, 'program')}: {finding.title()}",
            f"Again: {self.again(finding)}",
            f"Found by: {self.plan.command}  (program {finding.number})",
        ]
        notes += [f"With: {versions}"] if versions else []
        notes += [f"In a fresh process: {finding.alone}"]
        target = describe_target(self.plan.target)
        step, death, said = finding.bad_step, finding.death(), finding.wrong_first
        return script(finding.program, target, finding.differences, notes, step, death, wrong_first=said)

    def restore(self) -> None:
        """Read the findings on disk: those of this campaign, and those of its shards that were not merged. Raises
        ProgramError for a file that cannot be read."""
        unmerged: list[FailingProgram] = []
        for saved in sorted(self.plan.failures.glob("*.json")):
            try:
                data = json.loads(saved.read_text(encoding="utf-8"))
                if saved.name.startswith(f"found-{self.name}-"):
                    unmerged.append(FailingProgram.from_json(data))
                elif isinstance(data, dict) and data.get("campaign") == self.name:
                    self.known.append(FailingProgram.from_json(data))  # other files are programs of the user
            except (OSError, ValueError, KeyError, TypeError, ProgramError) as error:
                raise ProgramError(
                    f"{saved} cannot be read ({error}): remove it, run without --resume, or choose another --reports"
                ) from error
        self.known.sort(key=lambda finding: min(finding.numbers))
        for finding in sorted(unmerged, key=lambda finding: finding.number):
            self.add(finding)

    def save_unsaved(self) -> None:
        """Write the findings that have changed."""
        for finding in self._unsaved:
            self.save(finding)
        self._unsaved = []

    def delete_merged(self) -> None:
        """Delete the files of shards whose findings are merged and saved."""
        for path in self._taken:
            path.unlink(missing_ok=True)
        self._taken = []

    def delete_files(self, finding: FailingProgram) -> None:
        """Delete the script and the program of a finding."""
        for suffix in ".py", ".json":
            self.path(finding, suffix).unlink(missing_ok=True)
