package deploy

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// krewManifest is of krew's format what matters here.
type krewManifest struct {
	Spec struct {
		Version   string `json:"version"`
		Platforms []struct {
			URI      string `json:"uri"`
			SHA256   string `json:"sha256"`
			Bin      string `json:"bin"`
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
		} `json:"platforms"`
	} `json:"spec"`
}

// TestKrew makes the plugin for this machine. The manifest's checksum is the archive's, what the archive has runs as the
// plugin of that version, and making it again gives the same bytes.
func TestKrew(t *testing.T) {
	const version = "v9.8.7-test.1"
	var manifests [2]string
	var archive string
	for i := range manifests {
		dir := t.TempDir()
		t.Setenv("ARCHITECTURES", runtime.GOARCH)
		run(t, "../tools/krew/build", version, dir)
		path := filepath.Join(dir, "twill.yaml")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		manifests[i] = string(text)
		var m krewManifest
		decode(t, path, &m)
		if len(m.Spec.Platforms) != 1 || m.Spec.Version != version {
			t.Fatalf("the manifest is\n%s", text)
		}
		p := m.Spec.Platforms[0]
		if labels := p.Selector.MatchLabels; labels["os"] != "linux" || labels["arch"] != runtime.GOARCH || p.Bin != "kubectl-twill" {
			t.Errorf("the platform is %+v", p)
		}
		name, ok := strings.CutPrefix(p.URI, "https://github.com/twill-net/twill/releases/download/"+version+"/")
		archive = filepath.Join(dir, name)
		data, err := os.ReadFile(archive)
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || !ok || got != p.SHA256 {
			t.Errorf("%s: %v, its checksum is %s, the manifest has %+v", archive, err, got, p)
		}
	}
	if manifests[0] != manifests[1] {
		t.Errorf("another run makes another manifest:\n%s\n%s", manifests[0], manifests[1])
	}
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "-xf", archive)
	plugin := filepath.Join(dir, "kubectl-twill")
	if out := run(t, plugin, "version"); !strings.HasPrefix(out, "kubectl twill version "+version+" ") {
		t.Errorf("the plugin says %s", out)
	}
	if out := run(t, plugin, "status", "--help"); !strings.Contains(out, "kubectl twill status [NODE]") {
		t.Errorf("its help is\n%s", out)
	}
	out, err := exec.CommandContext(t.Context(), "../tools/krew/build", "1.0", dir).CombinedOutput()
	if want := "krew: version 1.0: want one such as v0.1.0\n"; err == nil || string(out) != want {
		t.Errorf("with a bad version: %v, %s", err, out)
	}
}
