package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Report is what became of connections to one port of a Service.
type Report struct {
	Name      string    `json:"name"` // Service shop/web
	Port      string    `json:"port"` // http 80/TCP
	Type      string    `json:"type,omitempty"`
	Way       Way       `json:"way"`
	To        string    `json:"to"`
	Node      string    `json:"node"` // whose rules choose the endpoint
	Sent      int       `json:"sent"`
	Answered  int       `json:"answered"`
	Sticks    string    `json:"sticks,omitempty"`  // what sessionAffinity does to the client
	Prefers   string    `json:"prefers,omitempty"` // what trafficDistribution does on the node
	Endpoints []Chosen  `json:"endpoints"`
	Problems  []Problem `json:"problems,omitempty"`
	Unread    []string  `json:"unread,omitempty"`
}

// Chosen is an endpoint, and how often and by what it was chosen.
type Chosen struct {
	Endpoint
	State    string   `json:"state"`
	Chosen   int      `json:"chosen"`
	Tracked  int      `json:"tracked"` // connections that connection tracking has
	Answered int      `json:"answered"`
	Rule     string   `json:"rule,omitempty"`    // that translates to it
	Because  string   `json:"because,omitempty"` // the rule that led to that one
	Seen     []string `json:"seen,omitempty"`    // hosts that saw packets to it
}

// Failed reports whether connections fail.
func (r Report) Failed() bool { return len(r.Problems) > 0 }

// Next returns the endpoint to which the path is of interest: one that fails, else one that was chosen.
func (r Report) Next() (netip.AddrPort, bool) {
	best, ok := netip.AddrPort{}, false
	for _, e := range r.Endpoints {
		switch {
		case e.Chosen > e.Answered:
			return e.To, true
		case e.Chosen > 0 && !ok:
			best, ok = e.To, true
		}
	}
	return best, ok
}

// endpoints returns all endpoints, those that were chosen first.
func (x explanation) endpoints() []Chosen {
	all := []Chosen{}
	for _, e := range x.Endpoints {
		all = append(all, Chosen{Endpoint: e, State: e.state()})
	}
	for _, t := range x.Tries {
		e := t.endpoint()
		if !e.IsValid() {
			continue
		}
		i := slices.IndexFunc(all, func(c Chosen) bool { return c.To == e })
		if i < 0 {
			i = len(all)
			all = append(all, Chosen{Endpoint: Endpoint{To: e}, State: "unknown to the API server"})
		}
		c := &all[i]
		c.Chosen++
		if t.Tracked.IsValid() {
			c.Tracked++
		}
		if x.isFine(t) {
			c.Answered++
		}
		if len(t.Hosts) > len(c.Seen) {
			c.Seen = t.Hosts
		}
	}
	for i := range all {
		rule, because := x.choice(all[i].To)
		if rule == nil || all[i].Chosen == 0 {
			continue
		}
		all[i].Rule = rule.Host + ": " + rule.Object.Text
		if because != nil {
			all[i].Because = because.Object.Text
		}
	}
	slices.SortStableFunc(all, func(a, b Chosen) int { return b.Chosen - a.Chosen })
	return all
}

// sticks says what sessionAffinity does, if the Service has it.
func (x explanation) sticks() string {
	if x.Service.Sticky == 0 || x.Way == Headless {
		return ""
	}
	var chosen []netip.AddrPort
	for _, t := range x.Tries {
		if e := t.endpoint(); e.IsValid() && !slices.Contains(chosen, e) {
			chosen = append(chosen, e)
		}
	}
	switch len(chosen) {
	case 0:
		return ""
	case 1:
		e, _ := x.known(chosen[0])
		return fmt.Sprintf("sessionAffinity ClientIP: this client sticks to %s until it has been silent for %s",
			e, short(x.Service.Sticky))
	}
	return fmt.Sprintf("sessionAffinity ClientIP is not kept: connections of one client went to %d endpoints", len(chosen))
}

// prefers says what trafficDistribution does, if the Service has it. kube-proxy goes by the endpoints' hints: by those of
// nodes or else of zones, if every endpoint that is ready has one, and any has its own.
func (x explanation) prefers() string {
	if x.Service.Distribution == "" || x.Way == Headless || x.isLocal() {
		return ""
	}
	said := "trafficDistribution " + x.Service.Distribution + ": " + x.Node + " sends to "
	ready := slices.DeleteFunc(slices.Clone(x.Endpoints), func(e Endpoint) bool { return !e.Ready })
	byNode := func(e Endpoint) string { return e.ForNodes }
	if n := hinted(ready, byNode, x.Node); n > 0 {
		return fmt.Sprintf("%s%d of %d endpoints, those with a hint for it", said, n, len(ready))
	}
	byZone := func(e Endpoint) string { return e.ForZones }
	if n := hinted(ready, byZone, x.Zone); n > 0 {
		return fmt.Sprintf("%s%d of %d endpoints, those with a hint for its zone %s", said, n, len(ready), x.Zone)
	}
	if slices.ContainsFunc(ready, func(e Endpoint) bool { return e.ForNodes == "" && e.ForZones == "" }) {
		return said + "all endpoints, since not every one has a hint"
	}
	return said + "all endpoints, since no hint is for it or its zone"
}

// hinted counts the endpoints that have a hint for a node or zone. It is 0 if any endpoint has none at all.
func hinted(all []Endpoint, hints func(Endpoint) string, own string) (n int) {
	for _, e := range all {
		switch {
		case hints(e) == "":
			return 0
		case own != "" && slices.Contains(strings.Split(hints(e), ","), own):
			n++
		}
	}
	return n
}

// short prints a duration without what is zero: 3h, 10m.
func short(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// maxShown is how many endpoints the text has.
const maxShown = 8

// Write writes the report for people.
func (r Report) Write(b *strings.Builder) {
	fmt.Fprintf(b, "%s, port %s, at %s (%s)\n", r.Name, r.Port, r.To, r.Way)
	for i, e := range r.Endpoints {
		if i == maxShown {
			fmt.Fprintf(b, "  … and %d endpoints more\n", len(r.Endpoints)-maxShown)
			break
		}
		e.write(b, r)
	}
	for _, why := range []string{r.Prefers, r.Sticks} {
		if why != "" {
			fmt.Fprintln(b, " ", why)
		}
	}
	switch {
	case r.Sent > 0 && len(r.Problems) == 0:
		fmt.Fprintf(b, "✓ all %d connections were answered\n", r.Sent)
	case r.Sent > 0:
		fmt.Fprintf(b, "✗ %d of %d connections fail\n", r.Sent-r.Answered, r.Sent)
	}
	for _, p := range r.Problems {
		p.Write(b)
	}
	for _, u := range r.Unread {
		fmt.Fprintln(b, "? not watched:", u)
	}
}

func (c Chosen) write(b *strings.Builder, r Report) {
	mark := " "
	if c.Chosen > c.Answered {
		mark = "✗"
	}
	fmt.Fprintf(b, "%s endpoint %s: %s", mark, c.Endpoint, c.State)
	if r.Sent > 0 {
		fmt.Fprintf(b, "; chosen %d of %d times", c.Chosen, r.Sent)
	}
	if c.Chosen > 0 && r.Way != Headless {
		fmt.Fprintf(b, " (conntrack has %d)", c.Tracked)
	}
	fmt.Fprintln(b)
	if c.Rule != "" {
		fmt.Fprintln(b, "    by", c.Rule)
	}
	if c.Because != "" {
		fmt.Fprintln(b, "    after", c.Because)
	}
	if len(c.Seen) > 0 {
		fmt.Fprintln(b, "    packets seen on", strings.Join(c.Seen, ", "))
	}
}

// Write writes the problem for people.
func (p Problem) Write(b *strings.Builder) {
	fmt.Fprintf(b, "✗ [%s] %s\n", p.Code, p.Text)
	if p.Rule != "" {
		fmt.Fprintln(b, "  rule:", p.Rule)
	}
	if p.Fix != "" {
		fmt.Fprintln(b, "  fix:", p.Fix)
	}
}
