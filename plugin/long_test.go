//go:build long

package plugin

// long says that tests may take minutes.
const long = true
