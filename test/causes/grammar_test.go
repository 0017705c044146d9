package causes

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// draws are enough for every production to be chosen.
const draws = 40000

func TestEveryProductionIsReachable(t *testing.T) {
	seen, w := coverage{}, exampleWorld()
	for n := range draws {
		newCause(1, n, w, seen)
	}
	for where, options := range seen {
		for option, times := range options {
			if times == 0 {
				t.Errorf("%s: %q was never chosen", where, option)
			}
		}
	}
	if len(seen["kind"]) != len(kinds) {
		t.Errorf("kinds %v, want %d", seen["kind"], len(kinds))
	}
}

func TestCausesAreRepeatable(t *testing.T) {
	w := exampleWorld()
	different := 0
	for n := range 200 {
		a, b, other := newCause(7, n, w, nil), newCause(7, n, exampleWorld(), coverage{}), newCause(8, n, w, nil)
		if a.String() != b.String() {
			t.Errorf("the same seed and number give\n%s\n%s", a, b)
		}
		if a.String() != other.String() {
			different++
		}
	}
	if different < 190 {
		t.Errorf("another seed gives another cause only %d times of 200", different)
	}
}

// verbs are commands and what takes them back.
var verbs = [][2]string{
	{"nft -a -e 'add table ", "nft 'delete table "},
	{" rule add ", " rule del "}, {" route add ", " route del "}, {" route del ", " route replace $OLD"},
	{" neigh add proxy ", " neigh del proxy "}, {" neigh replace ", " neigh del "}, {" neigh del ",
		" neigh replace $OLD "},
	{"bridge fdb add ", "bridge fdb del "}, {"bridge fdb replace ", "bridge fdb del "}, {"bridge fdb del ",
		"bridge fdb replace "},
	{"bridge fdb replace ", "bridge fdb replace "}, {"ip link set dev ", "ip link set dev "},
	{" addr add ", " addr del "}, {" addr del ", " addr add "}, {"bridge link set dev ", "bridge link set dev "},
	{"bridge vlan add dev ", "bridge vlan del dev "}, {"bridge vlan del dev ", "bridge vlan add dev "},
	{"tables", "tables"}, {"tc qdisc add ", "tc qdisc del "}, {"tc class add ", "tc class del "}, {"tc filter add ",
		"tc filter del "},
	{" xfrm policy add ", " xfrm policy delete "}, {" xfrm policy setdefault ", " xfrm policy setdefault "},
	{"> /proc/sys/", "echo \"$OLD\" > /proc/sys/"},
}

func TestUndoIsTheInverse(t *testing.T) {
	w := exampleWorld()
	for n := range draws {
		c := newCause(2, n, w, nil)
		for _, s := range c.steps {
			known := slices.ContainsFunc(verbs, func(v [2]string) bool {
				return strings.Contains(s.do, v[0]) && strings.Contains(s.undo, v[1])
			})
			if !known {
				t.Fatalf("%s\nis taken back by %s", c, s.undo)
			}
			if strings.Contains(s.undo+s.do, "$OLD") && s.before == "" {
				t.Fatalf("%s\nneeds the old value, and does not read it", c)
			}
			object := regexp.MustCompile(`\b(neigh|link|addr|fdb|vlan|qdisc) .*dev \S+`).FindString(s.do)
			device := object[strings.LastIndex(object, " ")+1:]
			if !strings.Contains(s.undo, device) && !strings.Contains(s.undo, "$port") {
				t.Fatalf("%s\nis taken back elsewhere: %s", c, s.undo)
			}
			if s.do == s.undo {
				t.Fatalf("%s\nis taken back by itself", c)
			}
		}
	}
}

func TestCausesAreKnownByTheirObject(t *testing.T) {
	w := exampleWorld()
	for n := range draws {
		c := newCause(3, n, w, nil)
		if len(c.tokens) == 0 || !slices.Contains(w.places(), c.place) {
			t.Fatalf("%s\nis known by %q", c, c.tokens)
		}
		for _, group := range c.tokens {
			if len(group) == 0 || slices.Contains(group, "") {
				t.Fatalf("%s\nis known by %q", c, c.tokens)
			}
		}
	}
}
