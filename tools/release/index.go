package main

import (
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// index is an index of images, written as skopeo writes it, in the order of the specification's own types. Skopeo reads
// and writes an index that it copies, and older versions would change its digest otherwise.
type index struct {
	imageIndex
	raw []byte
}

// imageIndex has a name of its own: embedded under its own name, the interface would hide its method ImageIndex.
type imageIndex = v1.ImageIndex

var _ v1.ImageIndex = index{}

func newIndex(of v1.ImageIndex) (index, error) {
	written, err := of.RawManifest()
	if err != nil {
		return index{}, err
	}
	var manifest specs.Index
	if err := json.Unmarshal(written, &manifest); err != nil {
		return index{}, err
	}
	for i := range manifest.Manifests {
		manifest.Manifests[i].ArtifactType = "" // they are containers
	}
	raw, err := json.Marshal(manifest)
	return index{imageIndex: of, raw: raw}, err
}

// RawManifest implements v1.ImageIndex.
func (i index) RawManifest() ([]byte, error) { return i.raw, nil }

// Digest implements v1.ImageIndex.
func (i index) Digest() (v1.Hash, error) { return partial.Digest(i) }

// Size implements v1.ImageIndex.
func (i index) Size() (int64, error) { return partial.Size(i) }
