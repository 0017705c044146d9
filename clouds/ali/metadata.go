package ali

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The metadata service answers within milliseconds: on a machine that is somewhere else nothing answers.
const (
	metadataTimeout = 3 * time.Second
	maxMetadata     = 64 << 10
)

// metadata is the instance's metadata service.
type metadata struct {
	url  string
	http *http.Client
}

func newMetadata(url string) metadata {
	return metadata{url: strings.TrimSuffix(url, "/"), http: newHTTP(metadataTimeout, false)}
}

// session asks the metadata service, with a token where the instance demands one.
type session struct {
	metadata
	token string
}

var errNoSuchItem = errors.New("the metadata service has no such item")

// open begins a session. An instance whose service knows no tokens needs none.
func (m metadata) open(ctx context.Context) (session, error) {
	body, err := m.do(ctx, http.MethodPut, "/latest/api/token", "X-aliyun-ecs-metadata-token-ttl-seconds", "300")
	if errors.Is(err, errNoSuchItem) {
		return session{m, ""}, nil
	}
	return session{m, body}, err
}

// get returns an item of the metadata.
func (s session) get(ctx context.Context, item string) (string, error) {
	body, err := s.do(ctx, http.MethodGet, "/latest/meta-data/"+item, "X-aliyun-ecs-metadata-token", s.token)
	if err != nil {
		return "", err
	}
	if body == "" {
		return "", fmt.Errorf("the metadata service's %s is empty", item)
	}
	return body, nil
}

func (m metadata) do(ctx context.Context, method, path, header, value string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, m.url+path, nil)
	if err != nil {
		return "", err
	}
	if value != "" {
		request.Header.Set(header, value)
	}
	answer, err := m.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask the metadata service of Alibaba Cloud (is this an ECS instance?): %w", bare(err))
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxMetadata+1))
	switch {
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusMethodNotAllowed:
		return "", fmt.Errorf("%s: %w", path, errNoSuchItem)
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s of the metadata service answers with HTTP status %d, want 200", path, answer.StatusCode)
	case err != nil:
		return "", fmt.Errorf("read %s of the metadata service: %w", path, bare(err))
	case len(body) > maxMetadata:
		return "", fmt.Errorf("%s of the metadata service is longer than %d bytes", path, maxMetadata)
	}
	return strings.TrimSpace(string(body)), nil
}

// nic is a network interface of the instance.
type nic struct {
	id, vpc, vswitch string
	addrs            []netip.Addr
	blocks           []netip.Prefix // the IPv4 blocks of the VPC and the vSwitch
}

// nicWith returns the network interface that has one of the addresses.
func (s session) nicWith(ctx context.Context, local []netip.Addr) (nic, error) {
	macs, err := s.get(ctx, "network/interfaces/macs/")
	if err != nil {
		return nic{}, err
	}
	var all []netip.Addr
	for _, mac := range strings.Fields(macs) {
		base := "network/interfaces/macs/" + strings.TrimSuffix(mac, "/") + "/"
		addrs, err := s.addrs(ctx, base)
		if err != nil {
			return nic{}, err
		}
		all = append(all, addrs...)
		if slices.ContainsFunc(local, func(l netip.Addr) bool { return slices.Contains(addrs, l.Unmap()) }) {
			return s.nic(ctx, base, addrs)
		}
	}
	return nic{}, fmt.Errorf("no network interface of the instance has one of the addresses %v: it has %v", local, all)
}

// addrs returns the addresses of a network interface.
func (s session) addrs(ctx context.Context, base string) (addrs []netip.Addr, err error) {
	for _, item := range []string{"private-ipv4s", "ipv6s"} {
		text, err := s.get(ctx, base+item)
		if errors.Is(err, errNoSuchItem) {
			continue // of a network interface without addresses of this family
		}
		if err != nil {
			return nil, err
		}
		isBetween := func(r rune) bool { return strings.ContainsRune("[]\", \n\r", r) }
		for _, word := range strings.FieldsFunc(text, isBetween) {
			if a, err := netip.ParseAddr(word); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}

func (s session) nic(ctx context.Context, base string, addrs []netip.Addr) (nic, error) {
	n := nic{addrs: addrs}
	for item, field := range map[string]*string{"network-interface-id": &n.id, "vpc-id": &n.vpc, "vswitch-id": &n.vswitch} {
		text, err := s.get(ctx, base+item)
		if err != nil {
			return nic{}, err
		}
		*field = text
	}
	for _, item := range []string{"vpc-cidr-block", "vswitch-cidr-block"} {
		text, err := s.get(ctx, base+item)
		if errors.Is(err, errNoSuchItem) {
			continue // it only serves a warning
		}
		if err != nil {
			return nic{}, err
		}
		if p, err := netip.ParsePrefix(text); err == nil {
			n.blocks = append(n.blocks, p.Masked())
		}
	}
	return n, nil
}
