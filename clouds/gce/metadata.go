package gce

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
)

const (
	metadataAddress  = "169.254.169.254"
	metadataVariable = "GCE_METADATA_HOST" // as of Google's libraries and gcloud: host or host:port
	maxMetadata      = 1 << 20
)

// metadata is the service that tells a machine who it is. Google's library for it asks again by itself, up to five times,
// and takes answers of any size, so it is not used.
type metadata struct {
	host string
	http *http.Client
}

func openMetadata() metadata {
	m := metadata{host: metadataAddress}
	if there := os.Getenv(metadataVariable); there != "" {
		m.host = there
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	// There is no proxy: that would be another machine.
	transport := &http.Transport{DialContext: dialer.DialContext, IdleConnTimeout: time.Minute}
	m.http = &http.Client{Transport: transport, CheckRedirect: noRedirect, Timeout: requestTimeout}
	return m
}

// get returns an entry.
func (m metadata) get(ctx context.Context, path string) (string, error) {
	address := "http://" + m.host + "/computeMetadata/v1/" + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", fmt.Errorf("ask the metadata service: %w", err)
	}
	req.Header.Set("Metadata-Flavor", "Google")
	res, err := m.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the metadata service: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxMetadata+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read %s: %w", address, err)
	case len(body) > maxMetadata:
		return "", fmt.Errorf("%s: the answer is larger than %d bytes", address, maxMetadata)
	case res.Header.Get("Metadata-Flavor") != "Google":
		return "", fmt.Errorf("%s is not Google's metadata service: it answers %s", address, res.Status)
	case res.StatusCode == http.StatusTooManyRequests:
		return "", fmt.Errorf("%s: %s: %w", address, res.Status, cloud.ErrThrottled)
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s: the metadata service answers %s", address, res.Status)
	}
	return strings.TrimSpace(string(body)), nil
}

// adapter is a network interface of this machine.
type adapter struct {
	IP      string   `json:"ip"`
	IPv6s   []string `json:"ipv6s"`
	Network string   `json:"network"` // projects/NUMBER/networks/NAME
}

// has reports whether an address is the adapter's.
func (a adapter) has(addr netip.Addr) bool {
	return slices.ContainsFunc(append([]string{a.IP}, a.IPv6s...), func(text string) bool {
		is, err := netip.ParseAddr(text)
		return err == nil && is == addr.Unmap()
	})
}

// Self implements cloud.Cloud.
func (c *client) Self(ctx context.Context, local []netip.Addr) (cloud.Self, error) {
	text, err := c.metadata.get(ctx, "instance/network-interfaces/?recursive=true")
	if err != nil {
		return cloud.Self{}, err
	}
	var all []adapter
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return cloud.Self{}, fmt.Errorf("the metadata's list of network interfaces is not one: %w", err)
	}
	i := slices.IndexFunc(all, func(a adapter) bool { return slices.ContainsFunc(local, a.has) })
	if i < 0 {
		return cloud.Self{}, fmt.Errorf("no network interface of this machine has an address of %v: they have %s",
			local, addresses(all))
	}
	n, err := parseNetwork(all[i].Network)
	if err != nil {
		return cloud.Self{}, err
	}
	m, err := c.machine(ctx)
	if err != nil {
		return cloud.Self{}, err
	}
	if n.project != m.number && n.project != m.project {
		// A Shared VPC is another project's, whose routes can name machines of their own project only.
		addr, err := netip.ParseAddr(all[i].IP)
		if err != nil {
			return cloud.Self{}, fmt.Errorf("the metadata's address of the network interface is not one: %w", err)
		}
		return cloud.Self{Target: addr.String(), Network: n.path()}, nil
	}
	n.project = m.project
	return cloud.Self{Target: m.path(), Network: n.path()}, nil
}

func addresses(all []adapter) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, append([]string{a.IP}, a.IPv6s...)...)
	}
	return oneLine(strings.Join(texts, ", "))
}

// machine is the instance that this is.
type machine struct{ project, number, zone, name string }

func (m machine) path() string {
	return "projects/" + m.project + "/zones/" + m.zone + "/instances/" + m.name
}

// flags names the machine to gcloud.
func (m machine) flags() string { return m.name + " --zone=" + m.zone + " --project=" + m.project }

func (c *client) machine(ctx context.Context) (m machine, err error) {
	for _, e := range []struct {
		path string
		to   *string
	}{
		{"project/project-id", &m.project}, {"project/numeric-project-id", &m.number},
		{"instance/zone", &m.zone}, {"instance/name", &m.name},
	} {
		text, err := c.metadata.get(ctx, e.path)
		if err != nil {
			return machine{}, err
		}
		if *e.to = text[strings.LastIndex(text, "/")+1:]; !isPart(*e.to) {
			return machine{}, fmt.Errorf("the metadata's %s is %q, which cannot be", e.path, oneLine(text))
		}
	}
	return m, nil
}
