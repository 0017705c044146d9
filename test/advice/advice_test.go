package advice

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFollow: each promise that a command can break is told, and one that keeps all is followed to its end.
func TestFollow(t *testing.T) {
	fault := Offer{Finding: "route-shadowed", Place: "node1", Command: "ip route del 10.244.2.0/25", Serious: true}
	for name, c := range map[string]struct {
		offers []Offer  // one after the other; the last one stays
		lost   []string // before and after the commands, each a list
		fails  error    // of the command
		want   string
	}{
		"heals":             {offers: []Offer{fault, {}}, lost: []string{"a", ""}},
		"nothing is found":  {offers: []Offer{{}}, lost: []string{"a", "a"}},
		"says what remains": {offers: []Offer{fault, {Finding: "no-carrier", Serious: true}}, lost: []string{"a", "a"}},
		"does not run":      {offers: []Offer{fault}, lost: []string{"a", "a"}, fails: errors.New("exit status 2"), want: "fails: exit status 2"},
		"does nothing":      {offers: []Offer{fault}, lost: []string{"a", "a"}, want: "is offered again"},
		"hides it":          {offers: []Offer{fault, {}}, lost: []string{"a", "a"}, want: "still lost"},
		"loses more":        {offers: []Offer{fault, {}}, lost: []string{"a", "b"}, want: "lost since"},
		"is undone":         {offers: []Offer{fault, {}, fault}, lost: []string{"a", ""}, want: "somebody undid"},
		"takes the way out": {offers: []Offer{{Finding: "x", Command: "ip route del default"}}, lost: []string{"a", "a"}, want: "needs"},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked, ran := 0, false
			_, err := Patient{
				Ask: func(context.Context) (Offer, error) {
					o := c.offers[min(asked, len(c.offers)-1)]
					asked++
					return o, nil
				},
				Run: func(context.Context, string, string) (string, error) {
					ran = true
					return "", c.fails
				},
				Lost: func(context.Context) []string {
					if ran {
						return strings.Fields(c.lost[1])
					}
					return strings.Fields(c.lost[0])
				},
				Needs: []*regexp.Regexp{regexp.MustCompile("default")},
				Rest:  time.Second,
			}.Follow(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want an error with %q", name, err, c.want)
			}
		})
	}
}
