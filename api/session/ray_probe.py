"""Whether a Ray cluster is at an address: answered within seconds, before Ray itself connects.

Ray retries for minutes when nothing answers, and forever when something else does. One call to
the control store shows that it is one, of which cluster, and whether it accepts our token.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import grpc

from oncelog.storage.exceptions import ConnectionFailedError

TIMEOUT_S: Final = 10.0
"""How long the control store may take to answer; it does so in a few milliseconds."""

_WHO_ARE_YOU: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_NO_PROXY: Final = (("grpc.enable_http_proxy", 0),)
_ADVICE: Final = "start one with `oncelog start`, or pass the address of one that runs"


def ray_cluster_at(address: str, given: str = "") -> bytes:
    """What names the Ray cluster at ``address``, host:port; ``given`` is how the caller put it.

    Raises ``ConnectionFailedError`` that says whether nothing answers, something else does, or the
    token is missing or wrong.
    """
    shown = f"address={given or address!r}"
    if given not in {"", "auto", address}:
        # Ray takes a name of this machine for the address of its node.
        shown += f", which Ray takes for {address},"
    headers = _token_headers()
    open_channel: Any = grpc.insecure_channel
    with open_channel(address, options=_NO_PROXY) as channel:
        ask = channel.unary_unary(_WHO_ARE_YOU)
        try:
            answer: bytes = ask(b"", timeout=TIMEOUT_S, metadata=headers)
        except grpc.RpcError as error:
            raise ConnectionFailedError(_reason(error, shown, bool(headers))) from None
    return answer


def _token_headers() -> tuple[tuple[str, str], ...]:
    # Imported here: Ray reads its authentication mode when it is imported.
    raylet: Any = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    if not loader.has_token():
        return ()
    return tuple(loader.get_token_for_http_header().items())


def _reason(error: Any, shown: str, has_token: bool) -> str:
    code = error.code()
    if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
        what = "refuses the token that is set here" if has_token else "demands a token"
        return (
            f"the Ray cluster at {shown} {what}: copy ~/.ray/auth_token of the machine that "
            "started it, or set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and RAY_AUTH_MODE=token"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED or "HTTP/2" in error.details():
        return f"what answers at {shown} is no Ray cluster: {_ADVICE}"
    detail = error.details().rpartition(": ")[2] or code.name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        detail = f"nothing within {TIMEOUT_S:.0f} s"
    return f"no Ray cluster answers at {shown} ({detail}): {_ADVICE}"
