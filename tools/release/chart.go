package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of https://helm.sh/docs/topics/registries/.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// writeChart writes a packed chart as an OCI artifact to the archive file, and its digest to out.
func writeChart(out io.Writer, file, chart string, created time.Time) error {
	packed, err := os.ReadFile(chart)
	if err != nil {
		return err
	}
	text, err := chartYAML(packed)
	if err != nil {
		return fmt.Errorf("read the chart %s: %w", chart, err)
	}
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("read Chart.yaml of %s: %w", chart, err)
	}
	var about struct{ Name, Version, Description string }
	if err := json.Unmarshal(config, &about); err != nil || about.Name == "" || about.Version == "" {
		return fmt.Errorf("read Chart.yaml of %s: want a name and a version: %w", chart, err)
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	content := static.NewLayer(packed, chartContent)
	layers, err := mutate.Append(image, mutate.Addendum{Layer: content, MediaType: chartContent})
	if err != nil {
		return fmt.Errorf("pack the chart %s: %w", chart, err)
	}
	artifact := artifact{Image: layers, config: config, annotations: map[string]string{
		"org.opencontainers.image.created":     created.Format(time.RFC3339),
		"org.opencontainers.image.description": about.Description,
		"org.opencontainers.image.title":       about.Name,
		"org.opencontainers.image.version":     about.Version,
	}}
	return writeLayout(out, file, artifact, map[string]string{"org.opencontainers.image.ref.name": about.Version}, created)
}

// chartYAML is the file Chart.yaml of a packed chart.
func chartYAML(packed []byte) ([]byte, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it has no Chart.yaml")
		}
		if err != nil {
			return nil, err
		}
		if ok, _ := path.Match("*/Chart.yaml", header.Name); ok {
			return io.ReadAll(r)
		}
	}
}
