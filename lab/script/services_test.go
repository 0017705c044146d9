package script_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/script"
)

// TestServiceCommandsFail proves that what the commands about Services say must hold, and that errors name what is wrong.
func TestServiceCommandsFail(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "tservice", Nodes: 2, Pods: 1, Store: lab.Kube, Proxy: "nftables"})
	do := func(line string) error {
		var out bytes.Buffer
		words := strings.Fields(line)
		return script.Do(t.Context(), l, &out, words[0], words[1:]...)
	}
	for _, line := range []string{"service add web node2/pod1", "service add empty", "service add db clusterIP=None"} {
		if err := do(line); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Nil(t, "kube-proxy serves web", func() error { return do("connect node1/pod1 service/web") })
	for line, want := range map[string]string{
		"connect -by node1/pod1 node1/pod1 service/web":  "node2/pod1 answers: want node1/pod1",
		"connect -seen 192.0.2.1 node1/pod1 service/web": "node2/pod1 sees 10.244.1.2: want 192.0.2.1",
		"connect node1/pod1 service/web node1":           "service web has no port of its own on nodes: want type=NodePort",
		"connect node1/pod1 service/none":                `has no service "none": the command service add makes one`,
		"connect node1/pod1 service/db":                  "service db is headless and has no endpoints",
		"connect node1/pod1 service/empty":               "connection refused",
		"ping node1/pod1 service/db":                     "service db is headless: want one with a cluster IP",
		"trace node1/pod1 service/empty":                 "connections fail: the trace says why",
		"service add web colour=red":                     `unknown field "spec.colour"`,
		"service add web externalTrafficPolicy=Sideways": "externalTrafficPolicy",
		"service add web node9/pod1":                     `has no pod "node9/pod1"`,
		"service remove none":                            `has no service "none"`,
		"service remove web type=NodePort":               "want add NAME [FIELD=VALUE...] [NODE/POD...] or remove NAME [NODE/POD...]",
		"service mend web":                               "want add NAME",
	} {
		testwait.Nil(t, line, func() error {
			if err := do(line); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%v, want %s", err, want)
			}
			return nil
		})
	}
}
