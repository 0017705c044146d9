//go:build !long

package plugin

// long says that tests may take minutes: `go test -tags long`.
const long = false
