package lab

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
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

// TestSetFields: fields stand where Kubernetes has them, and what a Service has beside them stays.
func TestSetFields(t *testing.T) {
	spec := object{}
	setFields(spec, map[string]string{"type": "NodePort", "nodePort": "30080"})
	port := spec["ports"].([]any)[0].(object)
	if spec["type"] != "NodePort" || port["nodePort"] != 30080 || port["port"] != servicePort || port["targetPort"] != targetPort {
		t.Errorf("%v", spec)
	}
	setFields(spec, map[string]string{"sessionAffinity": "ClientIP", "port": "81"})
	if spec["type"] != "NodePort" || spec["sessionAffinity"] != "ClientIP" || port["port"] != 81 || port["nodePort"] != 30080 {
		t.Errorf("%v", spec)
	}
}
