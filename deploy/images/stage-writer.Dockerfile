# The stage writer: Python, librdkafka and Arrow; no JVM and no compiler.
# From the root of the repository:  docker build -f deploy/images/stage-writer.Dockerfile -t kafka-delta-express/stage-writer .

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Where a build reaches the registries: through a mirror, or trusting an authority of your own (a file that is mounted).
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_CERT SSL_CERT_FILE KDE_MAVEN_URL
# For the reader of JSON in C, which comes with the package that is built here.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/kafka-delta-express
ENV PATH=/opt/kafka-delta-express/bin:$PATH
WORKDIR /source
COPY deploy/images/build.lock deploy/images/stage-writer.lock ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --no-deps --requirement build.lock \
    && pip install --require-hashes --no-deps --requirement stage-writer.lock
COPY pyproject.toml hatch_build.py kafka_delta_express.py README.md LICENSE ./
COPY common common
COPY stage_writer stage_writer
COPY delta_loader delta_loader
COPY bootstrap bootstrap
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && pip install --no-deps /wheels/*.whl \
    && python -I -c "from stage_writer.native.library import library_path as path; assert path().exists()" \
    && python -m pip uninstall --yes pip setuptools

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="kafka-delta-express stage writer" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kafka-delta-express
COPY --from=build /opt/kafka-delta-express /opt/kafka-delta-express
ENV PATH=/opt/kafka-delta-express/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080
# Alive: it answers. What is wrong with a stream is no reason to restart it, and is told by /healthcheck and alerts.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 \
    CMD ["python", "-I", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/version'); raise SystemExit(c.getresponse().status != 200)"]
# SIGTERM flushes and leaves the group.
STOPSIGNAL SIGTERM
ENTRYPOINT ["stage-writer"]
CMD ["run", "/etc/kafka-delta-express/pipeline.yaml"]
