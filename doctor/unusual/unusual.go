// Package unusual lists what a network namespace has that one which nobody altered does not: everything that can lose
// packets, but the rules of its firewall. Nothing is looked for by name. Devices and sysctls are compared with those
// of a new namespace, and tables that are empty there are listed.
package unusual

import (
	"context"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
)

// Options say what is not returned.
type Options struct {
	// Usual reports whether the owner of the namespace wants the object to be there. Nil: nothing is wanted.
	Usual func(locate.Object) bool
}

// List returns what is unusual in the calling thread's network namespace, in the order of kinds and devices, and a line
// for each part that cannot be read.
func List(ctx context.Context) (all []locate.Object, unread []string) { return Options{}.List(ctx) }

// part reads one kind of object.
type part struct {
	name string
	list func(*space) ([]locate.Object, error)
}

var parts = []part{
	{"policy routing rules", (*space).policyRules},
	{"routes", (*space).unusualRoutes},
	{"neighbours", (*space).unusualNeighbours},
	{"links", (*space).unusualLinks},
	{"addresses", (*space).unusualAddresses},
	{"bridges", (*space).unusualBridging},
	{"queueing disciplines", (*space).unusualQdiscs},
	{"sysctls", (*space).unusualSysctls},
	{"IPsec policies", (*space).unusualPolicies},
}

// List returns what is unusual and not wanted.
func (o Options) List(ctx context.Context) (all []locate.Object, unread []string) {
	s, err := open()
	if err != nil {
		return nil, []string{"network namespace: " + err.Error()}
	}
	defer s.conn.Close()
	for _, p := range parts {
		if ctx.Err() != nil {
			return all, append(unread, p.name+": "+ctx.Err().Error())
		}
		found, err := p.list(s)
		if err != nil {
			unread = append(unread, p.name+": "+err.Error())
		}
		all = append(all, found...)
	}
	if f, err := reference(); err == nil && f.release != "" {
		unread = append(unread, f.note())
	}
	if o.Usual != nil {
		all = slices.DeleteFunc(all, o.Usual)
	}
	order(all)
	return all, unread
}

// kinds is the order of a list.
var kinds = []locate.Kind{locate.PolicyRule, locate.Route, locate.Neighbour, locate.Link, locate.Address,
	locate.BridgePort, locate.FDB, locate.Qdisc, locate.IPsec, locate.Sysctl}

func order(all []locate.Object) {
	slices.SortStableFunc(all, func(a, b locate.Object) int {
		if d := slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind); d != 0 {
			return d
		}
		return strings.Compare(a.Dev, b.Dev)
	})
}
