package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// limit is how many bytes the bundle may have, compressed.
const limit = 300_000

// bundle makes page.js of main.ts and what it imports, page.css of page.css, and takes index.html as it is. The same
// sources give the same bytes wherever they are. The page runs in a browser without any file that is not in the bundle.
func bundle(sources string) (map[string][]byte, error) {
	sources, err := filepath.Abs(sources)
	if err != nil {
		return nil, err
	}
	result := api.Build(api.BuildOptions{
		AbsWorkingDir: sources,
		EntryPointsAdvanced: []api.EntryPoint{
			{InputPath: "./main.ts", OutputPath: "page"},
			{InputPath: "./page.css", OutputPath: "page"},
		},
		Outdir:            ".",
		Bundle:            true,
		Format:            api.FormatESModule,
		Platform:          api.PlatformBrowser,
		Target:            api.ES2022,
		Charset:           api.CharsetUTF8,
		LegalComments:     api.LegalCommentsNone,
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		TsconfigRaw:       `{"compilerOptions": {"strict": true}}`, // and none of a folder above
	})
	// What esbuild only warns of, such as a comparison that is never true, is an error of the page.
	if problems := append(result.Errors, result.Warnings...); len(problems) > 0 {
		text := api.FormatMessages(problems, api.FormatMessagesOptions{})
		return nil, fmt.Errorf("%d problems in %s:\n%s", len(problems), sources, strings.Join(text, ""))
	}
	files := map[string][]byte{}
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	if files["index.html"], err = os.ReadFile(filepath.Join(sources, "index.html")); err != nil {
		return nil, err
	}
	return files, nil
}

// compressed is how many bytes gzip -9 makes of all files, each by itself.
func compressed(files map[string][]byte) (int, error) {
	var all bytes.Buffer
	for _, content := range files {
		w, err := gzip.NewWriterLevel(&all, gzip.BestCompression)
		if err != nil {
			return 0, err
		}
		if _, err := w.Write(content); err != nil {
			return 0, err
		}
		if err := w.Close(); err != nil {
			return 0, err
		}
	}
	if all.Len() > limit {
		return 0, fmt.Errorf("the bundle has %d bytes compressed, and may have %d", all.Len(), limit)
	}
	return all.Len(), nil
}

// differences names the files of a folder that are not as the bundle's, or missing, or left over.
func differences(folder string, files map[string][]byte) ([]string, error) {
	var found []string
	for name, content := range files {
		old, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !bytes.Equal(old, content) {
			found = append(found, name)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if files[e.Name()] == nil {
			found = append(found, e.Name())
		}
	}
	slices.Sort(found)
	return found, nil
}

// write replaces what is not as the bundle's. What is no part of it stays, and is an error.
func write(folder string, files map[string][]byte) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	changed, err := differences(folder, files)
	if err != nil {
		return err
	}
	for _, name := range changed {
		if files[name] == nil {
			return fmt.Errorf("%s is no part of the bundle: remove it", filepath.Join(folder, name))
		}
		if err := os.WriteFile(filepath.Join(folder, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
