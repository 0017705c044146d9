//go:build release

package release

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestFirstLab: a lab is the first command of the archive and of the full image, on a machine that has nothing else: no
// compiler, and for the archive no program at all.
func TestFirstLab(t *testing.T) {
	archive := t.TempDir()
	output(t, "tar", "-C", archive, "-xzf", file("twill_"+version+"_linux_"+runtime.GOARCH+".tar.gz"))
	for name, of := range map[string]struct{ root, program string }{
		"archive": {archive, "/twillctl"},
		"image":   {unpack(t, file("twill-image_"+version+"-full.tar")), "twillctl"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, d := range []string{"proc", "sys", "run", "dev", "tmp"} {
				if err := os.MkdirAll(filepath.Join(of.root, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// The namespaces end with the shell: what the lab has left goes, too.
			c := command("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", `
				mount -t proc proc "$1/proc"
				mount -t sysfs sys "$1/sys"
				mount -t tmpfs run "$1/run"
				mount --rbind /dev "$1/dev"
				shift
				chroot "$@" lab up
				chroot "$@" lab ping
				chroot "$@" lab down`, "sh", of.root, of.root, of.program)
			c.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
			out, err := c.CombinedOutput()
			if err != nil || strings.Count(string(out), "30 of 30 pings answered") != 2 || !strings.Contains(string(out), "lab twill is removed") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
