"""What a check found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result.

    Attributes:
        what: The name of the check.
        status: How it is; a "note" is worth knowing and breaks nothing.
        found: The text of what the check saw.
        remedy: What to do; empty where all is well.
    """

    what: str
    status: Status
    found: str
    remedy: str = ""


def is_sound(findings: Sequence[Finding]) -> bool:
    """Return whether nothing is broken.

    Args:
        findings: What the checks found.
    """
    return all(finding.status != "broken" for finding in findings)


def findings_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, and one below it that says what to do.

    Args:
        findings: What the checks found.
    """
    width = max((len(finding.what) for finding in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<7} {finding.what:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':<7} {'':<{width}}  -> {finding.remedy}")
    broken = sum(finding.status == "broken" for finding in findings)
    lines.append("all is well" if not broken else f"{broken} of {len(findings)} broken")
    return "\n".join(lines)
