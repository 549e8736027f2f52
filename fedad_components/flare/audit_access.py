"""Who asks what of a parent process: every command with its answer, the sign-ins of people, the sites that register.

FLARE 2.9 shows no refusal of TLS: a connection without the consortium's certificate ends inside gRPC, and nothing of
it reaches Python. What is seen are certificates that TLS accepts and FLARE then refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.fuel.hci.proto import ProtoKey
from nvflare.fuel.hci.security import IdentityKey, get_identity_info
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.login import LoginModule
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext
from nvflare.lighter.utils import cert_to_dict, load_crt_chain_bytes
from nvflare.private.defs import CellMessageHeaderKeys, ClientType

from fedad_components.audit.event import Kind, Outcome
from fedad_components.audit.log import AuditError
from fedad_components.flare.audit import Record, actor, word

_NOT_AUTHORIZED = "not authorised"
_LOG_FAILS = "the compliance log of this server or site cannot be written, and it obeys nothing meanwhile: see its log"


class RecordedAuthorizer:
    """FLARE's authorizer; each question and its answer are in the log before the command is done.

    Without the log, the answer is no.
    """

    def __init__(self, authorizer: Any, record: Record) -> None:
        self._authorizer, self._record = authorizer, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._authorizer, name)

    def authorize(self, ctx: AuthzContext) -> tuple[bool, str]:
        """FLARE's answer: whether, and why not."""
        authorized, error = self._authorizer.authorize(ctx)
        outcome = Outcome.SUCCESS if authorized else Outcome.REFUSED
        who = actor(ctx.user.name, ctx.user.org, ctx.user.role)
        reason = None if authorized else _NOT_AUTHORIZED
        try:
            self._record.write(Kind.COMMAND, outcome, actor=who, command=word(ctx.right), reason=reason)
        except AuditError:
            self._record.note(Kind.COMMAND, Outcome.FAILED, actor=who, command=word(ctx.right))
            return False, _LOG_FAILS
        return authorized, error


def record_commands(record: Record) -> None:
    """Stand before the process's authorizer, which is asked for each command that needs a right."""
    authorizer = AuthorizationService.the_authorizer
    if authorizer is not None and not isinstance(authorizer, RecordedAuthorizer):
        AuthorizationService.the_authorizer = RecordedAuthorizer(authorizer, record)


def record_sign_ins(record: Record) -> None:
    """Stand before FLARE's sign-in of people, whose commands are built after this."""
    LoginModule.handle_cert_login = _recorded_login(LoginModule.handle_cert_login, record)


def _recorded_login(login: Callable[..., None], record: Record) -> Callable[..., None]:
    @wraps(login)
    def recorded(module: LoginModule, conn: Any, args: list[str]) -> None:
        try:
            login(module, conn, args)
        finally:
            accepted = any(item.get(ProtoKey.TYPE) == ProtoKey.TOKEN for item in conn.buffer.data)
            name, org, role = _claimed(conn)
            if accepted:
                record.note(Kind.SIGNED_IN, Outcome.SUCCESS, actor=actor(name, org, role))
            else:
                claimed = actor(word(name)) if name else None
                record.note(Kind.SIGNED_IN, actor=claimed, reason="its certificate or signature was refused")

    return recorded


def _claimed(conn: Any) -> tuple[str | None, str | None, str | None]:
    """Name, organisation and role in the certificate that came with a sign-in, whether it is good or not."""
    try:
        certificate = load_crt_chain_bytes(conn.get_prop(ConnProps.CMD_HEADERS)["cert"])[0]
        identity = get_identity_info(cert_to_dict(certificate))
    except Exception:  # whatever a stranger has sent
        return None, None, None
    return identity.get(IdentityKey.NAME), identity.get(IdentityKey.ORG), identity.get(IdentityKey.ROLE)


def record_sites(manager: Any, record: Record) -> None:
    """Stand before the server's registration of sites."""
    authenticate = manager.authenticate

    def recorded(request: Any, fl_ctx: FLContext) -> Any:
        name = word(request.get_header(CellMessageHeaderKeys.CLIENT_NAME))
        try:
            client = authenticate(request, fl_ctx)
        except NotAuthenticated:
            record.note(Kind.CONNECTION_REFUSED, peer=name, reason="its certificate is not that of the name it gave")
            raise
        if client is None:
            record.note(Kind.CONNECTION_REFUSED, peer=name, reason="FLARE refused its registration")
        elif request.get_header(CellMessageHeaderKeys.CLIENT_TYPE) == ClientType.REGULAR:
            # A console registers too; its person signs in afterwards.
            record.note(Kind.SIGNED_IN, Outcome.SUCCESS, peer=word(client.name))
        return client

    manager.authenticate = recorded
