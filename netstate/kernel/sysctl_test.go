package kernel

import (
	"os"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate/attributes"
)

// TestParametersAreListed: every parameter that the kernel has of a bridge is in a table, kept or free.
func TestParametersAreListed(t *testing.T) {
	if err := command("ip link add par0 type bridge"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command("ip link del par0") })
	for _, dir := range []string{"net/ipv4/conf", "net/ipv6/conf", "net/ipv4/neigh", "net/ipv6/neigh"} {
		listed := map[string]bool{}
		for _, table := range attributes.Parameters {
			for _, row := range table.Rows {
				listed[row.Name] = listed[row.Name] || strings.Contains(table.Where, dir)
			}
		}
		files, err := os.ReadDir("/proc/sys/" + dir + "/par0")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !listed[f.Name()] {
				t.Errorf("%s/DEV/%s is in no table of netstate/attributes", dir, f.Name())
			}
		}
	}
}
