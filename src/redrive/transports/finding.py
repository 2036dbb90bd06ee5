"""What is a fault, and what are all of them together?

Values only; each broker's `doctor` has its rules. The word that names a rule is stable: programs may ask for it.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec

Severity: TypeAlias = Literal["error", "warning", "info"]
WORST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "info")
PROVISION: Final = "redrive provision --apply"  # what mends whatever is merely missing


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault: what it is, what would be lost by it, and how it is mended."""

    rule: str
    severity: Severity
    subject: str
    text: str
    loss: str
    mend: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All faults, the worst first, and what could not be looked at."""

    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Iterable[Finding], unseen: tuple[str, ...]) -> Self:
        """Each fault once, however many sources have it."""
        once = sorted(dict.fromkeys(told), key=lambda finding: WORST_FIRST.index(finding.severity))
        return cls(findings=tuple(once), unseen=unseen)

    @property
    def healthy(self) -> bool:
        """Whether there is nothing but information."""
        return all(finding.severity == "info" for finding in self.findings)

    def as_table(self) -> dict[str, Any]:
        """As plain values, for programs."""
        return {
            "healthy": self.healthy,
            "findings": [msgspec.to_builtins(finding) for finding in self.findings],
            "unseen": list(self.unseen),
        }
