# The image of the DaemonSet: the agent, the CNI plugin and the tool for people, iptables in both flavours for
# hosts whose rules live there, and the upstream plugins that the conflist names.
ARG BASE=debian:bookworm-slim
ARG BUILDER=golang:1.26-bookworm

FROM ${BUILDER} AS build
ARG VERSION=devel
ENV CGO_ENABLED=0
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build VERSION=${VERSION}
RUN for p in meta/portmap meta/bandwidth main/loopback; do \
      go build -trimpath -ldflags '-s -w' -o /cni/ github.com/containernetworking/plugins/plugins/$p; done

FROM ${BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends iptables nftables && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/bin/twilld /src/bin/twillctl /usr/local/bin/
COPY --from=build /src/bin/twill /cni/ /opt/twill/cni/
COPY LICENSE NOTICE /usr/share/doc/twill/
ENTRYPOINT ["/usr/local/bin/twilld"]
