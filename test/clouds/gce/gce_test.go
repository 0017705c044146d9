package gce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
)

// TestDescribed: what the client sends and what the front answers in the whole suite is as Google describes it.
func TestDescribed(t *testing.T) {
	seen := map[string]int{}
	t.Run("suite", func(t *testing.T) {
		cloudtest.Run(t, func(t *testing.T) cloudtest.World {
			var j *judge
			w := world(t, func(_ *fake.Network, front http.Handler) http.Handler {
				j = newJudge(t, front)
				return j
			})
			t.Cleanup(func() {
				for name, n := range j.verdict(t) {
					seen[name] += n
				}
			})
			return w
		})
	})
	t.Logf("judged: %v", seen)
	for _, method := range []string{"routes.list 200", "routes.list 403", "routes.insert 200", "routes.insert 403", "routes.get 200", "routes.get 404",
		"routes.delete 200", "globalOperations.wait 200", "instances.get 200", "instances.testIamPermissions 200"} {
		if seen["compute."+method] == 0 {
			t.Errorf("the suite did not lead to %s", method)
		}
	}
}

// TestRefused: what is not as Google describes it is found, and the front refuses it too.
func TestRefused(t *testing.T) {
	const routes = "/compute/v1/projects/" + project + "/global/routes"
	good := `"name":"a","network":"` + vpc + `","destRange":"10.244.1.0/24","nextHopInstance":"projects/` + project + `/zones/europe-west1-b/instances/node-a"`
	for name, request := range map[string]struct{ method, path, body string }{
		"method":       {"PUT", routes, `{` + good + `}`},
		"path":         {"GET", routes + "s", ""},
		"parameter":    {"GET", routes + "?filters=x", ""},
		"number":       {"GET", routes + "?maxResults=many", ""},
		"field":        {"POST", routes, `{` + good + `,"nextHopinstance":"x"}`},
		"output field": {"POST", routes, `{` + good + `,"nextHopPeering":"x"}`},
		"type":         {"POST", routes, `{` + good + `,"priority":"high"}`},
		"list":         {"POST", routes, `{` + good + `,"tags":"x"}`},
		"no JSON":      {"POST", routes, `{` + good},
		"no body":      {"POST", routes, ""},
		"name":         {"POST", routes, `{` + strings.Replace(good, `"a"`, `"A_b"`, 1) + `}`},
		"permissions":  {"POST", "/compute/v1/projects/" + project + "/zones/europe-west1-b/instances/node-a/testIamPermissions", `{"permission":["x"]}`},
	} {
		var j *judge
		w := world(t, func(_ *fake.Network, front http.Handler) http.Handler {
			j = newJudge(t, front)
			return j
		})
		r := httptest.NewRequest(request.method, request.path, strings.NewReader(request.body))
		r.Header.Set("Authorization", "Bearer "+fake.GCEToken)
		answer := httptest.NewRecorder()
		j.ServeHTTP(answer, r)
		if len(j.faults) != 1 || answer.Code < 400 {
			t.Errorf("%s: the judge found %q, the front answered %d %s", name, j.faults, answer.Code, answer.Body)
		}
		if len(w.Network.Routes()) > 0 {
			t.Errorf("%s: a route was made", name)
		}
	}
}

// gcloud runs Google's command with the front's token, apart from what is configured on this machine.
func gcloud(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "gcloud", args...)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/token", []byte(fake.GCEToken), 0o600); err != nil {
		t.Fatal(err)
	}
	there, _, _ := strings.Cut(os.Getenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"), "compute/")
	command.Env = append(os.Environ(), "CLOUDSDK_CONFIG="+dir, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE="+dir+"/token", "CLOUDSDK_CORE_PROJECT="+project,
		"CLOUDSDK_CORE_DISABLE_PROMPTS=1", "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true", "CLOUDSDK_CORE_CHECK_GCE_METADATA=false",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=true", "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM="+there,
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER="+there)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("gcloud %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

// routes runs gcloud compute routes.
func routes(t *testing.T, args ...string) string {
	t.Helper()
	out, err := gcloud(t, append([]string{"compute", "routes"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestGcloud: gcloud lists, makes and deletes routes of the front, and it and the client see each other's.
func TestGcloud(t *testing.T) {
	if _, err := exec.LookPath("gcloud"); err != nil {
		t.Skip("there is no gcloud on this machine")
	}
	var j *judge
	w := world(t, func(_ *fake.Network, front http.Handler) http.Handler {
		j = newJudge(t, front)
		return j
	})
	self, err := w.Nodes[0].Self(t.Context(), w.Local[0])
	if err != nil {
		t.Fatal(err)
	}
	own := cloud.Route{Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: self.Target}
	if err := w.Nodes[0].Apply(t.Context(), self, cloud.Change{Op: cloud.Create, Route: own}); err != nil {
		t.Fatal(err)
	}
	got := routes(t, "list", "--filter=network~prod", "--format=csv[no-heading](destRange,nextHopInstance.scope(projects),priority,description)")
	if want := "10.244.1.0/24,twill-test/zones/europe-west1-b/instances/node-a,1000,\"Route to the pods of a node, kept by Twill\""; got != want {
		t.Errorf("gcloud lists %q, want %q", got, want)
	}
	routes(t, "create", "flannel-10-244-2-0-24", "--network=prod", "--destination-range=10.244.2.0/24", "--next-hop-instance=node-a",
		"--next-hop-instance-zone=europe-west1-b")
	all, err := w.Nodes[0].List(t.Context(), self)
	if err != nil || len(all) != 2 || all[1].Name != "flannel-10-244-2-0-24" || all[1].Target != self.Target {
		t.Fatalf("the client lists %+v, %v", all, err)
	}
	routes(t, "delete", all[0].Name, "--quiet")
	if err := w.Nodes[0].Apply(t.Context(), self, cloud.Change{Op: cloud.Delete, Route: all[1]}); err != nil {
		t.Error(err)
	}
	if left := w.Network.Routes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	j.verdict(t)
}

// TestRemedies: gcloud has the commands and flags of each remedy. The front has not what most of them ask for.
func TestRemedies(t *testing.T) {
	if _, err := exec.LookPath("gcloud"); err != nil {
		t.Skip("there is no gcloud on this machine")
	}
	w := world(t, func(_ *fake.Network, front http.Handler) http.Handler { return front })
	self, err := w.Nodes[0].Self(t.Context(), w.Local[0])
	if err != nil {
		t.Fatal(err)
	}
	w.Network.Set(cloud.Route{Dst: netip.MustParsePrefix("10.245.0.0/20"), Target: vpc, Name: "default-route-1"},
		cloud.Route{Dst: netip.MustParsePrefix("fd00:244:0:1::/64"), Target: self.Target})
	w.Network.Break(fake.Faults{Denied: []string{"compute.instances.use"}})
	troubles, err := w.Nodes[0].Check(t.Context(), self)
	if err != nil || len(troubles) != 4 {
		t.Fatalf("%+v, %v, want four troubles", troubles, err)
	}
	commands := []string{"gcloud compute routes list --there-is-no-such-flag"} // gcloud does tell
	for _, trouble := range troubles {
		commands = append(commands, regexp.MustCompile(` (?:&&|\|) `).Split(trouble.Fix, -1)...)
	}
	for i, c := range commands {
		args, ours := strings.CutPrefix(c, "gcloud ")
		if !ours {
			continue
		}
		_, err := gcloud(t, strings.Fields(args)...)
		exit := (*exec.ExitError)(nil)
		if usage := errors.As(err, &exit) && exit.ExitCode() == 2; usage != (i == 0) {
			t.Errorf("%v", err)
		}
	}
}

// TestJudge: the judge finds what is wrong with an answer.
func TestJudge(t *testing.T) {
	for _, text := range []string{`{"kind":1}`, `{"items":[{"name":"A"}]}`, `{"items":[{"priority":"1"}]}`, `{"item":[]}`, `[]`,
		`{"items":[{"warnings":[{"code":"NEXT_HOP_GONE"}]}]}`, `{"items":[{"id":"x"}]}`, `{`} {
		j := newJudge(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		j.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/compute/v1/projects/p-1/global/routes", http.NoBody))
		if len(j.faults) == 0 {
			t.Errorf("%s: no fault found", text)
		}
	}
}
