package subnet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

func TestEnvGolden(t *testing.T) {
	for name, e := range map[string]Env{
		"v4":   {Networks: prefixes("10.244.0.0/16"), Subnets: prefixes("10.244.1.1/24"), MTU: 1450, IPMasq: true},
		"v6":   {Networks: prefixes("fd00:10:244::/48"), Subnets: prefixes("fd00:10:244:1::1/64"), MTU: 1430},
		"dual": {Networks: prefixes("10.5.0.0/16", "fc00::/48"), Subnets: prefixes("10.5.52.1/24", "fc00::1/64"), MTU: 1430, IPMasq: true, NodeUID: "0b4e", BootID: "77aa"},
		"list": {Networks: prefixes("10.1.0.0/16", "10.2.0.0/16"), Subnets: prefixes("10.2.1.1/24"), MTU: 1500},
	} {
		golden(t, "env/"+name+".env", string(e.Format()))
		back, err := ParseEnv(e.Format())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(back.Format()) != string(e.Format()) {
			t.Errorf("%s: read back as\n%s", name, back.Format())
		}
	}
}

func TestParseEnvLenient(t *testing.T) {
	e, err := ParseEnv([]byte("# by hand\r\n\r\nFLANNEL_IPV6_SUBNET=fc00::1/64\r\nFLANNEL_SUBNET=10.5.52.1/24\nFUTURE=x=y\n" +
		"FLANNEL_IPV6_NETWORK=fd00::/48,fc00::/48\nFLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_IPMASQ=false\nFLANNEL_MTU=1450"))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := e.Subnet(netstate.IPv4); !ok || s.String() != "10.5.52.0/24" || !e.Subnets[0].Addr().Is4() || !e.Networks[0].Addr().Is4() {
		t.Errorf("got %+v", e)
	}
	if n := e.Networks; len(n) != 3 || n[1].String() != "fd00::/48" || n[2].String() != "fc00::/48" {
		t.Errorf("the networks are %v, want them in the file's order", n)
	}
	if s, ok := e.Subnet(netstate.IPv6); !ok || s.String() != "fc00::/64" {
		t.Errorf("got %+v", e)
	}
}

// TestParseEnvMTU: the smallest and the largest that a device can have are taken.
func TestParseEnvMTU(t *testing.T) {
	for _, mtu := range []string{"1", "65535"} {
		e, err := ParseEnv([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPMASQ=true\nFLANNEL_MTU=" + mtu))
		if err != nil || strconv.Itoa(e.MTU) != mtu {
			t.Errorf("MTU %s is read as %d, %v", mtu, e.MTU, err)
		}
	}
}

func TestParseEnvErrors(t *testing.T) {
	good := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	for _, tc := range []struct{ from, to, want string }{
		{good, "", "FLANNEL_SUBNET and FLANNEL_IPV6_SUBNET are missing: want at least one"},
		{"=1450", "", `line "FLANNEL_MTU" is not a setting: want KEY=value`},
		{"1450", "big", `FLANNEL_MTU "big": want a number from 1 to 65535`},
		{"1450", "65536", `FLANNEL_MTU "65536": want a number from 1 to 65535`},
		{"1450", "0", `FLANNEL_MTU "0": want a number from 1 to 65535`},
		{"=true", "=yes", `FLANNEL_IPMASQ "yes": want true or false`},
		{"FLANNEL_MTU=1450\n", "", "FLANNEL_MTU is missing: want it in every subnet.env"},
		{"FLANNEL_NETWORK=10.244.0.0/16\n", "", "only one of FLANNEL_NETWORK and FLANNEL_SUBNET is there: want both"},
		{"10.244.1.1/24", "fd00::1/64", `FLANNEL_SUBNET "fd00::1/64" is not an IPv4 prefix: want one such as 10.244.1.1/24`},
		{"10.244.1.1/24", "10.244.1.1/24,10.244.2.1/24", `FLANNEL_SUBNET "10.244.1.1/24,10.244.2.1/24" has several subnets: want one`},
		{"FLANNEL_MTU", "FLANNEL_IPMASQ", `FLANNEL_IPMASQ "1450": want true or false`},
		{"FLANNEL_MTU=1450", "FLANNEL_SUBNET=10.1.1.1/24", "FLANNEL_SUBNET is there more than once: want it once"},
	} {
		if _, err := ParseEnv([]byte(strings.Replace(good, tc.from, tc.to, 1))); err == nil || err.Error() != tc.want {
			t.Errorf("%q for %q:\n got %v\nwant %s", tc.to, tc.from, err, tc.want)
		}
	}
}

func TestReadEnv(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	if _, err := ReadEnv(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v, want fs.ErrNotExist", err)
	}
	e := Env{Networks: prefixes("10.244.0.0/16"), Subnets: prefixes("10.244.1.1/24"), MTU: 1450}
	if err := os.WriteFile(path, e.Format(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadEnv(path); err != nil || got.MTU != e.MTU {
		t.Errorf("got %+v %v, want MTU %d", got, err, e.MTU)
	}
}

func FuzzParseEnv(f *testing.F) {
	files, _ := filepath.Glob("testdata/env/*.env")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseEnv(data)
		if err != nil {
			return
		}
		back, err := ParseEnv(e.Format())
		if err != nil || string(back.Format()) != string(e.Format()) {
			t.Errorf("%q is read as %q, and that as %q: %v", data, e.Format(), back.Format(), err)
		}
	})
}
