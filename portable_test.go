package twill_test

import (
	"os"
	"testing"

	load "golang.org/x/tools/go/packages"
)

// TestTypesOf32Bits: the programs of a release compile where an int and the kernel's words have 32 bits (arm). Only types
// are checked, which takes seconds; make test-arch compiles and runs them.
func TestTypesOf32Bits(t *testing.T) {
	config := &load.Config{
		Mode: load.LoadAllSyntax,
		Env:  append(os.Environ(), "GOARCH=arm", "CGO_ENABLED=0"), BuildFlags: []string{"-tags=grpcnotrace"},
	}
	programs, err := load.Load(config, "./cmd/...")
	if err != nil {
		t.Fatal(err)
	}
	load.Visit(programs, nil, func(p *load.Package) {
		for _, err := range p.Errors {
			t.Error(err)
		}
	})
	if len(programs) < 3 {
		t.Errorf("got %d programs, want twilld, twill and twillctl", len(programs))
	}
}
