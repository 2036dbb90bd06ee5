"""What is a fault, and what are all of them together?

Values only; `doctor` has the rules. The word that names a rule is stable: programs may ask for it.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["error", "warning", "info"]
WORST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "info")


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
