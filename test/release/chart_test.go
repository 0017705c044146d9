//go:build release

package release

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChart: helm reads the packed chart, and pulls the same one from a registry that serves the OCI layout. What it
// renders by default names the image of the release by its digest.
func TestChart(t *testing.T) {
	helm := "../../bin/helm"
	if _, err := os.Stat(helm); err != nil {
		t.Fatalf("%v: run tools/helm/build first", err)
	}
	number := strings.TrimPrefix(version, "v")
	packed := file("twill-" + number + ".tgz")
	about := output(t, helm, "show", "chart", packed)
	for _, want := range []string{"version: " + number + "\n", "appVersion: " + version + "\n"} {
		if !strings.Contains(about, want) {
			t.Errorf("helm show chart says\n%swant %s", about, want)
		}
	}
	registry := httptest.NewServer(serve(t, file("twill-chart_"+number+".tar")))
	defer registry.Close()
	to := t.TempDir()
	output(t, helm, "pull", "--plain-http", "--version", number, "--destination", to,
		strings.Replace(registry.URL, "http:", "oci:", 1)+"/charts/twill")
	if read(t, filepath.Join(to, "twill-"+number+".tgz")) != read(t, packed) {
		t.Error("the chart in the OCI layout is another one")
	}
	rendered := output(t, helm, "template", "twill", packed)
	pinned, _, _ := strings.Cut(read(t, file("images_"+version+".txt")), "\n")
	_, digest, _ := strings.Cut(pinned, "@")
	if !strings.HasPrefix(digest, "sha256:") || strings.Count(rendered, "@"+digest) != 2 {
		t.Errorf("helm template does not name %s twice:\n%s", pinned, rendered)
	}
}

// serve is a registry that has what an OCI layout has, by any name: as much as a pull needs of
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md.
func serve(t *testing.T, archive string) http.Handler {
	t.Helper()
	files := map[string]string{}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(data)
	}
	var index struct {
		Manifests []struct {
			MediaType, Digest string
			Annotations       map[string]string
		}
	}
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%v: the layout's index is %s", err, files["index.json"])
	}
	top := index.Manifests[0]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reference := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if reference == top.Annotations["org.opencontainers.image.ref.name"] {
			reference = top.Digest
		}
		data, ok := files["blobs/"+strings.Replace(reference, ":", "/", 1)]
		if !ok && r.URL.Path != "/v2/" {
			http.NotFound(w, r)
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", top.MediaType)
			w.Header().Set("Docker-Content-Digest", reference)
		}
		_, _ = io.WriteString(w, data)
	})
}
