package service_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/service"
)

// TestDistribution: which endpoints trafficDistribution leaves on node1, which is in the zone a.
func TestDistribution(t *testing.T) {
	const nodes1, nodes2, zones1, zones2 = `"forNodes":[{"name":"node1"}]`, `"forNodes":[{"name":"node2"}]`,
		`"forZones":[{"name":"a"}]`, `"forZones":[{"name":"b"},{"name":"c"}]`
	for name, c := range map[string]struct{ fields, hints1, hints2, want string }{
		"node":          {`"trafficDistribution":"PreferSameNode"`, nodes1, nodes2, "PreferSameNode: node1 sends to 1 of 2 endpoints, those with a hint for it"},
		"other nodes":   {`"trafficDistribution":"PreferSameNode"`, nodes2, nodes2, "node1 sends to all endpoints, since no hint is for it or its zone"},
		"zone":          {`"trafficDistribution":"PreferSameZone"`, zones1, zones2, "node1 sends to 1 of 2 endpoints, those with a hint for its zone a"},
		"node, zone":    {`"trafficDistribution":"PreferSameNode"`, nodes2 + "," + zones1, nodes2 + "," + zones1, "2 of 2 endpoints, those with a hint for its zone a"},
		"other zones":   {`"trafficDistribution":"PreferClose"`, zones2, zones2, "PreferClose: node1 sends to all endpoints, since no hint is"},
		"one without":   {`"trafficDistribution":"PreferSameNode"`, nodes1, "", "node1 sends to all endpoints, since not every one has a hint"},
		"local":         {`"trafficDistribution":"PreferSameNode","internalTrafficPolicy":"Local"`, nodes1, nodes2, ""},
		"nothing asked": {`"type":"ClusterIP"`, nodes1, nodes2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(`{"kind":"List","items":[
				{"kind":"Node","metadata":{"name":"node1","labels":{"topology.kubernetes.io/zone":"a"}}},
				{"kind":"Service","metadata":{"namespace":"shop","name":"web"},"spec":{"clusterIP":"10.96.0.9","ports":[{"port":80}],%s}},
				{"kind":"EndpointSlice","metadata":{"namespace":"shop","name":"web","labels":{"kubernetes.io/service-name":"web"}},
					"ports":[{"port":8080}],"endpoints":[{"addresses":["10.244.1.5"],"nodeName":"node1","hints":{%s}},
					{"addresses":["10.244.2.5"],"nodeName":"node2","hints":{%s}},
					{"addresses":["10.244.3.5"],"nodeName":"node3","conditions":{"ready":false}}]}]}`, c.fields, c.hints1, c.hints2)
			catalog, err := service.Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			goals, problem := catalog.Goals(service.Query{Namespace: "shop", Name: "web"}, "node1", []netip.Addr{client[0]})
			if problem != nil {
				t.Fatal(problem)
			}
			r := service.Explain(goals[0], service.Observations{Tries: []service.Try{try(service.Answered, "10.244.1.5:8080")}})
			var b strings.Builder
			r.Write(&b)
			if !strings.Contains(r.Prefers, c.want) || (c.want == "") != (r.Prefers == "") || !strings.Contains(b.String(), r.Prefers) {
				t.Errorf("%q, want %q, in\n%s", r.Prefers, c.want, b.String())
			}
		})
	}
}
