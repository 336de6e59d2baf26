"""Records of patches of tinygrad: the site, the fault, and the test that shows it, checked at creation.

Defines `Patch` (an attribute or a table's entry), `RulePatch` (a rule of a PatternMatcher), `PatchError`, and
`PATCHES`, a list of all patches in the order of their application.

The key insight: a patch of another package is valid only for the versions it was written for. A missing site must give
a clear error at import, not a wrong value later. A patch whose test passes without it can be removed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from tinygrad.uop import Ops

VERSIONS = ">=0.14,<0.15"
NONE_FILED = "none filed"
TESTS = "tests/backend/tinygrad_patches"


class PatchError(ImportError):
    """The installed tinygrad lacks a patched site."""


PATCHES: list[Patch] = []
# Replacements of rules' functions: `rewrites` installs them when a matcher compiles its rules.
REPLACED_RULES: dict[Any, Callable[..., Any]] = {}


class Patch:
    """A change of tinygrad at one site, written "module:name.name" or, for an entry of a table, "module:name[OP]".

    `fault` describes the fault without the patch. `test` is the test function that fails without it, "FILE::NAME" in
    `TESTS`. `versions` are the versions of tinygrad it was written for. `upstream` is the issue there. Raises
    PatchError if the site does not exist. `missing` marks an entry that tinygrad lacks and the patch adds.
    """

    def __init__(
        self,
        site: str,
        fault: str,
        test: str,
        *,
        versions: str = VERSIONS,
        upstream: str = NONE_FILED,
        missing: bool = False,
    ) -> None:
        self.site, self.fault, self.test = site, fault, f"{TESTS}/{test}" if not test.startswith("tests/") else test
        self.versions, self.upstream, self.missing = versions, upstream, missing
        self.original = self._find()
        PATCHES.append(self)

    def _find(self) -> Any:
        module, _, path = self.site.partition(":")
        path, _, entry = path.partition("[")
        *owners, self._name = path.split(".")
        try:
            self._owner: Any = importlib.import_module(module)
            for name in owners:
                self._owner = getattr(self._owner, name)
            result = getattr(self._owner, self._name)
            self._key = Ops[entry.rstrip("]")] if entry else None
            if self._key is None:
                return result
            return result.get(self._key) if self.missing else result[self._key]
        except (ImportError, AttributeError, KeyError) as error:
            raise self._gone() from error

    def _gone(self) -> PatchError:
        return PatchError(
            f"tiny: tinygrad {version('tinygrad')} has no {self.site}, which a patch written for tinygrad "
            f"{self.versions} replaces; install 'tinygrad{self.versions}'"
        )

    def apply(self, replacement: Any) -> None:
        """Put `replacement` at the site."""
        if self._key is None:
            setattr(self._owner, self._name, replacement)
        else:
            getattr(self._owner, self._name)[self._key] = replacement


class RulePatch(Patch):
    """A rule of the PatternMatcher at a site, found by its pattern and function: exactly one must be `matching`.

    Without `matching`, the site is the function of a rule itself, in all matchers that contain it.
    """

    def __init__(
        self, site: str, rule: str, fault: str, test: str, matching: Callable[[Any, Any], bool] | None = None
    ) -> None:
        self.rule, self._matching = rule, matching
        super().__init__(site, fault, test)
        self.site = f"{site}, rule {rule}"

    def _find(self) -> Any:
        result = super()._find()
        if self._matching is None:
            return result
        functions = list(dict.fromkeys(f for pattern, f in result.patterns if self._matching(pattern, f)))
        if len(functions) != 1:
            self.site = f"single rule {self.rule} in {self.site}"
            raise self._gone()
        return functions[0]

    def apply(self, replacement: Callable[..., Any]) -> None:
        """Run `replacement` where matchers would run the rule's function."""
        REPLACED_RULES[self.original] = replacement


def arguments(*names: str, op: Ops | None = None, inner: Ops | None = None) -> Callable[[Any, Any], bool]:
    """Matches a rule by its function's argument names, its outermost op, and the op of its first operand."""

    def matching(pattern: Any, function: Any) -> bool:
        return (
            function.__code__.co_varnames == names
            and (op is None or pattern.op == (op,))
            and (inner is None or pattern.src[0][0].op == (inner,))
        )

    return matching
