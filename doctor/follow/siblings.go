package follow

import (
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
)

// own are the parts of names and values that differ between namespaces of one role: numbers, addresses, ports' names.
var own = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*(:[0-9a-f]*)*`)

// role returns what a host is: hosts of one role are set up alike.
func role(host string) string {
	switch {
	case strings.Contains(host, "/"):
		return "pod"
	case host == "underlay" || host == "outside":
		return host
	}
	return "node"
}

// shared removes what all hosts of a role have, if there are several: it is how they are set up, and no cause that is in
// one place.
func (n Network) shared(all []*seenAt) {
	hosts, count := map[string]int{}, map[string]map[string]int{}
	key := func(o locate.Object) string {
		return string(o.Kind) + " " + own.ReplaceAllString(o.Dev+" "+o.Part+" = "+o.Value, "#")
	}
	for _, s := range all {
		r := role(s.Host)
		hosts[r]++
		seen := map[string]bool{}
		for _, o := range s.unusual {
			if k := key(o); !seen[k] {
				seen[k] = true
				if count[r] == nil {
					count[r] = map[string]int{}
				}
				count[r][k]++
			}
		}
	}
	for _, s := range all {
		r := role(s.Host)
		var kept []locate.Object
		for _, o := range s.unusual {
			if hosts[r] < 2 || o.Kind == locate.Neighbour || o.Kind == locate.FDB || count[r][key(o)] < hosts[r] {
				kept = append(kept, o)
			}
		}
		s.unusual = kept
	}
}

// ofPath removes the virtual cables that lead nowhere and whose other end is in no namespace on the path: they are other
// networks'.
func ofPath(all []*seenAt) {
	for _, s := range all {
		s.unusual = slices.DeleteFunc(s.unusual, func(o locate.Object) bool {
			end, isVeth := s.veths[o.Dev]
			return isVeth && o.Is(locate.Unattached) &&
				!slices.ContainsFunc(all, func(t *seenAt) bool { return t != s && t.isEnd(end) })
		})
	}
}

// isEnd reports whether the namespace has the other end of a virtual cable.
func (s *seenAt) isEnd(of veth) bool {
	for _, v := range s.veths {
		if v.index == of.peer && v.peer == of.index {
			return true
		}
	}
	return false
}
