package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is a container image that is packed from files of this machine. It has no shell unless its base has one.
type Image struct {
	Name  string   // with its tag
	Base  string   // an archive of the files that lie below; empty if there are none
	Entry []string // what runs, and
	Args  []string // its arguments unless a pod gives others
	files []file
}

type file struct {
	name string // without the first slash
	data []byte
	mode int64
}

// Add puts a program of this machine at path, with the shared libraries that it is linked to where the loader looks
// for them.
func (i *Image) Add(ctx context.Context, path, from string) error {
	if err := i.AddFile(path, from, 0o755); err != nil {
		return err
	}
	program, err := elf.Open(from)
	if err != nil {
		return fmt.Errorf("pack %s: %w", from, err)
	}
	defer program.Close()
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) == 0 {
		return err
	}
	out, err := exec.CommandContext(ctx, "ldd", from).Output()
	if err != nil {
		return fmt.Errorf("list the libraries of %s: %w", from, err)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			if err := i.AddFile(field, field, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// AddFile puts a file of this machine at path, which is taken once.
func (i *Image) AddFile(path, from string, mode int64) error {
	name := strings.TrimPrefix(path, "/")
	for _, f := range i.files {
		if f.name == name {
			return nil
		}
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("pack %s: %w", path, err)
	}
	i.files = append(i.files, file{name, data, mode})
	return nil
}

// AddIPTables adds this machine's iptables, with its matches and targets.
func (i *Image) AddIPTables(ctx context.Context) error {
	const program = "/usr/sbin/iptables"
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := i.Add(ctx, "/usr/sbin/"+name, program); err != nil {
			return err
		}
	}
	plugins, err := filepath.Glob("/usr/lib/*/xtables/lib*.so")
	if err != nil {
		return fmt.Errorf("find the parts of iptables: %w", err)
	}
	for _, path := range plugins {
		if err := i.AddFile(path, path, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Write packs the image, see WriteImages.
func (i *Image) Write(path string) error { return WriteImages(path, *i) }

// WriteImages packs images in docker's archive format: layers, a config for each image and a manifest. Images with the
// same base share it. /tmp is there for everybody.
// See https://github.com/moby/docker-image-spec/blob/main/v1.2.md
func WriteImages(path string, images ...Image) error {
	var files []file
	var manifest []map[string]any
	add := func(data []byte, suffix string) string {
		name := digest(data) + suffix
		if !slices.ContainsFunc(files, func(f file) bool { return f.name == name }) {
			files = append(files, file{name, data, 0o644})
		}
		return name
	}
	for _, i := range images {
		layers, err := i.layers()
		if err != nil {
			return err
		}
		var names, ids []string
		for _, l := range layers {
			names, ids = append(names, add(l, ".tar")), append(ids, "sha256:"+digest(l))
		}
		config, err := json.Marshal(map[string]any{
			"os": "linux", "architecture": runtime.GOARCH,
			"config": map[string]any{
				"Entrypoint": i.Entry,
				"Cmd":        i.Args,
				"Env":        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/"},
			},
			"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
		})
		if err != nil {
			return err
		}
		manifest = append(
			manifest,
			map[string]any{"Config": add(config, ".json"), "RepoTags": []string{i.Name}, "Layers": names},
		)
	}
	list, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	archive, err := tarOf(append(files, file{"manifest.json", list, 0o644})...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

// layers are the archives of the image's files, the lowest first.
func (i *Image) layers() ([][]byte, error) {
	own, err := tarOf(append([]file{{"tmp/", nil, 0o1777}}, i.files...)...)
	if err != nil || i.Base == "" {
		return [][]byte{own}, err
	}
	base, err := os.ReadFile(i.Base)
	return [][]byte{base, own}, err
}

// tarOf packs files; a name that ends in a slash is a directory.
func tarOf(files ...file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
