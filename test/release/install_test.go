//go:build release

package release

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// TestInstall: users install the programs of a tag or commit with Go alone, which takes their module without what is beside
// it in the source, and refuses one that replaces another.
func TestInstall(t *testing.T) {
	twill := module.Version{Path: "github.com/twill-net/twill", Version: version}
	proxy, to := t.TempDir(), t.TempDir()
	serveModule(t, proxy, twill)
	cache := strings.TrimSpace(output(t, "go", "env", "GOMODCACHE"))
	programs := map[string][]string{"twilld": {"--version"}, "twill": {"--version"}, "twillctl": {"version"}}
	c := command("go", "install", "-trimpath", "-tags", "grpcnotrace", "-modcacherw")
	for name := range programs {
		c.Args = append(c.Args, twill.Path+"/cmd/"+name+"@"+version)
	}
	c.Dir = to
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "GOSUMDB=off", "GOBIN="+to, "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache", "download")+","+strings.TrimSpace(output(t, "go", "env", "GOPROXY")))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", c, err, out)
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if out := output(t, filepath.Join(to, name), programs[name]...); !strings.HasPrefix(out, name) {
			t.Errorf("%s %v says\n%s", name, programs[name], out)
		}
	}
}

// serveModule writes the files of a proxy for a module, of the commit that the release was made from.
func serveModule(t *testing.T, proxy string, m module.Version) {
	t.Helper()
	source := filepath.Join(work, "source")
	versions := filepath.Join(proxy, m.Path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(filepath.Join(versions, m.Version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if err := zip.CreateFromVCS(archive, m, source, commit, ""); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"list":              m.Version + "\n",
		m.Version + ".info": `{"Version": "` + m.Version + `"}`,
		m.Version + ".mod":  output(t, "git", "-C", source, "show", commit+":go.mod"),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
