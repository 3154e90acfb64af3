"""What the schema promises, asked of the real server with values that a person would not think of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from django.contrib.auth.models import Permission
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase
from hypothesis import settings as bounds
from schemathesis import checks

from attachments.models import Attachment
from tests.attachments.conftest import Door, Web

pytestmark = pytest.mark.django_db(transaction=True)

CONFORMS = [
    checks.not_a_server_error,
    checks.content_type_conformance,
    checks.status_code_conformance,
    checks.response_schema_conformance,
]

GENERATED = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
schema = schemathesis.openapi.from_dict(GENERATED).include(path_regex="/attachments/")


def test_the_file_of_an_upload_is_chosen_not_typed() -> None:
    (form,) = GENERATED["paths"]["/api/v1/attachments/"]["post"]["requestBody"]["content"].values()
    name = form["schema"]["$ref"].rpartition("/")[2]
    file = GENERATED["components"]["schemas"][name]["properties"]["file"]
    assert (file["type"], file["format"]) == ("string", "binary")


@schema.parametrize()
@bounds(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_its_schema_says(
    web: Web, door: Door, finished: Callable[..., Attachment], case: schemathesis.Case[Any]
) -> None:
    known = Attachment.objects.first() or finished()
    door.owner.user_permissions.set(Permission.objects.filter(codename="replay_job"))
    if case.method != "DELETE" and "attachment_id" in case.path_parameters:
        case.path_parameters["attachment_id"] = str(known.id)
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{web.port}", headers={"Authorization": f"Token {door.token}"}, checks=CONFORMS
    )
