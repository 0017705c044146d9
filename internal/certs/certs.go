// Package certs says when certificates end.
package certs

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Certificate is one of those that an agent proves itself by, or trusts.
type Certificate struct {
	Name string    `json:"name"` // what it is, and of which file: "client certificate of /etc/twill/kubeconfig"
	Ends time.Time `json:"ends"`
}

// Of returns the end of the first certificate in PEM: what follows it are those that signed it.
func Of(name string, data []byte) (Certificate, error) { return read(name, data, false) }

// OfAll returns the end of the certificate in PEM that ends last: of authorities that are trusted one is enough.
func OfAll(name string, data []byte) (Certificate, error) { return read(name, data, true) }

func read(name string, data []byte, all bool) (Certificate, error) {
	c := Certificate{Name: name}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		parsed, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
		if parsed.NotAfter.After(c.Ends) {
			c.Ends = parsed.NotAfter
		}
		if !all {
			break
		}
	}
	if c.Ends.IsZero() {
		return c, fmt.Errorf("%s: want a certificate in PEM", name)
	}
	return c, nil
}
