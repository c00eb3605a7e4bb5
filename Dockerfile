# One image for all roles: `tessera scheduler`, `tessera device-plugin`, `tessera monitor`. The wheel leaves the lab out.
# Build it from the root of the repository:
#   docker build --tag tessera:0.2.0 --build-arg REVISION=$(git rev-parse HEAD) .
# `make image` builds the same from the same wheels, on the packages of Debian or Ubuntu, without a container engine.
ARG PYTHON=3.13

# -- Everything that is installed, in one folder.
FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/tessera
# Dependencies first, because they change less often than the sources. Only wheels, so that no compiler is needed, and
# only those whose hashes are locked.
COPY requirements/runtime.txt requirements/runtime.txt
RUN /opt/tessera/bin/pip install --no-deps --require-hashes --only-binary=:all: --requirement requirements/runtime.txt
COPY requirements/build.txt requirements/build.txt
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-deps --require-hashes --only-binary=:all: --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tessera/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/tessera/bin/pip uninstall --yes pip
# The file system of a container may be read-only. Without this, every start would compile the sources again.
RUN /opt/tessera/bin/python -m compileall -q /opt/tessera/lib

# -- The image.
FROM python:${PYTHON}-slim
ARG VERSION=0.2.0
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="Tessera" \
      org.opencontainers.image.description="Shares GPUs and other accelerators between Kubernetes pods" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
COPY --from=build /opt/tessera /opt/tessera
# Logs appear at once, and Python never tries to write into the image.
ENV PATH=/opt/tessera/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# An unprivileged user. The node agent needs root, and its DaemonSet says so.
USER 65532:65532
ENTRYPOINT ["tessera"]
CMD ["--help"]
