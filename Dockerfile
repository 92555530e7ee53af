# One Holdfast node. Nothing is downloaded while building: docker/build-image makes the wheels on the host first
# (and, where no registry can be reached, the base image too).
FROM python:3.11-slim-bookworm AS build
COPY docker/wheels /wheels
RUN python3 -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-index --no-cache-dir --disable-pip-version-check --find-links /wheels 'holdfast[grpc]'

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/holdfast --create-home --shell /usr/sbin/nologin holdfast
COPY --from=build /opt/holdfast /opt/holdfast
COPY configs/docker.toml /etc/holdfast/node.toml
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1
USER holdfast
VOLUME /var/lib/holdfast
# 7300 serves gRPC with HOLDFAST_GRPC=0.0.0.0:7300.
EXPOSE 7100 7200 7300
# SIGTERM hands leadership over before the process ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast", "node", "--config", "/etc/holdfast/node.toml"]
