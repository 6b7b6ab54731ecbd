# The delta loader: Python, Spark and a Java runtime. The jars are in the image; nothing is fetched when it starts.
# From the root of the repository:  docker build -f deploy/images/delta-loader.Dockerfile -t kafka-delta-express/delta-loader .

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Where a build reaches the registries: through a mirror, or trusting an authority of your own (a file that is mounted).
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_CERT SSL_CERT_FILE KDE_MAVEN_URL
# The compiler is for the Java classes of delta_loader/java, which are built here once.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/kafka-delta-express
ENV PATH=/opt/kafka-delta-express/bin:$PATH XDG_CACHE_HOME=/opt/cache
WORKDIR /source
COPY deploy/images/build.lock deploy/images/delta-loader.lock ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --no-deps --requirement build.lock \
    && pip install --require-hashes --no-deps --requirement delta-loader.lock
COPY pyproject.toml hatch_build.py kafka_delta_express.py README.md LICENSE ./
COPY common common
COPY stage_writer stage_writer
COPY delta_loader delta_loader
COPY bootstrap bootstrap
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && pip install --no-deps /wheels/*.whl
WORKDIR /
RUN python -m delta_loader.spark.jars \
    && python -m pip uninstall --yes pip setuptools

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="kafka-delta-express delta loader" \
      org.opencontainers.image.licenses="Apache-2.0"
# tini: Spark's JVM is a child, and its orphans have to be reaped. libnss-wrapper: see entrypoint.sh.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnss-wrapper openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kafka-delta-express
COPY deploy/images/entrypoint.sh /usr/local/bin/entrypoint
COPY --from=build /opt/kafka-delta-express /opt/kafka-delta-express
COPY --from=build /opt/cache /opt/cache
ENV PATH=/opt/kafka-delta-express/bin:$PATH XDG_CACHE_HOME=/opt/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp SPARK_LOCAL_DIRS=/tmp
USER 10001:10001
# Spark makes folders where it is started; with a read-only root, only /tmp takes them.
WORKDIR /tmp
EXPOSE 8081
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-I", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 8081, timeout=4); c.request('GET', '/version'); raise SystemExit(c.getresponse().status != 200)"]
# SIGTERM ends the commit under way and gives the lease back.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "entrypoint", "delta-loader"]
CMD ["run", "/etc/kafka-delta-express/pipeline.yaml"]
