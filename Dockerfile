# Every image of the project, one target each: engine, operator, csi, client.
#
#   docker build --target engine --tag weir/engine .
#
# The binaries are built from source in the stages below, or, with --build-arg BINARIES=prebuilt, taken from
# target/images/bin, where images/build.sh puts those built on this machine. The runtime stages are the same either way.
ARG BINARIES=source

# --- binaries from source ----------------------------------------------------------------------------------------
FROM rust:1.95-bookworm AS rust-binaries
WORKDIR /src
# libfabric alone first: it changes least and is built longest.
COPY setup setup
RUN apt-get update && setup/packages.sh build && setup/libfabric.sh build
COPY . .
RUN cargo build --release --locked --package weir-daemon --package weir-cli --package weir-fuse --package weir-intercept \
    && mkdir /binaries \
    && strip -o /binaries/weir-engine target/release/weir-engine \
    && strip -o /binaries/weir target/release/weir \
    && strip -o /binaries/weir-mountd target/release/weir-mountd \
    && strip -o /binaries/libweir_direct.so target/release/libweir_direct.so

FROM golang:1.26-bookworm AS go-binaries
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN mkdir /binaries && version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml) \
    && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o /binaries/ \
    ./operator/cmd/weir-operator ./operator/cmd/weir-drives ./operator/cmd/weir-fabric ./csi/cmd/weir-csi ./csi/cmd/weir-broker

FROM scratch AS source
COPY --from=rust-binaries /binaries/ /
COPY --from=go-binaries /binaries/ /

# --- binaries built on this machine ------------------------------------------------------------------------------
FROM scratch AS prebuilt
COPY target/images/bin/ /

# hadolint ignore=DL3006  # one of the two stages above
FROM ${BINARIES} AS binaries

# --- what runs ---------------------------------------------------------------------------------------------------
# Engine: the storage daemon, under the user that the operator gives its pods. The operator hands it the data directory. The
# libraries are loaded for the provider verbs.
FROM debian:bookworm-slim AS engine
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-providers librdmacm1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=binaries /weir-engine /usr/local/bin/weir-engine
USER 10777:10777
ENTRYPOINT ["/usr/local/bin/weir-engine"]

# Operator, the agents of drives and fabric, and the mount broker: static binaries, nothing else, and nobody's user.
FROM scratch AS operator
COPY --from=binaries /weir-operator /weir-drives /weir-fabric /weir-broker /
USER 65532:65532
ENTRYPOINT ["/weir-operator"]

# CSI driver: controller and node service. The node service makes its bind mounts by system calls.
FROM debian:bookworm-slim AS csi
COPY --from=binaries /weir-csi /usr/local/bin/weir-csi
ENTRYPOINT ["/usr/local/bin/weir-csi"]

# Client: the mount daemon, which also runs beside the CSI driver's node service, the library that its mounts show to programs, and the
# command line under its names. fusermount3 mounts for users other than root.
FROM debian:bookworm-slim AS client
RUN apt-get update \
    && apt-get install -y --no-install-recommends fuse3 ibverbs-providers librdmacm1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=binaries /weir-mountd /weir /usr/local/bin/
COPY --from=binaries /libweir_direct.so /usr/local/lib/
RUN ln -s weir /usr/local/bin/daos && ln -s weir /usr/local/bin/dmg
ENTRYPOINT ["/usr/local/bin/weir-mountd"]
