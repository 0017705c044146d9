package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// statement is an in-toto statement (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) whose
// predicate is SLSA's provenance (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

// subject is a file or, with a URI, a source.
type subject struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type predicate struct {
	BuildDefinition definition `json:"buildDefinition"`
	RunDetails      details    `json:"runDetails"`
}

type definition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters"`
	ResolvedDependencies []subject         `json:"resolvedDependencies"`
}

type details struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

// writeProvenance writes the provenance of the files to out: what was built from what, and who says so. The builder is
// the environment variable BUILDER_ID, or nobody in particular.
func writeProvenance(out io.Writer, version, commit string, files []string) error {
	s := statement{
		Type:          "https://in-toto.io/Statement/v1",
		PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: predicate{BuildDefinition: definition{
			BuildType:          source + "/blob/main/Documentation/release.md",
			ExternalParameters: map[string]string{"version": version},
			InternalParameters: map[string]string{"go": runtime.Version()},
			ResolvedDependencies: []subject{
				{URI: "git+" + source + "@refs/tags/" + version, Digest: map[string]string{"gitCommit": commit}},
			},
		}},
	}
	s.Predicate.RunDetails.Builder.ID = source + "/blob/main/Documentation/release.md#by-hand"
	if id := os.Getenv("BUILDER_ID"); id != "" {
		s.Predicate.RunDetails.Builder.ID = id
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		digest := map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(data))}
		s.Subject = append(s.Subject, subject{Name: filepath.Base(path), Digest: digest})
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(s)
}
