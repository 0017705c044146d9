package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// TestProgramsIn: the archive has the plugin beside the agent, and the image has it among other plugins.
func TestProgramsIn(t *testing.T) {
	image, archive, plugins := t.TempDir(), t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(image, "twilld"), filepath.Join(archive, "twilld"), filepath.Join(archive, "twill"), filepath.Join(plugins, "twill")} {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dir     string
		plugins []string
		want    Programs
		ok      bool
	}{
		{archive, []string{archive, plugins}, Programs{Agent: filepath.Join(archive, "twilld"), Plugin: filepath.Join(archive, "twill")}, true},
		{image, []string{image, plugins}, Programs{Agent: filepath.Join(image, "twilld"), Plugin: filepath.Join(plugins, "twill")}, true},
		{image, []string{image}, Programs{}, false},
		{plugins, []string{plugins}, Programs{}, false},
	} {
		got, ok := programsIn(c.dir, c.plugins)
		if ok != c.ok || ok && (got.Agent != c.want.Agent || got.Plugin != c.want.Plugin) {
			t.Errorf("in %s, plugins in %v: %+v, %v, want %+v, %v", c.dir, c.plugins, got, ok, c.want, c.ok)
		}
	}
}
