# Builds an image that runs every command of specdec:
#   docker build --tag specdec:$(cat VERSION) .                                   on CPUs
#   docker build --tag specdec:$(cat VERSION)-cuda --build-arg DEVICE=cuda .      on NVIDIA GPUs (docker run --gpus all)
# The bases are Debian 12 or another system with apt, whose glibc in RUNTIME_BASE is at least that of BUILD_BASE. The CUDA
# libraries come with LibTorch, so a CUDA base is only needed where a policy demands one. See docs/install.md.
ARG BUILD_BASE=debian:12
ARG RUNTIME_BASE=debian:12-slim

FROM ${BUILD_BASE} AS build
ENV SPECDEC_CACHE=/cache
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates make
WORKDIR /src
# Copied before the other sources, so that a change of the sources alone does not reinstall the tools.
COPY cmake/setup.sh cmake/requirements.txt cmake/packaging.txt cmake/
RUN cmake/setup.sh
COPY . .
RUN make dist
# The engine needs these files of LibTorch; those of CUDA are opened at the first question about a GPU. ARG DEVICE is
# here and not further up, because it invalidates every later RUN: above, a build for the other device would reinstall
# and recompile everything.
ARG DEVICE=cpu
RUN cd /cache/venv-*/lib/python3*/site-packages \
    && mkdir /torch \
    && case "$DEVICE" in \
         cpu) cp -aL --parents torch/lib/libtorch_cpu.so torch/lib/libc10.so torch/lib/libgomp.so.1 \
                nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13 /torch ;; \
         cuda) cp -aL --parents torch/lib/*.so* nvidia/*/lib/*.so.* /torch ;; \
         *) echo "DEVICE: expected cpu or cuda, found $DEVICE" >&2; exit 1 ;; \
       esac

FROM ${RUNTIME_BASE}
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates libc6 libgcc-s1 libstdc++6 \
    && rm -rf /var/lib/apt/lists/*
# The user has the ids that the Kubernetes files of `specdec init` expect.
RUN groupadd --gid 10001 specdec \
    && useradd --uid 10001 --gid 10001 --create-home --home-dir /specdec --shell /usr/sbin/nologin specdec
COPY --from=build /torch /opt/torch
COPY --from=build /src/dist/specdec /usr/local
ENV SPECDEC_TORCH_LIB=/opt/torch/torch/lib NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /specdec
EXPOSE 8000
# Asks a server for /health; other commands count as healthy. Give another port as SPECDEC_SERVE_PORT, not as --port.
# A server with TLS answers plain HTTP with 400, which shows that it lives and not more.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \
  CMD ["/bin/bash", "-c", "grep -qzx serve /proc/1/cmdline || exit 0; exec 3<>\"/dev/tcp/127.0.0.1/${SPECDEC_SERVE_PORT:-8000}\" && printf 'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [[ \"$status\" = 200 || \"$status\" = 400 ]]"]
ENTRYPOINT ["specdec"]
CMD ["--help"]
