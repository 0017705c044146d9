package rebuild

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
)

// facts3 is of a node of another cluster than labs have.
const facts3 = `{"Node":"ip-10-0-7-8","Lease":{"Network":{"Pools":[{"Network":"10.42.0.0/16","SubnetLen":24,"Min":"10.42.0.0","Max":"10.42.255.0"}],
	"Backend":"vxlan","Options":{"Type":"vxlan","VNI":9}},"Snapshot":{
	"Local":{"Node":"ip-10-0-7-8","Backend":"vxlan","Stacks":[{"Subnet":"10.42.3.0/24","Underlay":"10.0.7.8"}]},
	"Peers":[{"Node":"big","Backend":"vxlan","Stacks":[{"Subnet":"10.42.1.0/24","Underlay":"10.0.7.20"}]},
		{"Node":"twin","Backend":"vxlan","Stacks":[{"Subnet":"10.42.3.0/24","Underlay":"10.0.7.9"}]}]}}}`

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct {
		files map[string][]byte
		want  string
	}{
		{nil, "it has no facts.json: want a file that twillctl report wrote"},
		{map[string][]byte{"facts.json": []byte("[]")}, "its facts.json is of another version"},
		{map[string][]byte{"facts.json": []byte(facts3)}, "it has no ip-addr.json"},
		{map[string][]byte{"facts.json": []byte("{}"), "ip-addr.json": nil}, "it holds no lease"},
		{map[string][]byte{"facts.json": []byte(facts3), "ip-addr.json": []byte("{}")}, "its ip-addr.json: "},
	} {
		if _, err := Read(c.files); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestSpec: nodes stand in the order of their addresses, with names that labs have; who has a subnet first keeps it.
func TestSpec(t *testing.T) {
	r, err := Read(map[string][]byte{"facts.json": []byte(facts3), "ip-addr.json": []byte("[]")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Spec(lab.Spec{Sites: map[string]lab.Site{"": {Flags: []string{"--v=2"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Names, " "); got != "n1 twin big" || s.Nodes != 3 || s.Family != lab.IPv4 || s.Backend != "vxlan" {
		t.Errorf("nodes %s, %+v", got, s)
	}
	if !strings.Contains(string(s.NetConf), `"VNI":9`) || !strings.Contains(string(s.NetConf), `"Network":"10.42.0.0/16"`) {
		t.Errorf("config %s", s.NetConf)
	}
	if len(s.Sites["twin"].Subnets) > 0 || len(s.Sites["n1"].Subnets) != 1 || s.Sites["big"].Subnets[0].String() != "10.42.1.0/24" {
		t.Errorf("sites %+v", s.Sites)
	}
	if got := s.Sites["big"].Flags; len(got) != 1 {
		t.Errorf("flags %v", got)
	}
	if left := strings.Join(r.Left(), "\n"); !strings.Contains(left, `node name "ip-10-0-7-8": it is n1 here`) {
		t.Errorf("left %s", left)
	}
	strange := strings.Replace(facts3, `"Backend":"vxlan","Options"`, `"Backend":"extension","Options"`, 1)
	if r, err = Read(map[string][]byte{"facts.json": []byte(strange), "ip-addr.json": []byte("[]")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Spec(lab.Spec{}); err == nil || !strings.HasPrefix(err.Error(), `its backend is "extension"`) {
		t.Errorf("commands of a stranger: %v", err)
	}
}

func TestNamesAreWhole(t *testing.T) {
	n := names{"10.0.0.1": "192.168.33.1", "eth0": "eth1", "0a:00:00:00:00:01": "0a:00:00:00:00:02"}
	const text = `10.0.0.1/24 10.0.0.10 10.0.0.1-10.0.0.9 eth0 eth0x net/ipv4/conf/eth0/rp_filter "0a:00:00:00:00:01"`
	const want = `192.168.33.1/24 10.0.0.10 192.168.33.1-10.0.0.9 eth1 eth0x net/ipv4/conf/eth1/rp_filter "0a:00:00:00:00:02"`
	if got := string(n.replace([]byte(text))); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
