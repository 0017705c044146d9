package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// writeLayout writes an image or an index with its annotations as an OCI layout, packed into the archive file, and its
// digest to out.
func writeLayout(
	out io.Writer, file string, content interface{ Digest() (v1.Hash, error) }, annotations map[string]string, created time.Time,
) error {
	dir, err := os.MkdirTemp("", "twill-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write the layout of %s: %w", file, err)
	}
	switch c := content.(type) {
	case v1.Image:
		err = path.AppendImage(c, layout.WithAnnotations(annotations))
	case v1.ImageIndex:
		err = path.AppendIndex(c, layout.WithAnnotations(annotations))
	default:
		err = fmt.Errorf("it is a %T, want an image or an index", c)
	}
	if err != nil {
		return fmt.Errorf("write the layout of %s: %w", file, err)
	}
	index, err := path.ImageIndex()
	if err == nil {
		err = validate.Index(index, validate.Fast)
	}
	if err != nil {
		return fmt.Errorf("the layout of %s is wrong: %w", file, err)
	}
	if err := archive(file, dir, created); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	digest, err := content.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, digest)
	return err
}

// archive packs the files below dir.
func archive(file, dir string, created time.Time) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		if !entry.IsDir() {
			if err := os.Chmod(path, 0o644); err != nil {
				return err
			}
		}
		return pack(w, dir, path, entry, created)
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}
