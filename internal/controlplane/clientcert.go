package controlplane

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// IssueClient makes a client certificate that the API server of dir accepts for user in groups, such as a kubelet's
// system:node:NAME in system:nodes. It works before the server's first start too.
func IssueClient(dir, user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	ca, err := loadAuthority(dir)
	if err != nil {
		return nil, nil, err
	}
	key, err := loadKey(filepath.Join(dir, "client.key")) // one key for all: they are all ours
	if err != nil {
		return nil, nil, err
	}
	t := certTemplate(user)
	t.Subject = pkix.Name{CommonName: user, Organization: groups}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	certPEM, err = sign(t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the client certificate of %s: %w", user, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
