package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// gceOperation is a change under way.
type gceOperation struct {
	kind, route string
	began, done time.Time
}

// begin notes a change of a route, and returns it as the API does: it is never done at once.
func (g *gce) begin(kind, route string) any {
	g.mu.Lock()
	g.count++
	name := fmt.Sprintf("operation-%d-%08x", g.count, gceHash(route)>>32)
	now := time.Now()
	o := gceOperation{kind, route, now, now.Add(g.Operation)}
	g.operations[name] = o
	g.mu.Unlock()
	return g.operation(name, o, "RUNNING")
}

// isBusy reports whether a change of a route is under way.
func (g *gce) isBusy(route string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range g.operations {
		if o.route == route && time.Now().Before(o.done) {
			return true
		}
	}
	return false
}

func gceTime(t time.Time) string { return t.Format("2006-01-02T15:04:05.000-07:00") }

func (g *gce) operation(name string, o gceOperation, status string) any {
	project := "projects/" + g.project()
	op := map[string]any{"kind": "compute#operation", "id": gceID(name), "name": name, "operationType": o.kind, "status": status,
		"targetLink": gceURL(project + "/global/routes/" + o.route), "targetId": gceID(o.route), "user": gceAccount(g.project()),
		"progress": 0, "insertTime": gceTime(o.began), "startTime": gceTime(o.began),
		"selfLink": gceURL(project + "/global/operations/" + name)}
	if status == "DONE" {
		op["progress"], op["endTime"] = 100, gceTime(o.done)
	}
	return op
}

// getOperation does not count as a call: the clouds have other limits for it.
func (g *gce) getOperation(r *http.Request) (any, error) {
	o, err := g.operationOf(r)
	if err != nil {
		return nil, err
	}
	if time.Now().Before(o.done) {
		return g.operation(r.PathValue("operation"), o, "RUNNING"), nil
	}
	return g.operation(r.PathValue("operation"), o, "DONE"), nil
}

// waitOperation answers when the change is done.
func (g *gce) waitOperation(r *http.Request) (any, error) {
	o, err := g.operationOf(r)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Until(o.done))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return g.operation(r.PathValue("operation"), o, "DONE"), nil
}

func (g *gce) operationOf(r *http.Request) (gceOperation, error) {
	if err := gceQuery(r); err != nil {
		return gceOperation{}, err
	}
	name := r.PathValue("operation")
	path := "projects/" + g.project() + "/global/operations/" + name
	if err := g.inProject(r); err != nil {
		return gceOperation{}, err
	}
	if err := g.permit(path, "compute.globalOperations.get"); err != nil {
		return gceOperation{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.operations[name]
	if !ok {
		return o, gceNotFound(path)
	}
	return o, nil
}

// GCEToken is the token that the metadata service gives out, and that requests must have.
const GCEToken = "ya29.c.c0ASRK0Gb-this-is-a-secret" //nolint:gosec // it opens nothing

// gceToken returns an error if a request does not have the token.
func gceToken(r *http.Request) error {
	if r.Header.Get("Authorization") != "Bearer "+GCEToken {
		return gceError{http.StatusUnauthorized, "authError", "Request had invalid authentication credentials. " +
			"Expected OAuth 2 access token, login cookie or other valid authentication credential."}
	}
	return nil
}

func gceAccount(project string) string {
	return gceNumber(project) + "-compute@developer.gserviceaccount.com"
}

// metadata serves the metadata service.
func (g *gce) metadata(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Metadata-Flavor", "Google")
	w.Header().Set("Server", "Metadata Server for VM")
	if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	}
	nic, ok := g.Caller(r)
	if !ok || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/")
	if path == "instance/network-interfaces/" {
		if err := g.Call("Self"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	result, ok := g.entry(nic, path, r.URL.Query().Get("recursive") == "true")
	if !ok {
		http.NotFound(w, r)
		return
	}
	if text, is := result.(string); is {
		w.Header().Set("Content-Type", "application/text")
		_, _ = w.Write([]byte(text))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result)
}

// entry returns an entry of the metadata, and reports whether there is one.
func (g *gce) entry(nic NIC, path string, recursive bool) (any, bool) {
	i, err := parseGCEInstance(nic.Instance)
	if err != nil {
		return nil, false
	}
	const account = "instance/service-accounts/default/"
	switch path {
	case "project/project-id":
		return i.project, true
	case "project/numeric-project-id":
		return gceNumber(i.project), true
	case "instance/name":
		return i.name, true
	case "instance/id":
		return gceID(nic.Instance), true
	case "instance/zone":
		return "projects/" + gceNumber(i.project) + "/zones/" + i.zone, true
	case account + "email":
		return gceAccount(i.project), true
	case account + "scopes":
		return "https://www.googleapis.com/auth/cloud-platform\n", true
	case account + "token":
		return map[string]any{"access_token": GCEToken, "expires_in": 3599, "token_type": "Bearer"}, true
	case "instance/network-interfaces/":
		if !recursive {
			return "0/\n", true
		}
		return g.adapters(nic), true
	}
	return nil, false
}

// adapters returns a machine's network interfaces, the network's last.
func (g *gce) adapters(nic NIC) (all []map[string]any) {
	for i, a := range append(slices.Clone(g.Elsewhere), nic) {
		network := "projects/" + gceNumber(g.project()) + "/networks/elsewhere-" + fmt.Sprint(i)
		if i == len(g.Elsewhere) {
			network = "projects/" + gceNumber(g.project()) + "/networks/" + g.ID[strings.LastIndex(g.ID, "/")+1:]
		}
		adapter := map[string]any{"accessConfigs": []any{}, "dnsServers": []string{"169.254.169.254"}, "forwardedIps": []string{},
			"ipAliases": []string{}, "mac": a.MAC, "mtu": 1460, "network": network, "subnetmask": "255.255.240.0",
			"targetInstanceIps": []string{}}
		var six []string
		for _, addr := range a.Addrs {
			if addr.Is4() {
				adapter["ip"] = addr.String()
				adapter["gateway"] = netip.PrefixFrom(addr, 20).Masked().Addr().Next().String()
			} else {
				six = append(six, addr.StringExpanded())
			}
		}
		if len(six) > 0 {
			adapter["ipv6s"] = six
		}
		all = append(all, adapter)
	}
	return all
}
