package target

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/plain"
)

// Bundle is the files of a bug report.
type Bundle []Member

// Member is one file of a Bundle.
type Member struct {
	Name string
	Data []byte
}

// inBundle is the directory of the files in a bundle.
const inBundle = "twill-report/"

// WriteTar writes the bundle, compressed, and without control characters.
func (b Bundle) WriteTar(to io.Writer) error {
	z := gzip.NewWriter(to)
	w := tar.NewWriter(z)
	for _, f := range b {
		text := plain.Text(f.Data)
		header := &tar.Header{Name: inBundle + f.Name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now()}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

// These bound what is read of a node's bundle, whatever the node sends.
const (
	maxMembers = 100
	maxBytes   = maxOutput // of all members, unpacked
)

// memberName matches the names that members may have: they become files in whatever directory the bundle is unpacked
// in.
var memberName = regexp.MustCompile(`^[a-z0-9-]+\.(txt|json|log)$`)

// ReadBundle reads what WriteTar wrote, or what claims to be that.
func ReadBundle(from io.Reader) (Bundle, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	limit := &io.LimitedReader{R: z, N: maxBytes}
	var files Bundle
	for r := tar.NewReader(limit); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && limit.N > 0 {
			return files, nil
		}
		if err != nil {
			return nil, unpackError(err, limit)
		}
		name := strings.TrimPrefix(h.Name, inBundle)
		if h.Typeflag != tar.TypeReg || !memberName.MatchString(name) || len(files) == maxMembers {
			return nil, fmt.Errorf("member %q: want at most %d files, with names such as facts.json",
				h.Name, maxMembers)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, unpackError(err, limit)
		}
		files = append(files, Member{name, data})
	}
}

func unpackError(err error, limit *io.LimitedReader) error {
	if limit.N <= 0 {
		return fmt.Errorf("it is larger than %d bytes when it is unpacked", maxBytes)
	}
	return err
}
