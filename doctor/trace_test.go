package doctor

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/rules"
)

// TestTraceSaysWhatItDidNotRead: rules that were not read let nothing pass, and those that were read still stop packets.
func TestTraceSaysWhatItDidNotRead(t *testing.T) {
	f, flow := pair(t)
	places := func(f Facts) (accepted, unread int) {
		for _, s := range FollowHere(f, flow).Forward {
			if s.Entry == "accept" {
				accepted++
			}
			if s.Unread {
				unread++
			}
		}
		return accepted, unread
	}
	if accepted, unread := places(f); accepted == 0 || unread > 0 {
		t.Errorf("all was read: %d places accept, %d were not looked at", accepted, unread)
	}
	f.ChainsUnread, f.Unread = true, []string{"nft: not found"}
	if accepted, unread := places(f); accepted > 0 || unread == 0 {
		t.Errorf("nothing was read: %d places accept, %d were not looked at", accepted, unread)
	}
	var b strings.Builder
	if err := FollowHere(f, flow).WriteText(&b); err != nil || !strings.Contains(b.String(), "? not looked at: n1: nft: not found\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
	f.Chains = chain("prerouting", rules.Accept, rules.Rule{In: from("cni0"), Verdict: rules.Drop})
	if got := FollowHere(f, flow).Stopped; got == nil || got.Finding != "prerouting-dropped" || got.Unread {
		t.Errorf("a rule that was read: got %+v", got)
	}
}
