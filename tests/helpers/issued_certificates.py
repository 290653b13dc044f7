"""An authority of a test's own, and what it certifies, as files for Ray's variables."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Certifies addresses; its own certificate, ``<name>.crt``, expires in ``days``."""

    def __init__(self, directory: Path, name: str, days: float = 1) -> None:
        self.directory = directory
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = directory / f"{name}.crt"
        self._write(self.path, self._certificate(self._subject, self._key, (), days))

    def issue(self, *addresses: str, days: float = 1) -> dict[str, str]:
        """Ray's variables for a process that is reached at ``addresses``; it expires in ``days``.

        What was issued to these addresses before is replaced.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a process")])
        stem = f"{self.name}-{'-'.join(addresses)}"
        certificate, key_path = (self.directory / f"{stem}.{end}" for end in ("crt", "key"))
        self._write(certificate, self._certificate(subject, key, addresses, days))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(certificate),
            "RAY_TLS_SERVER_KEY": str(key_path),
            "RAY_TLS_CA_CERT": str(self.path),
        }

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        addresses: tuple[str, ...],
        days: float,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        constraints = x509.BasicConstraints(ca=not addresses, path_length=None)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(constraints, critical=True)
        )
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            names_with_host = [x509.DNSName("localhost"), *names]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(names_with_host), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
