package daemon

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend/extension"
	"github.com/twill-net/twill/backend/hostgw"
	"github.com/twill-net/twill/backend/ipip"
	"github.com/twill-net/twill/backend/ipsec"
	"github.com/twill-net/twill/backend/udp"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/backend/wireguard"
)

// TestBackendPages: each backend's page has a row for each key of its net-conf.json, and for nothing else.
func TestBackendPages(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| (`[A-Z][A-Za-z0-9]*`(?:, `[A-Z][A-Za-z0-9]*`)*) \\|")
	for name, options := range map[string]any{
		"vxlan": vxlan.Options{}, "ipip": ipip.Options{}, "udp": udp.Options{}, "wireguard": wireguard.Options{},
		"host-gw": hostgw.Options{}, "ipsec": ipsec.Options{}, "extension": extension.Options{},
	} {
		page, err := os.ReadFile("../../Documentation/backends/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		var listed, keys []string
		for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
			listed = append(listed, strings.Split(strings.ReplaceAll(row[1], "`", ""), ", ")...)
		}
		for field := range reflect.TypeOf(options).Fields() {
			keys = append(keys, field.Name)
		}
		slices.Sort(listed)
		slices.Sort(keys)
		if !slices.Equal(listed, keys) {
			t.Errorf("%s.md lists %v, want %v", name, listed, keys)
		}
	}
}
