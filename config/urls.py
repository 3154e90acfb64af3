"""Every address of the web process."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from config import health
from notifications.telegram.webhook import webhook

admin.autodiscover()

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="docs")),
    path("api/v1/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/v1/docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
    path("api/v1/", include("attachments.urls")),
    path("admin/", admin.site.urls),
    path("telegram/webhook", webhook),
    path("healthz", health.healthz),
    path("healthcheck", health.healthz),
    path("readyz", health.readyz),
    path("metrics", health.metrics),
]

handler400 = "attachments.problems.bad_request"
handler403 = "attachments.problems.permission_denied"
handler404 = "attachments.problems.not_found"
handler500 = "attachments.problems.server_error"
