"""Verification of logs away from the system: with copies and the root certificate, and nobody's word.

What it can show, and what not: whoever holds a party's key can write a new log for it from the last checkpoint on that
a peer keeps. Events that were never written leave no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedad_components.audit.chain import ChainVerifier
from fedad_components.audit.findings import FindingKind, Findings, Verification
from fedad_components.audit.keys import KeysError, load_root
from fedad_components.audit.reading import ReadError, find_chains
from fedad_components.audit.trust import Claim, Trust
from fedad_components.audit.updates import Updates


class VerifyError(ValueError):
    """Nothing can be verified; the message names the path or certificate, and the fix."""


def verify(paths: Iterable[str | Path], root_ca: str | Path | None = None) -> Verification:
    """Verify the logs of one or more parties, each alone and against the others.

    Args:
        paths: log files, folders of a log, or folders that hold several.
        root_ca: the consortium's root certificate; without it each certificate is believed.

    Raises:
        VerifyError: if a path holds no log or cannot be read, or the root is no certificate.
    """
    try:
        chains = find_chains(paths)
        trust = Trust(load_root(root_ca) if root_ca else None)
        files = [file for chain in chains for file in chain.files]
        claims = trust.claims(files)
        findings, warnings, updates = Findings(), Findings(), Updates()
        verifiers = [ChainVerifier(chain, trust, claims, updates, findings, warnings) for chain in chains]
        for verifier in verifiers:
            verifier.verify()
    except (ReadError, KeysError) as error:
        raise VerifyError(str(error)) from None
    updates.compare(findings)
    _two_stories(claims, findings)
    sites = {verifier.site for verifier in verifiers if verifier.site is not None}
    _not_given(claims, sites, warnings)
    found = findings.result()
    return Verification(
        verified=not found,
        events=sum(verifier.events for verifier in verifiers),
        files=[str(file) for file in files],
        sites=sorted(sites),
        checkpoints=sum(verifier.checkpoints for verifier in verifiers),
        root_checked=root_ca is not None,
        findings=found,
        warnings=warnings.result(),
    )


def _two_stories(claims: Mapping[str, Mapping[int, list[Claim]]], findings: Findings) -> None:
    """A party that told two peers different things, or a peer another than its log: seen also without its log."""
    for site, by_event in claims.items():
        for seq, held in by_event.items():
            for claim in held[1:]:
                if claim.root != held[0].root:
                    detail = (
                        f"{site!r} signed two different events {seq}: the other is held by {held[0].holder!r} "
                        f"({held[0].path.name}:{held[0].line})"
                    )
                    findings.add(claim.path, claim.line, FindingKind.PEER_CHECKPOINT_MISMATCH, detail)


def _not_given(claims: Mapping[str, Mapping[int, list[Claim]]], sites: set[str], warnings: Findings) -> None:
    """Parties of whom peers hold checkpoints that nothing here can be compared with."""
    for site in sorted(claims.keys() - sites):
        number, (newest, *_) = max(claims[site].items())
        detail = f"{newest.holder!r} holds a checkpoint of event {number} of {site!r}, whose log is not among these"
        warnings.add(newest.path, newest.line, FindingKind.LOG_NOT_GIVEN, detail)
