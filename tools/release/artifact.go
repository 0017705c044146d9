package main

import (
	"bytes"
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// artifact is an image whose config is not that of a container.
type artifact struct {
	v1.Image
	config      []byte
	annotations map[string]string
}

// RawConfigFile implements v1.Image.
func (a artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// ConfigName implements v1.Image.
func (a artifact) ConfigName() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(a.config))
	return h, err
}

// Manifest implements v1.Image.
func (a artifact) Manifest() (*v1.Manifest, error) {
	m, err := a.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	m.Annotations = a.annotations
	m.Config = v1.Descriptor{MediaType: chartConfig, Size: int64(len(a.config))}
	m.Config.Digest, err = a.ConfigName()
	return m, err
}

// RawManifest implements v1.Image.
func (a artifact) RawManifest() ([]byte, error) {
	m, err := a.Manifest()
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// Digest implements v1.Image.
func (a artifact) Digest() (v1.Hash, error) { return partial.Digest(a) }

// Size implements v1.Image.
func (a artifact) Size() (int64, error) { return partial.Size(a) }
