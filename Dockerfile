# The image of the DaemonSet: the agent, the tool for people, the CNI plugins that the conflist names, iptables in both
# flavours for hosts whose rules live there, nft, by which the doctor prints the rules that packets met, and the certificates
# that the clouds' APIs are judged by. There is no shell and no package manager in it. tools/release makes the images of a release
# without this file, of the same packages.
ARG BASE=debian:bookworm-slim
ARG BUILDER=golang:1.26-bookworm

# tools/release/packages-full beside it makes the variant with a shell and charon, for the backends extension and ipsec.
ARG PACKAGES=tools/release/packages

# Packages are unpacked and not installed, so that this works for another architecture too.
FROM --platform=$BUILDPLATFORM ${BASE} AS packages
ARG TARGETARCH=amd64
ARG PACKAGES
WORKDIR /deb
COPY tools/release/rootfs ${PACKAGES} /lists/
RUN dpkg --add-architecture ${TARGETARCH} && apt-get update -qq && \
    for p in $(cat /lists/packages* | grep -v '^#'); do \
        a=:${TARGETARCH}; [ $p != ca-certificates ] || a=; \
        apt-get download -qq -o APT::Sandbox::User=root $p$a || exit 1; done && \
    /lists/rootfs /out *.deb

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
ARG VERSION=devel
ARG TARGETARCH=amd64
ENV CGO_ENABLED=0 GOWORK=off GOARCH=${TARGETARCH}
WORKDIR /src
COPY go.mod go.sum ./
COPY clouds/go.mod clouds/go.sum clouds/
RUN go mod download && cd clouds && go mod download
COPY . .
RUN make build VERSION=${VERSION}
# In their own module: ours does not list what only they import.
RUN cd "$(go list -m -f '{{.Dir}}' github.com/containernetworking/plugins)" && mkdir /cni && \
    go build -trimpath -ldflags '-s -w' -o /cni/ ./plugins/meta/portmap ./plugins/meta/bandwidth ./plugins/main/loopback
COPY --from=packages /deb/ /deb/
ARG SOURCE_DATE_EPOCH
RUN GOARCH= go run ./tools/sbom ghcr.io/twill-net/twill ${VERSION} bin/twilld bin/twill bin/twillctl /cni/* /deb/*.deb >/sbom.spdx.json

FROM scratch
COPY --from=packages /out/ /
COPY --from=build /src/bin/twilld /src/bin/twillctl /usr/local/bin/
COPY --from=build /src/bin/twill /cni/ /opt/twill/cni/
COPY --from=build /sbom.spdx.json /usr/share/doc/twill/
COPY LICENSE NOTICE /usr/share/doc/twill/
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/twilld"]
