//go:build release

package release

import (
	"debug/elf"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestImages: skopeo reads each image, finds every digest right, and the digests are those that manifest and chart name.
func TestImages(t *testing.T) {
	for _, variant := range []string{"", "-full"} {
		t.Run("image"+variant, func(t *testing.T) {
			archive := "oci-archive:" + file("twill-image_"+version+variant+".tar")
			copied := t.TempDir()
			output(t, "skopeo", "copy", "--quiet", "--all", archive, "dir:"+copied)
			var index struct {
				Manifests []struct {
					Digest   string
					Platform struct{ OS, Architecture string }
				}
			}
			if err := json.Unmarshal([]byte(output(t, "skopeo", "inspect", "--raw", archive)), &index); err != nil {
				t.Fatal(err)
			}
			if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
				t.Errorf("the index has %+v", index.Manifests)
			}
			pinned := "ghcr.io/twill-net/twill:" + version + variant + "@" +
				strings.TrimSpace(output(t, "skopeo", "manifest-digest", filepath.Join(copied, "manifest.json")))
			manifest := read(t, file("twill_"+version+variant+".yml"))
			if strings.Count(manifest, "image: "+pinned+"\n") != 2 || strings.Count(manifest, "image:") != 2 {
				t.Errorf("the manifest does not have %s twice:\n%s", pinned, manifest)
			}
			if names := read(t, file("images_"+version+".txt")); !strings.Contains(names, pinned+"\n") {
				t.Errorf("the image is %s, images.txt has\n%s", pinned, names)
			}
			about := output(t, "skopeo", "inspect", archive)
			if !strings.Contains(about, `"org.opencontainers.image.version": "`+version+variant+`"`) {
				t.Errorf("skopeo says of it\n%s", about)
			}
		})
	}
}

// TestContents runs the programs of each image in it, and wants every library that one of them needs.
func TestContents(t *testing.T) {
	programs := map[string][]string{
		"twilld --version": {version}, "iptables --version": {"nf_tables"}, "iptables-legacy --version": {"legacy"},
		"nft --version": {"nftables"},
	}
	full := map[string][]string{
		"sh -c pwd": {"/"}, "ip -V": {"iproute2"}, "wg --version": {"wireguard-tools"}, "swanctl --help": {"strongSwan"},
		"ls /usr/sbin/charon-systemd /usr/lib/ipsec/plugins/libstrongswan-vici.so": {"charon-systemd"},
	}
	for _, variant := range []string{"", "-full"} {
		t.Run("image"+variant, func(t *testing.T) {
			root := unpack(t, file("twill-image_"+version+variant+".tar"))
			for line, want := range programs {
				wantOutput(t, root, line, want)
			}
			for line, want := range full {
				if variant == "" {
					if out, err := chroot(root, line); err == nil {
						t.Errorf("the small image has %s: %s", line, out)
					}
					continue
				}
				wantOutput(t, root, line, want)
			}
			wantLibraries(t, root)
			if sbom := read(t, filepath.Join(root, "usr/share/doc/twill/sbom.spdx.json")); !strings.Contains(sbom, "pkg:deb/debian/nftables@") ||
				strings.Contains(sbom, "pkg:deb/debian/charon-systemd@") != (variant != "") {
				t.Errorf("the bill of materials is\n%s", sbom)
			}
		})
	}
}

func chroot(root, line string) (string, error) {
	c := command("/usr/sbin/chroot", append([]string{root}, strings.Fields(line)...)...)
	c.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := c.CombinedOutput()
	return string(out), err
}

func wantOutput(t *testing.T, root, line string, want []string) {
	t.Helper()
	out, err := chroot(root, line)
	for _, w := range want {
		if err != nil || !strings.Contains(out, w) {
			t.Errorf("%s: %v, %s: want %s", line, err, out, w)
		}
	}
}

// unpack unpacks the layers of this machine's image.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	copied, root := t.TempDir(), t.TempDir()
	output(t, "skopeo", "copy", "--quiet", "oci-archive:"+archive, "dir:"+copied)
	var manifest struct{ Layers []struct{ Digest string } }
	if err := json.Unmarshal([]byte(read(t, filepath.Join(copied, "manifest.json"))), &manifest); err != nil || len(manifest.Layers) < 2 {
		t.Fatalf("%v: the manifest has the layers %v", err, manifest.Layers)
	}
	for _, l := range manifest.Layers {
		output(t, "tar", "-C", root, "--keep-directory-symlink", "-xzf", filepath.Join(copied, strings.TrimPrefix(l.Digest, "sha256:")))
	}
	return root
}

// wantLibraries: each library that a program or library below root is linked to is there.
func wantLibraries(t *testing.T, root string) {
	t.Helper()
	there, needed := map[string]bool{}, map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		there[entry.Name()] = true
		if entry.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		program, err := elf.Open(path)
		if err != nil {
			return nil // no program
		}
		defer program.Close()
		libraries, err := program.ImportedLibraries()
		for _, l := range libraries {
			needed[l] = append(needed[l], strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil || len(needed) < 5 {
		t.Errorf("%v: the programs need %d libraries", err, len(needed))
	}
	for l, by := range needed {
		if !there[l] {
			t.Errorf("%v need %s, which is missing", slices.Compact(by), l)
		}
	}
}

// wantStatic: a program needs no library.
func wantStatic(t *testing.T, path string) {
	t.Helper()
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("%s needs %v, %v", path, libraries, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
