"""Keys and certificates of a kit: signatures of each kind, and certificates that are not the party's."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed448, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from parties import DAY, Authority, KeyKind, now, write_kit

from fedad_components.audit.keys import (
    KeysError,
    Signer,
    check_certificate,
    is_exact,
    load_certificate,
    load_root,
    root_of_kit,
    verify_signature,
)

KINDS: list[KeyKind] = ["rsa", "ec", "ed25519"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.mark.parametrize("kind", KINDS)
def test_signatures(authority: Authority, kind: KeyKind) -> None:
    signer, other = authority.leaf("site-a", kind), authority.leaf("site-a", kind)
    signature = signer.sign(b"content")
    assert verify_signature(signer.certificate, signature, b"content")
    assert not verify_signature(signer.certificate, signature, b"contents")
    assert not verify_signature(other.certificate, signature, b"content")
    raw = bytearray(base64.b64decode(signature))
    raw[len(raw) // 2] ^= 1
    assert not verify_signature(signer.certificate, base64.b64encode(raw).decode(), b"content")
    for other_form in (signature + "\n", signature.rstrip("=") + "===", "", "*", "é", signature[:-4]):
        assert not verify_signature(signer.certificate, other_form, b"content")
    assert not verify_signature("no certificate", signature, b"content")


def test_an_rsa_signature_is_pss(authority: Authority) -> None:
    """Checked with the library's own call, whatever the salt's length."""
    signer = authority.leaf("site-a", "rsa")
    key = load_certificate(signer.certificate).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    scheme = padding.PSS(padding.MGF1(SHA256()), padding.PSS.AUTO)
    key.verify(base64.b64decode(signer.sign(b"content")), b"content", scheme, SHA256())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["client", "server"])
def test_from_kit(tmp_path: Path, authority: Authority, kind: KeyKind, role: str) -> None:
    leaf = authority.leaf("site-a", kind)
    signer = Signer.from_kit(write_kit(tmp_path, leaf, role, authority.pem))
    assert (signer.name, signer.certificate) == ("site-a", leaf.certificate)
    assert verify_signature(leaf.certificate, signer.sign(b"x"), b"x")
    assert root_of_kit(tmp_path) == authority.pem


def test_kits_that_cannot_be_used(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(KeysError, match="neither"):
        Signer.from_kit(tmp_path)
    kit = write_kit(tmp_path / "kit", authority.leaf("site-a"), "client", authority.pem)
    (kit / "startup" / "client.crt").write_text(authority.leaf("site-a").certificate)
    with pytest.raises(KeysError, match="not its certificate's"):
        Signer.from_kit(kit)
    (kit / "startup" / "client.crt").write_text("nothing")
    with pytest.raises(KeysError, match="not a certificate"):
        Signer.from_kit(kit)
    (kit / "startup" / "client.crt").unlink()
    with pytest.raises(KeysError, match="cannot be read"):
        Signer.from_kit(kit)
    with pytest.raises(KeysError, match="none of RSA"):
        Signer(ed448.Ed448PrivateKey.generate(), authority.leaf("a").certificate)  # type: ignore[arg-type]


def test_no_error_quotes_a_key(tmp_path: Path, authority: Authority) -> None:
    kit = write_kit(tmp_path, authority.leaf("site-a", "rsa"), "client", authority.pem)
    key = kit / "startup" / "client.key"
    lines = key.read_text().splitlines()
    for spoilt in (["-----BEGIN RSA PRIVATE KEY-----", "SECRET", *lines[3:]], lines[1:-1], [*lines[:5], lines[-1]]):
        key.write_text("\n".join((kit / "startup" / "client.crt").read_text().splitlines()[:0] + spoilt))
        with pytest.raises(KeysError) as error:
            Signer.from_kit(kit)
        shown = str(error.value) + repr(error.value.__cause__)
        assert not any(line in shown for line in [*lines[1:-1], "SECRET"])
        assert str(key) in shown


def test_a_certificate_of_the_party(authority: Authority) -> None:
    leaf = authority.leaf("site-a")
    assert check_certificate(leaf.certificate, authority.pem, now(), "site-a") == []


def test_certificates_that_are_not_the_partys(authority: Authority) -> None:
    def problems(signer: Signer, when: datetime, name: str = "site-a") -> list[tuple[bool, str]]:
        return [(p.expired, p.detail) for p in check_certificate(signer.certificate, authority.pem, when, name)]

    leaf = authority.leaf("site-a", begins=now() - 10 * DAY, ends=now() - 5 * DAY)
    assert problems(leaf, now() - 7 * DAY) == []
    for when in (now(), now() - 11 * DAY):
        assert [expired for expired, _ in problems(leaf, when)] == [True]
    (other_name,) = problems(leaf, now() - 7 * DAY, "site-b")
    assert other_name == (False, "issued to 'site-a', not to 'site-b'")
    (rogue,) = problems(Authority().leaf("site-a"), now())  # the same name of the root, another key
    assert rogue == (False, "not issued by the root 'project'")
    long_ago = datetime(2000, 1, 1, tzinfo=timezone.utc)
    assert [expired for expired, _ in problems(leaf, long_ago)] == [True, True]
    assert check_certificate("x", authority.pem, now(), "site-a")[0].expired is False


def test_roots(tmp_path: Path, authority: Authority) -> None:
    assert load_root(authority.write_root(tmp_path)) == authority.pem
    path = tmp_path / "other.pem"
    for content, match in (("nothing", "not a certificate"), (authority.leaf("site-a").certificate, "'site-a'")):
        path.write_text(content)
        with pytest.raises(KeysError, match=match):
            load_root(path)
    with pytest.raises(KeysError, match="cannot be read"):
        load_root(tmp_path / "absent.pem")


def test_only_one_text_is_a_certificates(authority: Authority) -> None:
    pem = authority.leaf("site-a").certificate
    assert is_exact(pem)
    for text in (pem + "\n", "x\n" + pem, pem.replace("\n", "\r\n"), pem[:-1], pem + pem):
        assert not is_exact(text)
