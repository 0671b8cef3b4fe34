# SPDX-License-Identifier: Apache-2.0
# docker build -t forebay .        (deploy/image.sh does it without a daemon, and twice the same)
# docker run --network host -v /nvme/cache:/cache \
#     -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY forebay
#
# In open mode Forebay listens on loopback only, so the container shares its client's network: the
# containers of a pod do so by default, plain docker with --network host. Forebay runs as user
# 65532, which needs write access to the folder at /cache. The root may be read-only.
FROM debian:bookworm-slim AS build
COPY deploy/packages.sh /src/deploy/packages.sh
RUN sh /src/deploy/packages.sh --install build && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt /src/
COPY conf /src/conf
COPY deploy /src/deploy
COPY src /src/src
ARG FOREBAY_REVISION=unknown
ARG FOREBAY_TAG=
ARG SOURCE_DATE_EPOCH=0
RUN cmake -S /src -B /build -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF \
        -DFOREBAY_REVISION=$FOREBAY_REVISION -DFOREBAY_TAG=$FOREBAY_TAG \
    && cmake --build /build --target forebay \
    && sh /src/deploy/image/rootfs.sh /build/forebay /rootfs

# --target debug: the same with a shell, curl and fio, for somebody who looks for a fault.
FROM debian:bookworm-slim AS debug
# Versions are those of the base's month: a pinned one is gone with the next security update.
# hadolint ignore=DL3008
RUN apt-get -qq update \
    && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
        ca-certificates curl fio \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /rootfs/ /
USER 65532:65532
ENV FOREBAY_CACHE_DIR=/cache
VOLUME /cache
EXPOSE 9000 9001
ENTRYPOINT ["/usr/bin/forebay"]
CMD ["serve"]

FROM scratch
COPY --from=build /rootfs/ /
USER 65532:65532
ENV FOREBAY_CACHE_DIR=/cache
VOLUME /cache
EXPOSE 9000 9001
LABEL org.opencontainers.image.title="forebay" \
      org.opencontainers.image.description="S3 read cache on local disks for training jobs" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["/usr/bin/forebay"]
CMD ["serve"]
