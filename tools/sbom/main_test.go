package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestDescribe: the same files give the same document, and other files another namespace, which SPDX demands.
func TestDescribe(t *testing.T) {
	made, err := epoch("1700000000")
	if err != nil {
		t.Fatal(err)
	}
	urls := map[string]bool{}
	for _, path := range []string{"libmnl0_1.0.4-3_amd64.deb", "iptables_1.8.9-2_amd64.deb", "libc6_2%3a2.36-9_amd64.deb"} {
		if err := add(urls, path); err != nil {
			t.Fatal(err)
		}
	}
	d := describe("example.org/twill", "v1", made, urls)
	if again := describe("example.org/twill", "v1", made, urls); !reflect.DeepEqual(d, again) {
		t.Errorf("two documents of the same files:\n%v\n%v", d, again)
	}
	if d.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("created %s, want SOURCE_DATE_EPOCH's time", d.CreationInfo.Created)
	}
	if len(d.Packages) != 4 || d.Packages[2].Name != "libc6" || d.Packages[2].Version != "2:2.36-9" {
		t.Errorf("packages %+v, want the image and three, sorted, the second libc6 2:2.36-9", d.Packages)
	}
	delete(urls, "pkg:deb/debian/libmnl0@1.0.4-3?arch=amd64")
	if other := describe("example.org/twill", "v1", made, urls); other.DocumentNamespace == d.DocumentNamespace {
		t.Errorf("documents of other files share the namespace %s", d.DocumentNamespace)
	}
}

// TestModules: a program's modules are listed, but not those of its own source, which have no version.
func TestModules(t *testing.T) {
	dir := t.TempDir()
	source, err := txtar.FS(txtar.Parse([]byte(`
-- go.mod --
module example.org/program
require example.org/body v0.0.0
replace example.org/body => ./body
-- body/go.mod --
module example.org/body
-- body/body.go --
package body
-- main.go --
package main

import _ "example.org/body"

func main() {}
`)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, source); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", "program", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	urls := map[string]bool{}
	if err := add(urls, filepath.Join(dir, "program")); err != nil {
		t.Fatal(err)
	}
	if want := map[string]bool{"pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go"): true}; !maps.Equal(urls, want) {
		t.Errorf("listed are %v, want %v", urls, want)
	}
}

func TestEpoch(t *testing.T) {
	if _, err := epoch("yesterday"); err == nil {
		t.Error("SOURCE_DATE_EPOCH=yesterday gives no error")
	}
}
