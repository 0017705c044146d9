// Package masquerade reads the config file of Kubernetes' ip-masq-agent, which names the networks towards which pods
// keep their address, and follows it.
package masquerade

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/twill-net/twill/internal/jsonobject"
	"github.com/twill-net/twill/internal/smallfile"
)

// Config is what the file says.
type Config struct {
	Exempt   []netip.Prefix // of both families, with the link-local networks unless these are masqueraded
	Resync   time.Duration  // how often the file is read
	Warnings []string       // one sentence each
}

// The defaults are ip-masq-agent's, which hold for each key that is absent, and for a file that is absent.
const (
	defaultResync = time.Minute
	defaultLimit  = 64
)

var (
	defaultExempt  = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} // RFC 1918
	linkLocal      = netip.MustParsePrefix("169.254.0.0/16")
	linkLocalIPv6  = netip.MustParsePrefix("fe80::/10")
	shortestResync = time.Second
)

// Read reads the file at path.
func Read(path string) (Config, error) {
	data, err := smallfile.Read(path, smallfile.MB)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		data = nil
	case err != nil:
		return Config{}, fmt.Errorf("read ip-masq-agent's config: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return c, fmt.Errorf("ip-masq-agent's config %s: %w", path, err)
	}
	return c, nil
}

// Parse reads the text of a file, in YAML or JSON.
func Parse(data []byte) (Config, error) {
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return Config{}, fmt.Errorf("want YAML or JSON: %w", err)
	}
	if bytes.Equal(text, []byte("null")) {
		text = []byte("{}")
	}
	obj, err := jsonobject.Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("want keys such as nonMasqueradeCIDRs: %w", err)
	}
	cidrs, limit, resync := slices.Clone(defaultExempt), defaultLimit, defaultResync.String()
	var masqLinkLocal, masqLinkLocalIPv6 bool
	for _, key := range []struct {
		name  string
		value any
		want  string
	}{
		{"nonMasqueradeCIDRs", &cidrs, "a list of networks such as 10.0.0.0/8"},
		{"cidrLimit", &limit, "a number"},
		{"masqLinkLocal", &masqLinkLocal, "true or false"},
		{"masqLinkLocalIPv6", &masqLinkLocalIPv6, "true or false"},
		{"resyncInterval", &resync, `a time such as "60s"`},
	} {
		if _, err := obj.Get(key.name, key.value, key.want); err != nil {
			return Config{}, err
		}
	}
	c := Config{}
	for _, key := range obj.Rest() {
		c.Warnings = append(c.Warnings, fmt.Sprintf("key %q is unknown and has no effect%s", key, obj.Hint(key)))
	}
	if c.Resync, err = time.ParseDuration(resync); err != nil || c.Resync < shortestResync {
		return Config{}, fmt.Errorf("resyncInterval %q: want a time of at least %s, such as \"60s\"", resync, shortestResync)
	}
	if len(cidrs) > limit {
		return Config{}, fmt.Errorf("nonMasqueradeCIDRs has %d networks: want at most %d (cidrLimit)", len(cidrs), limit)
	}
	if !masqLinkLocal {
		c.Exempt = append(c.Exempt, linkLocal)
	}
	if !masqLinkLocalIPv6 {
		c.Exempt = append(c.Exempt, linkLocalIPv6)
	}
	for _, text := range cidrs {
		n, err := ParseNetwork(text)
		if err != nil {
			return Config{}, fmt.Errorf("nonMasqueradeCIDRs: %w", err)
		}
		c.Exempt = append(c.Exempt, n)
	}
	return c, nil
}

// ParseNetwork reads a network that has no host bits set.
func ParseNetwork(text string) (netip.Prefix, error) {
	n, err := netip.ParsePrefix(strings.TrimSpace(text))
	switch {
	case err != nil || n.Addr().Is4In6():
		return n, fmt.Errorf("%q is not a network: want one such as 10.0.0.0/8 or fd00::/8", text)
	case n != n.Masked():
		return n, fmt.Errorf("%s has host bits set: want %s", n, n.Masked())
	}
	return n, nil
}
