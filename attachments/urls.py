"""The addresses of the REST door, below /api/v1/."""

from django.urls import path
from django.views.decorators.common import no_append_slash

from attachments import api

urlpatterns = [
    # A redirect to the slash would turn an upload into a listing, and answer it 200.
    path("attachments/", no_append_slash(api.Attachments.as_view()), name="attachments"),
    path("attachments/<uuid:attachment_id>/", api.OneAttachment.as_view(), name="attachment"),
    path("attachments/<uuid:attachment_id>/replay/", no_append_slash(api.Replay.as_view()), name="attachment-replay"),
    path("attachments/<uuid:attachment_id>/original/", api.Original.as_view(), name="attachment-original"),
    path(
        "attachments/<uuid:attachment_id>/variants/<slug:name>/",
        api.OneVariant.as_view(),
        name="attachment-variant",
    ),
]
