package lab

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/lab/controlplane"
)

// TestCheckProxy: a lab with kube-proxies says at once that the program is not built, and how it is; others do not ask.
func TestCheckProxy(t *testing.T) {
	t.Setenv("TWILL_KUBE_BIN", t.TempDir())
	if err := (Spec{}).checkProxy(); err != nil {
		t.Error(err)
	}
	err := Spec{Proxy: "nftables"}.checkProxy()
	if err == nil || !strings.HasPrefix(err.Error(), "find kube-proxy in ") || !strings.HasSuffix(err.Error(), controlplane.ErrNoBinary.Error()) {
		t.Errorf("%v: want that kube-proxy is not found, and %v", err, controlplane.ErrNoBinary)
	}
}

// TestServiceSpec: fields stand where Kubernetes has them, and a change of other fields leaves the port alone.
func TestServiceSpec(t *testing.T) {
	spec := serviceSpec(map[string]string{"type": "NodePort", "nodePort": "30080"}, false)
	port := spec["ports"].([]object)[0]
	if spec["type"] != "NodePort" || port["nodePort"] != 30080 || port["port"] != servicePort || port["targetPort"] != targetPort {
		t.Errorf("%v", spec)
	}
	if spec := serviceSpec(map[string]string{"sessionAffinity": "ClientIP"}, false); len(spec) != 1 || spec["sessionAffinity"] != "ClientIP" {
		t.Errorf("%v: want nothing but sessionAffinity", spec)
	}
	if spec := serviceSpec(nil, true); len(spec["ports"].([]object)) != 1 {
		t.Errorf("%v: want a new Service to have a port", spec)
	}
}
