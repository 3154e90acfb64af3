"""The REST door. What each call answers is docs/api.md; errors are `attachments.problems`."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponseBase
from django.http.request import UnreadablePostError
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from attachments import listing, names, serving
from attachments.listing import InvalidCursor, Status
from attachments.models import Attachment, StoredObject
from attachments.problems import Problem, as_problem, invalid
from attachments.serializers import (
    AcceptedSerializer,
    ListParameters,
    PageSerializer,
    ProblemSerializer,
    ReplayBody,
    StatusSerializer,
    UploadFields,
    UploadForm,
    WaitParameters,
)
from attachments.upload import Body, received_form
from attachments.waiting import TooManyWaiters, watcher
from pipeline import intake, lifecycle, metrics, removal, replays
from pipeline.origins import Origin
from pipeline.states import TERMINAL, Source

KEY_LIMIT = 255
SEARCH_OFF = (
    "The search in transcripts is off here. Leave `q` out; or ask the operator to set SEARCH_TRANSCRIPTS and to run"
    " manage.py search_index."
)

logger = logging.getLogger(__name__)


def problems(*statuses: int) -> dict[Any, Any]:
    """The problem documents that an operation may answer with, for the schema."""
    return {(status, "application/problem+json"): ProblemSerializer for status in (401, *statuses, 503)}


BYTES = {
    (200, "*/*"): OpenApiResponse(OpenApiTypes.BINARY, "The bytes, as their stored type."),
    (206, "*/*"): OpenApiResponse(OpenApiTypes.BINARY, "The range asked for."),
    302: OpenApiResponse(description="A short-lived signed URL, where the storage serves bytes itself."),
    304: OpenApiResponse(description="The client has these bytes."),
    **problems(404, 412, 416),
}


class OwnersView(APIView):
    """What all calls share: who asks, and that answers are theirs alone."""

    request: Request

    @property
    def owner(self) -> User:
        assert isinstance(self.request.user, User)
        return self.request.user

    def get_status(self, attachment_id: uuid.UUID, *, owner: User | None = None) -> Status:
        """The owner's attachment; another's, a deleted one and none at all look the same."""
        status = listing.find_status(owner or self.owner, attachment_id)
        if status is None:
            raise Problem(404, "not_found", "You have no such attachment.")
        return status

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response


class Attachments(OwnersView):
    parser_classes = [MultiPartParser]

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        self.body = Body(request)
        return super().initialize_request(request, *args, **kwargs)

    def handle_exception(self, exc: Exception) -> Any:
        """Whatever refuses an upload, from a wrong token to a wrong file, is heard by a client that still sends."""
        self.body.drain()
        return super().handle_exception(exc)

    @extend_schema(
        operation_id="attachments_list",
        summary="List what you sent, newest first",
        parameters=[ListParameters],
        responses={200: PageSerializer, **problems(400, 422)},
    )
    def get(self, request: Request) -> Response:
        wanted = _checked(ListParameters(data=request.query_params.dict()))
        cursor, q = wanted.pop("cursor", None), wanted.get("q")
        if q and not settings.SEARCH_TRANSCRIPTS:
            raise Problem(400, "search_off", SEARCH_OFF)
        try:
            found, after = listing.page(listing.matching(listing.living(self.owner), **wanted), after=cursor)
        except InvalidCursor as error:
            raise invalid({"cursor": ["Take the cursor from `next`, or leave it out to start over."]}) from error
        page = {"results": listing.with_moments(found, q) if q else found, "next": _next(request, after)}
        return Response(PageSerializer(page, context={"request": request}).data)

    @extend_schema(
        operation_id="attachments_create",
        summary="Send a file",
        description="202 means safe: the file is stored and its processing is certain. The same Idempotency-Key with"
        " the same bytes and parameters gives the same answer again, however often it is sent.",
        parameters=[
            OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, description="Yours, 1 to 255 characters.")
        ],
        request={"multipart/form-data": UploadForm},
        responses={202: AcceptedSerializer, **problems(400, 403, 410, 411, 413, 415, 422)},
    )
    def post(self, request: Request) -> Response:
        try:
            accepted = self._receive(request)
        except Exception as error:
            self._count(as_problem(error))
            raise
        headers = {"Location": _address(request, accepted.attachment.id), "Retry-After": "1"}
        if accepted.is_repeat:
            headers["Idempotent-Replayed"] = "true"
        return Response(AcceptedSerializer(accepted).data, status=202, headers=headers)

    def _receive(self, request: Request) -> intake.Accepted:
        key = _idempotency_key(request)
        with received_form(self.body) as form:
            fields = _checked(UploadFields(data=form.fields))
            received = form.receiver.finish()
        # A slow upload may outlast the connection that was checked at its beginning.
        connection.health_check_done = False  # type: ignore[attr-defined]
        return intake.accept(
            received,
            intake.Request(
                owner=self.owner,
                origin=Origin(Source.REST),
                name=form.filename,
                claimed_type=form.claimed_type,
                idempotency_key=key,
                **fields,
            ),
        )

    def _count(self, problem: Problem) -> None:
        if problem.status < 500:
            metrics.REFUSED.labels(code=problem.code).inc()
            logger.info("refused", extra={"code": problem.code, "received": self.body.received})


class OneAttachment(OwnersView):
    @extend_schema(
        operation_id="attachments_retrieve",
        summary="See one attachment, now or when its state changes",
        parameters=[WaitParameters],
        responses={200: StatusSerializer, **problems(404, 422)},
    )
    def get(self, request: Request, attachment_id: uuid.UUID) -> Response:
        seconds = _checked(WaitParameters(data=request.query_params.dict()))["wait"]
        status = self.get_status(attachment_id)
        if seconds and status.state not in TERMINAL:
            self._wait(status, seconds)
            status = self.get_status(attachment_id)
        headers = {} if status.state in TERMINAL else {"Retry-After": "1"}
        return Response(StatusSerializer(status, context={"request": request}).data, headers=headers)

    @extend_schema(
        operation_id="attachments_destroy",
        summary="Delete an attachment and all that was made of it",
        responses={204: None, **problems(403, 404)},
    )
    def delete(self, _: Request, attachment_id: uuid.UUID) -> Response:
        self.get_status(attachment_id)
        if not removal.remove(attachment_id, actor=f"{Source.REST}:{self.owner.pk}"):
            raise Problem(404, "not_found", "You have no such attachment.")
        return Response(status=204)

    def _wait(self, status: Status, seconds: int) -> None:
        """Hold no connection to the database meanwhile; where too many wait already, answer as things are."""
        connection.close()
        try:
            watcher.wait(status.attachment.id, state=status.state, seconds=seconds)
        except TooManyWaiters:
            return


class Replay(OwnersView):
    @extend_schema(
        operation_id="attachments_replay",
        summary="Have a failed attachment tried again, as an operator",
        description="Whoever has the permission `pipeline.replay_job` may do so with everybody's. The newest job gets a"
        " new attempt with all its chances. Asking again does nothing twice.",
        request=ReplayBody,
        responses={202: StatusSerializer, **problems(400, 403, 404, 409, 413, 415, 422)},
    )
    def post(self, request: Request, attachment_id: uuid.UUID) -> Response:
        owner = self._get_owner(attachment_id)
        reason = _checked(ReplayBody(data=_json(request)))["reason"]
        self._replay(attachment_id, reason)
        status = self.get_status(attachment_id, owner=owner)
        return Response(StatusSerializer(status, context={"request": request}).data, status=202)

    def _get_owner(self, attachment_id: uuid.UUID) -> User:
        """Whose it is, for operators; others are only told whether it is theirs."""
        attachments = Attachment.objects.filter(id=attachment_id, deleted_at__isnull=True)
        if self.owner.has_perm("pipeline.replay_job"):
            found = attachments.select_related("owner").first()
        elif found := attachments.filter(owner=self.owner).first():
            raise Problem(403, "permission_denied", "Only operators may do this. Ask one of them.")
        if found is None:
            raise Problem(404, "not_found", "There is no such attachment.")
        return found.owner

    def _replay(self, attachment_id: uuid.UUID, reason: str) -> None:
        chosen_by = {"attachment": str(attachment_id)}
        actor = replays.operator(self.owner)
        act = replays.Act(actor=actor, via="api", reason=reason, chosen_by=chosen_by, matching=1)
        try:
            act.replay(replays.get_newest_failure(attachment_id))
        except lifecycle.NotFailed as error:
            detail = "Its newest job has not failed, or was replayed already. Look at its state."
            raise Problem(409, "nothing_failed", detail) from error
        except lifecycle.Gone as error:
            detail = "The original, or what was made of it, is no longer kept. Have the file sent again."
            raise Problem(409, "original_gone", detail) from error


class AnyType(BaseContentNegotiation):
    """Bytes are what they are, whatever type the client would like; problems are JSON."""

    def select_parser(self, _: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _: Request, renderers: Any, _format: str | None = None) -> Any:
        renderer: BaseRenderer = renderers[0]
        return renderer, renderer.media_type


class Bytes(OwnersView):
    content_negotiation_class = AnyType

    def serve(self, status: Status, stored: StoredObject, *, variant: str = "") -> HttpResponseBase:
        filename = names.download_name(status.attachment.name, content_type=stored.content_type, variant=variant)
        return serving.serve(self.request, stored, filename=filename)


class Original(Bytes):
    @extend_schema(
        operation_id="attachments_original",
        summary="Get the bytes as they were sent",
        responses={**BYTES, **problems(410)},
    )
    def get(self, _: Request, attachment_id: uuid.UUID) -> HttpResponseBase:
        status = self.get_status(attachment_id)
        if status.original is None:
            raise Problem(410, "original_gone", "The original is no longer kept. Send the file again if you need it.")
        return self.serve(status, status.original)


class OneVariant(Bytes):
    @extend_schema(
        operation_id="attachments_variant",
        summary="Get the bytes of one variant",
        responses=BYTES,
    )
    def get(self, _: Request, attachment_id: uuid.UUID, name: str) -> HttpResponseBase:
        status = self.get_status(attachment_id)
        variant = status.variants.get(name)
        if variant is None:
            raise Problem(404, "not_found", "The attachment has no such variant, or is not ready yet.")
        return self.serve(status, variant.stored_object, variant=name)


def _checked(serializer: Any) -> dict[str, Any]:
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def _json(request: Request) -> Any:
    try:
        return request.data
    except UnreadablePostError as error:
        raise Problem(400, "body_incomplete", "The connection broke before the whole body had arrived.") from error
    except (ParseError, RecursionError) as error:
        raise Problem(400, "malformed_json", "Send one JSON document in UTF-8.") from error


def _idempotency_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not (0 < len(key) <= KEY_LIMIT and key.isascii() and key.isprintable()):
        raise invalid({"Idempotency-Key": [f"Use 1 to {KEY_LIMIT} printable ASCII characters."]})
    return key


def _address(request: Request, attachment_id: uuid.UUID) -> str:
    return str(request.build_absolute_uri(reverse("attachment", kwargs={"attachment_id": attachment_id})))


def _next(request: Request, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    parameters = request.query_params.copy()
    parameters["cursor"] = cursor
    return str(request.build_absolute_uri(f"?{parameters.urlencode()}"))
