// Package secret makes fingerprints, which stand for secrets in plans and logs. It is no part of netstate because
// the CNI binary, which is small, has no hash.
package secret

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint returns 16 hexadecimal digits of a secret's SHA-256, and nothing for the zero key, which is none.
func Fingerprint(key [32]byte) string {
	if key == [32]byte{} {
		return ""
	}
	sum := sha256.Sum256(key[:])
	return hex.EncodeToString(sum[:8])
}
