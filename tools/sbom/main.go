// Command sbom prints a software bill of materials in SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/) for programs
// that Go built and, by their file names, for Debian packages: sbom NAME VERSION FILE…
//
// It is the same for the same files: it has the time SOURCE_DATE_EPOCH
// (https://reproducible-builds.org/specs/source-date-epoch/) if that is set, and its namespace is made of
// what it lists.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []pkg          `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	SPDXID           string     `json:"SPDXID"`
	Name             string     `json:"name"`
	Version          string     `json:"versionInfo"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	ExternalRefs     []external `json:"externalRefs,omitempty"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: sbom NAME VERSION FILE…")
	}
	urls := map[string]bool{} // package URLs, https://github.com/package-url/purl-spec
	for _, path := range args[2:] {
		if err := add(urls, path); err != nil {
			return err
		}
	}
	created, err := epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(describe(args[0], args[1], created, urls))
}

// epoch returns the time that a number of seconds since 1970 names, and now if there is none.
func epoch(seconds string) (time.Time, error) {
	if seconds == "" {
		return time.Now(), nil
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, want a number of seconds since 1970", seconds)
	}
	return time.Unix(n, 0), nil
}

// add takes a program's modules, or a Debian package by its name: libmnl0_1.0.4-3_amd64.deb.
func add(urls map[string]bool, path string) error {
	if name, ok := strings.CutSuffix(filepath.Base(path), ".deb"); ok {
		parts := strings.Split(name, "_")
		if len(parts) != 3 {
			return fmt.Errorf("file %s: want NAME_VERSION_ARCHITECTURE.deb", path)
		}
		urls["pkg:deb/debian/"+parts[0]+"@"+strings.ReplaceAll(parts[1], "%3a", ":")+"?arch="+parts[2]] = true
		return nil
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read what %s was built from: %w", path, err)
	}
	urls["pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go")] = true
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version == "(devel)" {
			continue // a directory of the same source as the program
		}
		urls["pkg:golang/"+m.Path+"@"+m.Version] = true
	}
	return nil
}

func describe(name, version string, created time.Time, urls map[string]bool) document {
	const doc, root = "SPDXRef-DOCUMENT", "SPDXRef-image"
	all := slices.Sorted(maps.Keys(urls))
	content := sha256.Sum256([]byte(strings.Join(all, "\n")))
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: doc, Name: name + " " + version,
		DocumentNamespace: fmt.Sprintf("https://%s/sbom/%s-%x", name, version, content[:8]),
		CreationInfo: creation{
			Created:  created.UTC().Format(time.RFC3339),
			Creators: []string{"Tool: twill-sbom"},
		},
		Packages:      []pkg{{SPDXID: root, Name: name, Version: version, DownloadLocation: "NOASSERTION"}},
		Relationships: []relationship{{doc, "DESCRIBES", root}},
	}
	for i, url := range all {
		id := fmt.Sprintf("SPDXRef-%d", i+1)
		rest, _, _ := strings.Cut(strings.TrimPrefix(url, "pkg:"), "?")
		_, rest, _ = strings.Cut(rest, "/")
		pkgName, pkgVersion, _ := strings.Cut(rest, "@")
		d.Packages = append(
			d.Packages,
			pkg{SPDXID: id, Name: strings.TrimPrefix(pkgName, "debian/"), Version: pkgVersion,
				DownloadLocation: "NOASSERTION", ExternalRefs: []external{{"PACKAGE-MANAGER", "purl", url}}},
		)
		d.Relationships = append(d.Relationships, relationship{root, "CONTAINS", id})
	}
	return d
}
