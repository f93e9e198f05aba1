"""A certificate authority for users of a test cluster, who log in with client certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """Signs certificates. The file with its own certificate is for `--client-ca-file`."""

    def __init__(self, file: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("clients", "")
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, user: str, group: str) -> tuple[bytes, bytes]:
        """Return the certificate and the key of a user, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(user, group), self._name, key.public_key())
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private


def _name(user: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    return x509.Name([*([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []), *parts])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=1))
