//go:build release

package release

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestReproducible makes the release again, elsewhere: its bytes are the same. With TWILL_ALL everything is compiled again.
func TestReproducible(t *testing.T) {
	source := filepath.Join(t.TempDir(), "another", "place")
	output(t, "git", "clone", "--quiet", filepath.Join(work, "source"), source)
	to := t.TempDir()
	env := []string{"TZ=Asia/Tokyo"}
	if os.Getenv("TWILL_ALL") != "" {
		env = append(env, "GOCACHE="+t.TempDir())
	}
	out, err := build(source, version, to, env...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, second := sums(t, dir), sums(t, to)
	delete(first, "SHA256SUMS.sig")
	if len(first) < 10 {
		t.Errorf("there are only %d files", len(first))
	}
	for name, sum := range first {
		if second[name] != sum {
			t.Errorf("%s is %s and then %q", name, sum, second[name])
		}
	}
	if len(second) != len(first) {
		t.Errorf("%d files, and then %d", len(first), len(second))
	}
}

func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return sums
}

// TestChecksums: sha256sum and openssl accept the release as Documentation/release.md says, and nothing else.
func TestChecksums(t *testing.T) {
	checked := output(t, "sh", "-c", `cd "$1" && sha256sum --check --strict SHA256SUMS`, "sh", dir)
	for name := range sums(t, dir) {
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains(checked, name+": OK\n") {
			t.Errorf("SHA256SUMS does not have %s", name)
		}
	}
	public := filepath.Join(t.TempDir(), "public.pem")
	output(t, "openssl", "pkey", "-in", filepath.Join(work, "key.pem"), "-pubout", "-out", public)
	const verify = `openssl base64 -d -A -in "$1/SHA256SUMS.sig" -out "$2.sig" && openssl dgst -sha256 -verify "$2" -signature "$2.sig" "$3"`
	output(t, "sh", "-c", verify, "sh", dir, public, file("SHA256SUMS"))
	if out, err := command("sh", "-c", verify, "sh", dir, public, file("images_"+version+".txt")).CombinedOutput(); err == nil {
		t.Errorf("the signature is also that of another file: %s", out)
	}
}

// TestProvenance: it names every other file with its digest, and the commit.
func TestProvenance(t *testing.T) {
	type subject struct {
		Name   string
		Digest map[string]string
	}
	var s struct {
		Subject   []subject
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   map[string]string
				ResolvedDependencies []subject
			}
		}
	}
	name := "twill_" + version + ".intoto.json"
	data, err := os.ReadFile(file(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	want := sums(t, dir)
	for _, s := range s.Subject {
		if want[s.Name] != s.Digest["sha256"] {
			t.Errorf("%s is %s there, and is %s", s.Name, s.Digest["sha256"], want[s.Name])
		}
		delete(want, s.Name)
	}
	for _, left := range []string{name, "SHA256SUMS", "SHA256SUMS.sig"} {
		delete(want, left)
	}
	if len(want) > 0 {
		t.Errorf("the provenance does not name %v", want)
	}
	d := s.Predicate.BuildDefinition
	if len(d.ResolvedDependencies) != 1 || d.ResolvedDependencies[0].Digest["gitCommit"] != commit || d.ExternalParameters["version"] != version {
		t.Errorf("it was built from %+v, want %s of commit %s", d, version, commit)
	}
}

// TestArchive: the programs run, are of that version, and need no library.
func TestArchive(t *testing.T) {
	to := t.TempDir()
	output(t, "tar", "-C", to, "-xf", file("twill_"+version+"_linux_"+runtime.GOARCH+".tar.gz"))
	for p, c := range map[string]struct{ argument, want string }{
		"twilld": {"--version", version}, "twill": {"--version", version}, "twillctl": {"version", version},
	} {
		out, err := command(filepath.Join(to, p), c.argument).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s says %q, %v: want %s", p, c.argument, out, err, c.want)
		}
		wantStatic(t, filepath.Join(to, p))
	}
}

// TestRefusals: each in one sentence, and nothing is written.
func TestRefusals(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	if _, err := checkOut(source); err != nil {
		t.Fatal(err)
	}
	refused := func(version, want string, env ...string) {
		t.Helper()
		to := filepath.Join(t.TempDir(), "out")
		out, err := build(source, version, to, env...)
		if err == nil || !strings.HasPrefix(out, "release: "+want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: %v, %s\nwant %s", version, err, out, want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: it wrote something", version)
		}
	}
	refused("0.2.0", `version "0.2.0": want one such as v0.1.0`)
	refused("", `version "": want one such as v0.1.0`)
	refused("v1", `version "v1": want one such as v0.1.0`)
	refused(version, "architecture mips: want some of amd64 arm arm64 ppc64le riscv64 s390x", "ARCHITECTURES=mips")
	refused(version, "cannot read the key /nonexistent of SIGN_KEY", "SIGN_KEY=/nonexistent")
	output(t, "git", "-C", source, "tag", "v0.3.0")
	output(t, "git", "-C", source, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "--allow-empty", "-m", "later")
	refused("v0.3.0", "the tag v0.3.0 is another commit")
	if err := os.WriteFile(filepath.Join(source, "forgotten.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(version, "the source is not what is committed: commit, stash or remove forgotten.go")
}
