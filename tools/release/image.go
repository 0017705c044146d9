package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const source = "https://github.com/twill-net/twill"

// variants are the levels of the instruction set that Go and Debian compile for, where an architecture has several.
var variants = map[string]string{"arm": "v7", "arm64": "v8"}

// writeImages writes an index of one image for each architecture to the archive file, and its digest to out. Each of
// the directories of an architecture is a layer.
func writeImages(out io.Writer, file, name string, created time.Time, architectures []string) error {
	_, version, ok := strings.Cut(name, ":")
	if !ok || len(architectures) == 0 {
		return fmt.Errorf("image %s of %d architectures: want NAME:VERSION and at least one", name, len(architectures))
	}
	notes := map[string]string{
		"org.opencontainers.image.created":  created.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   source,
		"org.opencontainers.image.title":    "twill",
		"org.opencontainers.image.version":  version,
	}
	var images v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, a := range architectures {
		arch, dirs, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("architecture %q: want ARCHITECTURE=DIRECTORY[,DIRECTORY…]", a)
		}
		platform := v1.Platform{OS: "linux", Architecture: arch, Variant: variants[arch]}
		image, err := image(platform, strings.Split(dirs, ","), created, notes)
		if err != nil {
			return fmt.Errorf("make the image for %s: %w", arch, err)
		}
		about := v1.Descriptor{Platform: &platform}
		images = mutate.AppendManifests(images, mutate.IndexAddendum{Add: image, Descriptor: about})
	}
	images, ok = mutate.Annotations(images, notes).(v1.ImageIndex)
	if !ok {
		return fmt.Errorf("annotate the index of %s: it is no index any more", name)
	}
	index, err := newIndex(images)
	if err != nil {
		return fmt.Errorf("write the index of %s: %w", name, err)
	}
	return writeLayout(out, file, index, map[string]string{
		"org.opencontainers.image.ref.name": version, // what skopeo and buildah call it
		"io.containerd.image.name":          name,
	}, created)
}

// image makes the image of one platform.
func image(platform v1.Platform, dirs []string, created time.Time, notes map[string]string) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant,
		Created: v1.Time{Time: created},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/usr/local/bin/twilld"},
			Env:        []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels:     notes,
		},
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		l, err := layer(dir, created)
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: created}, CreatedBy: "tools/release"}
		image, err = mutate.Append(image, mutate.Addendum{Layer: l, History: history, MediaType: types.OCILayer})
		if err != nil {
			return nil, err
		}
	}
	return image, nil
}
