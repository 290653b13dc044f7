"""Whom certificates and signed tokens name, by the settings of a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from oncelog.actors.protocol.certificate_names import CertificateNames, subject_of
from oncelog.actors.rpc.door import Bearer, Named, Refused
from oncelog.actors.rpc.signed_tokens import Refusal, SignedTokens


class ConfiguredNaming:
    """``Naming`` of production: ``rules`` for certificates; without ``tokens`` none is accepted."""

    def __init__(self, rules: str, tokens: SignedTokens | None = None) -> None:
        self._names = CertificateNames(rules)
        self._tokens = tokens

    def bearer_of(self, token: str) -> Bearer | Refused:
        """See ``Naming``."""
        if self._tokens is None:
            return Refused("the cluster accepts no tokens: token_keys is not set")
        found = self._tokens.verify(token)
        return Refused(found.reason) if isinstance(found, Refusal) else found

    def named_by(self, certificate: Mapping[str, Any]) -> Bearer | Refused:
        """See ``Naming``."""
        subject = subject_of(certificate)
        name = self._names.name_of(subject)
        if name is None:
            return Refused(f"no rule names {subject!r}")
        return Named(name, 1_000 * ssl.cert_time_to_seconds(certificate["notAfter"]))
