//go:build !nocloud

package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestAuthorities: where there are no certificates of authorities, as in the image, the providers' are known all the same.
func TestAuthorities(t *testing.T) {
	const inside = "TWILLD_TEST_WITHOUT_CERTIFICATES"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	// The system's pool is empty then, and Verify takes the fallback: its answer to a certificate of nobody tells them apart.
	pool, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, s := range pool.Subjects() { //nolint:staticcheck // the fallback's are in it
		names += string(s) + "\n"
	}
	for _, want := range []string{"Amazon Root CA 1", "GTS Root R1", "GlobalSign"} {
		if !strings.Contains(names, want) {
			t.Errorf("there is no certificate of %s", want)
		}
	}
}
