# The image of the DaemonSet: the agent, the tool for people, the CNI plugins that the conflist names, iptables in both
# flavours for hosts whose rules live there, nft, by which the doctor reads everybody's rules, and the certificates that
# the clouds' APIs are judged by. There is no shell and no package manager in it.
ARG BASE=debian:bookworm-slim
ARG BUILDER=golang:1.26-bookworm

# Packages are unpacked and not installed, so that this works for another architecture too.
FROM --platform=$BUILDPLATFORM ${BASE} AS firewalls
ARG TARGETARCH=amd64
WORKDIR /deb
RUN dpkg --add-architecture ${TARGETARCH} && apt-get update -qq && \
    for p in iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 libc6 \
        nftables libnftables1 libjansson4 libgmp10 libedit2 libbsd0 libmd0 libtinfo6; do \
        apt-get download -qq -o APT::Sandbox::User=root $p:${TARGETARCH} || exit 1; done && \
    apt-get download -qq -o APT::Sandbox::User=root ca-certificates && \
    for d in *.deb; do dpkg-deb -x $d /out || exit 1; done && \
    mkdir -p /out/etc/ssl/certs && cat /out/usr/share/ca-certificates/mozilla/*.crt >/out/etc/ssl/certs/ca-certificates.crt && \
    rm -rf /out/usr/share/ca-certificates /out/usr/share/doc/ca-certificates/examples /out/usr/sbin/update-ca-certificates && \
    rm -rf /out/usr/lib/*/gconv /out/usr/share/man /out/etc/nftables.conf /out/lib/systemd /out/usr/share/lintian /out/usr/share/bug && \
    for t in iptables ip6tables; do for s in '' -save -restore; do ln -sf xtables-nft-multi /out/usr/sbin/$t$s; done; done

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
ARG VERSION=devel
ARG TARGETARCH=amd64
ENV CGO_ENABLED=0 GOWORK=off GOARCH=${TARGETARCH}
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build VERSION=${VERSION}
# In their own module: ours does not list what only they import.
RUN cd "$(go list -m -f '{{.Dir}}' github.com/containernetworking/plugins)" && mkdir /cni && \
    go build -trimpath -ldflags '-s -w' -o /cni/ ./plugins/meta/portmap ./plugins/meta/bandwidth ./plugins/main/loopback
COPY --from=firewalls /deb/ /deb/
ARG SOURCE_DATE_EPOCH
RUN GOARCH= go run ./tools/sbom ghcr.io/twill-net/twill ${VERSION} bin/twilld bin/twill bin/twillctl /cni/* /deb/*.deb >/sbom.spdx.json

FROM scratch
COPY --from=firewalls /out/ /
COPY --from=build /src/bin/twilld /src/bin/twillctl /usr/local/bin/
COPY --from=build /src/bin/twill /cni/ /opt/twill/cni/
COPY --from=build /sbom.spdx.json /usr/share/doc/twill/
COPY LICENSE NOTICE /usr/share/doc/twill/
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/twilld"]
