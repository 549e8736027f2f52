"""The key and certificate that provisioning gave a party, used to sign its log; and the other side, checking them."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)
_KINDS = "RSA, elliptic curve or Ed25519"


class KeysError(ValueError):
    """A key or certificate that cannot be used; the message names the file and the fix, and nothing of the key."""


class Problem(NamedTuple):
    """Why a certificate is not to be trusted."""

    expired: bool
    """It was not valid at that time; otherwise it is not the party's at all."""
    detail: str


class Signer:
    """Signs as the party that ``certificate`` (PEM) names.

    Raises:
        KeysError: if the key is of no known kind, or not the certificate's.
    """

    def __init__(self, key: PrivateKey, certificate: str) -> None:
        loaded = load_certificate(certificate)
        self._key = key
        self.certificate = _pem(loaded)
        """PEM, of one certificate and nothing else."""
        self.name = common_name(loaded)
        if not isinstance(key, PrivateKey):
            raise KeysError(f"the key of {self.name!r} is none of {_KINDS}: provision the party again")
        if _public(key) != _public(loaded):
            raise KeysError(f"the key of {self.name!r} is not its certificate's: provision the party again")

    @classmethod
    def from_kit(cls, kit: str | Path) -> Signer:
        """Of a startup kit: ``startup/client.key`` with ``client.crt``, or ``server.key`` with ``server.crt``.

        Raises:
            KeysError: if neither is there, or they cannot be used.
        """
        startup = Path(kit) / "startup"
        for role in ("server", "client"):
            key_file = startup / f"{role}.key"
            if key_file.is_file():
                certificate = _read(startup / f"{role}.crt").decode("utf-8", "replace")
                try:
                    key = load_pem_private_key(_read(key_file), password=None)
                except (ValueError, TypeError):  # the library's text may quote what it read
                    raise KeysError(f"{key_file}: no private key in PEM, without a password: provision again") from None
                try:
                    return cls(key, certificate)  # type: ignore[arg-type]  # its kind is checked there
                except KeysError as error:
                    raise KeysError(f"{startup}: {error}") from None
        raise KeysError(f"{startup}: neither server.key nor client.key; expected the startup kit of a server or a site")

    def sign(self, content: bytes) -> str:
        """The signature, base64: RSA-PSS with SHA-256 (RFC 8017), ECDSA with SHA-256, or Ed25519 (RFC 8032)."""
        if isinstance(self._key, rsa.RSAPrivateKey):
            signature = self._key.sign(content, _PSS, SHA256())
        elif isinstance(self._key, ec.EllipticCurvePrivateKey):
            signature = self._key.sign(content, ec.ECDSA(SHA256()))
        else:
            signature = self._key.sign(content)
        return base64.b64encode(signature).decode("ascii")


def root_of_kit(kit: str | Path) -> str:
    """The consortium's root certificate in a startup kit, PEM.

    Raises:
        KeysError: if it is not there or is no certificate.
    """
    return load_root(Path(kit) / "startup" / "rootCA.pem")


def load_root(path: str | Path) -> str:
    """A root certificate's file, PEM.

    Raises:
        KeysError: if it cannot be read, or holds no certificate of an authority.
    """
    try:
        root = load_certificate(_read(Path(path)).decode("utf-8", "replace"))
    except KeysError as error:
        raise KeysError(f"{path}: {error}; expected the rootCA.pem of a startup kit") from None
    try:
        authority = root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        authority = False
    if not authority:
        raise KeysError(f"{path}: the certificate of {common_name(root)!r}, not of an authority; expected rootCA.pem")
    return _pem(root)


@lru_cache(maxsize=1024)
def load_certificate(pem: str) -> x509.Certificate:
    """The first certificate of a PEM text.

    Raises:
        KeysError: if there is none.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        certificate.public_key(), certificate.subject  # parsed only when they are asked for
    except Exception:  # malformed fields raise what their parser raises
        raise KeysError("not a certificate in PEM") from None
    return certificate


def is_exact(pem: str) -> bool:
    """Whether the text is the one PEM form of a certificate: nothing around it, no bits that decoding ignores."""
    try:
        return _pem(load_certificate(pem)) == pem
    except KeysError:
        return False


def common_name(certificate: x509.Certificate) -> str:
    """The subject's common name, by which FLARE knows the party; "" if it has none or several."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def verify_signature(certificate: str, signature: str, content: bytes) -> bool:
    """Whether ``signature`` is that of :meth:`Signer.sign` by the key of ``certificate`` (PEM).

    False as well for what is no certificate or no signature, and for another encoding of a good one.
    """
    try:
        key = load_certificate(certificate).public_key()
        raw = base64.b64decode(signature, validate=True)
        if base64.b64encode(raw).decode("ascii") != signature:
            return False
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(raw, content, _PSS, SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(raw, content, ec.ECDSA(SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(raw, content)
        else:
            return False
    except (InvalidSignature, KeysError, binascii.Error, ValueError):
        return False
    return True


def check_certificate(pem: str, root_pem: str, when: datetime, name: str) -> list[Problem]:
    """Why a certificate does not make its holder ``name`` at ``when`` (with its zone); empty if it does.

    Raises:
        KeysError: if the root is no certificate.
    """
    root = load_certificate(root_pem)
    try:
        certificate = load_certificate(pem)
    except KeysError as error:
        return [Problem(False, str(error))]
    problems = []
    if not _issued(pem, root_pem):
        problems.append(Problem(False, f"not issued by the root {common_name(root)!r}"))
    if common_name(certificate) != name:
        problems.append(Problem(False, f"issued to {common_name(certificate)!r}, not to {name!r}"))
    for holder, checked in (("", certificate), ("the root's: ", root)):
        begins, ends = checked.not_valid_before_utc, checked.not_valid_after_utc
        if not begins <= when <= ends:
            problems.append(Problem(True, f"{holder}valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d} only"))
    return problems


@lru_cache(maxsize=1024)
def _issued(pem: str, root_pem: str) -> bool:
    try:
        load_certificate(pem).verify_directly_issued_by(load_certificate(root_pem))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _public(holder: PrivateKey | x509.Certificate) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeysError(f"{path}: cannot be read ({error.strerror}): run as the account that the kit is for") from None
