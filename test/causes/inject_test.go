//go:build soak

package causes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/twill-net/twill/lab"
)

// errGlobal is a parameter that all namespaces of the machine share.
var errGlobal = errors.New("the parameter is the whole machine's")

// injected is a cause that is in a lab.
type injected struct {
	*cause
	lab    *lab.Lab
	olds   []string // by step
	tokens [][]string
	done   int // steps
}

// inject makes the steps of a cause. If one fails, those before are still to be undone.
func inject(ctx context.Context, l *lab.Lab, c *cause) (*injected, error) {
	i := &injected{cause: c, lab: l, olds: make([]string, len(c.steps))}
	var news []string
	for n, s := range c.steps {
		var err error
		if s.before != "" {
			if i.olds[n], err = i.shell(ctx, s.in, s.before, ""); err != nil {
				return i, err
			}
		}
		shared := sharedValue(s.do)
		printed, err := i.shell(ctx, s.in, s.do, i.olds[n])
		if err != nil {
			return i, err
		}
		i.done++
		if shared != sharedValue(s.do) {
			return i, errGlobal
		}
		for line := range strings.Lines(printed) {
			news = append(news, strings.TrimSpace(line))
		}
	}
	i.tokens = expand(c.tokens, news)
	return i, nil
}

var sysctlPath = regexp.MustCompile(`> (/proc/sys/\S+)$`)

// sharedValue is what this process's own namespace has of a parameter that a command sets.
func sharedValue(do string) string {
	m := sysctlPath.FindStringSubmatch(do)
	if m == nil {
		return ""
	}
	data, err := os.ReadFile(m[1])
	if err != nil {
		return ""
	}
	return string(data)
}

// undo takes back the steps that were made, the last one first.
func (i *injected) undo(ctx context.Context) error {
	var errs []error
	for n := i.done - 1; n >= 0; n-- {
		_, err := i.shell(ctx, i.steps[n].in, i.steps[n].undo, i.olds[n])
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (i *injected) shell(ctx context.Context, in, command, old string) (string, error) {
	h, err := i.lab.Find(in)
	if err != nil {
		return "", err
	}
	if old != "" {
		command = "OLD='" + strings.TrimSpace(old) + "'; " + command
	}
	out, err := h.Exec(ctx, "sh", "-c", command)
	return strings.TrimSpace(out), err
}

// expand puts what the steps printed into the tokens.
func expand(tokens [][]string, news []string) [][]string {
	var all [][]string
	for _, group := range tokens {
		var expanded []string
		for _, t := range group {
			if !strings.Contains(t, "$NEW") {
				expanded = append(expanded, t)
				continue
			}
			for _, n := range news {
				expanded = append(expanded, strings.ReplaceAll(t, "$NEW", n))
			}
		}
		all = append(all, expanded)
	}
	return all
}

// missing returns the first group of tokens of which none is in a text.
func missing(tokens [][]string, text string) []string {
	for _, group := range tokens {
		found := false
		for _, t := range group {
			found = found || hasWord(text, t)
		}
		if !found {
			return group
		}
	}
	return nil
}

// hasWord reports whether a text has something that is no part of a longer word or number.
func hasWord(text, word string) bool {
	const name = `[0-9A-Za-z_]`
	before, after := "", ""
	if regexp.MustCompile(`^` + name).MatchString(word) {
		before = `(^|[^0-9A-Za-z_])`
	}
	if regexp.MustCompile(name + `$`).MatchString(word) {
		after = `($|[^0-9A-Za-z_])`
	}
	return regexp.MustCompile(before + regexp.QuoteMeta(word) + after).MatchString(text)
}

// state is what a namespace holds, to see whether a cause was taken back. It is without what changes by itself.
func state(ctx context.Context, l *lab.Lab, place string) (string, error) {
	h, err := l.Find(place)
	if err != nil {
		return "", err
	}
	out, err := h.Exec(ctx, "sh", "-c", stateCommands)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", place, err)
	}
	return out, nil
}

const stateCommands = `nft -s list ruleset 2>&-
ip -o link | sed 's/ state [A-Z]*//; s/link-netns.*//'
ip -o addr | sed 's/ tentative//; s/valid_lft.*//'
ip -4 rule; ip -6 rule
ip -4 route show table all | sort; ip -6 route show table all | sed 's/expires [0-9]*sec//' | sort
ip neigh show nud permanent | sort; ip neigh show nud noarp | grep -v '^ff\|^224\|^127\| dev lo ' | sort; ip neigh show proxy | sort
bridge -d link | sed 's/ state UNKNOWN//'; bridge vlan
bridge fdb | grep 'permanent\|static' | grep -v '^33:33\|^01:00:5e' | sort
ip -d -o link show type bridge | grep -o ' \(vlan_filtering\|ageing_time\|stp_state\|mcast_[a-z]*\|nf_call_[a-z0-9]*\|forward_delay\|group_fwd_mask\|priority\|vlan_default_pvid\) [^ ]*'
tc qdisc; ip xfrm policy; ip xfrm state; ip xfrm policy getdefault
for t in iptables-legacy-save ip6tables-legacy-save; do $t 2>&- | grep '^-A\|DROP'; done
cd /proc/sys && grep -rs . net/ipv4 net/ipv6 net/bridge net/netfilter 2>&- |
	grep -v 'nf_conntrack_count\|nf_hooks_lwtunnel\|fastopen_key\|hash_seed\|stable_secret\|flush:\|retrans_time:\|mc_forwarding' | sort
true`
