package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority of one control plane directory: ca.crt and ca.key. It signs the serving
// certificate, and the API server accepts its client certificates.
type authority struct {
	cert *x509.Certificate
	pem  []byte
	key  *ecdsa.PrivateKey
}

// validity is long enough for a lab that somebody forgets about; the margin tolerates clocks that jump.
const (
	validity = 365 * 24 * time.Hour
	margin   = time.Hour
)

// loadAuthority takes the one in dir, or makes one: clients must be able to verify the server after its restart.
func loadAuthority(dir string) (*authority, error) {
	key, err := loadKey(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "ca.crt")
	certPEM, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if certPEM, err = selfSigned(key); err == nil {
			err = os.WriteFile(path, certPEM, 0o644)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load certificate authority: %w", err)
	}
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return nil, fmt.Errorf("read %s: no PEM block", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &authority{cert: cert, pem: certPEM, key: key}, nil
}

func selfSigned(key *ecdsa.PrivateKey) ([]byte, error) {
	t := certTemplate("twill-lab-ca")
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	return sign(t, t, key.Public(), key)
}

// writeServing writes tls.crt and tls.key, valid for the given names and addresses.
func (a *authority) writeServing(dir string, names []string) error {
	key, err := loadKey(filepath.Join(dir, "tls.key"))
	if err != nil {
		return err
	}
	t := certTemplate("kube-apiserver")
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	cert, err := sign(t, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign serving certificate: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "tls.crt"), cert, 0o644)
}

func certTemplate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // never fails: crypto/rand, Go 1.24
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-margin),
		NotAfter:     time.Now().Add(validity),
	}
}

func sign(t, parent *x509.Certificate, public crypto.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// loadKey takes the private key in a file, or makes one. The file can be read by its owner only.
func loadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("read key %s: no PEM block", path)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return key, os.WriteFile(path, data, 0o600)
}
