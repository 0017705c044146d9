// Package secret has what stands for secrets in plans and logs. It is no part of netstate because the CNI binary, which is
// small, has no hash.
package secret

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint stands for a secret: 16 hexadecimal digits of its SHA-256; empty for the zero key, which is none.
func Fingerprint(key [32]byte) string {
	if key == [32]byte{} {
		return ""
	}
	sum := sha256.Sum256(key[:])
	return hex.EncodeToString(sum[:8])
}
