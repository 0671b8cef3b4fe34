# SPDX-License-Identifier: Apache-2.0
# docker build -t forebay .
# docker run --network host -v /nvme/cache:/cache -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY forebay
#
# In open mode Forebay listens on loopback only, so the container shares its client's network: a pod's
# containers do so by themselves, plain docker with --network host. Forebay runs as user 65532, who must
# be able to write to what is mounted at /cache.
FROM debian:bookworm-slim AS build
COPY deploy/packages.sh /src/deploy/packages.sh
RUN sh /src/deploy/packages.sh --install build && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt /src/
COPY src /src/src
COPY conf /src/conf
RUN cmake -S /src -B /build -G Ninja -DFOREBAY_BUILD=release -DFOREBAY_TESTS=OFF \
    && cmake --build /build --target forebay \
    && DESTDIR=/out cmake --install /build --prefix /usr

FROM debian:bookworm-slim
COPY deploy/packages.sh /tmp/packages.sh
RUN sh /tmp/packages.sh --install run \
    && rm -rf /var/lib/apt/lists/* /tmp/packages.sh \
    && mkdir /cache && chown 65532:65532 /cache
COPY --from=build /out/usr/bin/forebay /usr/bin/forebay
USER 65532:65532
ENV FOREBAY_CACHE_DIR=/cache
VOLUME /cache
EXPOSE 9000 9001
LABEL org.opencontainers.image.title="forebay" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["/usr/bin/forebay"]
CMD ["serve"]
