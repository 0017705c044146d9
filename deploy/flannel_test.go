package deploy

import (
	"os"
	"strings"
	"testing"
)

// flannels are all values of flannel's chart v0.28.9, those of its comments too, and what is after that on its main branch.
var flannels = []string{
	"global.imagePullSecrets", "podCidr", "podCidrv6",
	"flannel.image.repository", "flannel.image.tag", "flannel.flannel_cni.image.repository", "flannel.flannel_cni.image.tag",
	"flannel.cniBinDir", "flannel.cniConfDir", "flannel.skipCNIConfigInstallation", "flannel.cniConf",
	"flannel.enableNFTables", "flannel.args", "flannel.backend", "flannel.backendPort", "flannel.backendPortv6", "flannel.mtu",
	"flannel.vni", "flannel.GBP", "flannel.directRouting", "flannel.macPrefix", "flannel.psk", "flannel.tunnelMode",
	"flannel.keepaliveInterval", "flannel.resources", "flannel.healthz.port", "flannel.healthz.livenessProbe",
	"flannel.healthz.readinessProbe", "flannel.tolerations", "flannel.nodeSelector",
	"netpol.enabled", "netpol.args", "netpol.image.repository", "netpol.image.tag",
	"global.commonLabels", "global.commonAnnotations", "flannel.podLabels", "flannel.podAnnotations",
	"flannel.configMap", "flannel.daemonSet", "flannel.serviceAccount", "flannel.rbac",
}

// TestFlannelsValues: the page about the chart has each value of flannel's in its table, and the values that it names
// instead are the chart's.
func TestFlannelsValues(t *testing.T) {
	data, err := os.ReadFile("../Documentation/helm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "## From flannel's chart")
	instead := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || !strings.Contains(cells[0], "`") {
			continue
		}
		for _, name := range strings.Split(cells[0], "`") {
			instead[name] = cells[1]
		}
	}
	for _, name := range flannels {
		if instead[name] == "" {
			t.Errorf("the table has no %s", name)
		}
	}
	own := ownValues(t)
	for name, cell := range instead {
		for i, value := range strings.Split(cell, "`") {
			top, _, _ := strings.Cut(value, ".")
			if _, known := own[top]; i%2 == 1 && !known && !strings.HasPrefix(value, "-") {
				t.Errorf("instead of %s the table names %s, which the chart has not", name, value)
			}
		}
	}
}
